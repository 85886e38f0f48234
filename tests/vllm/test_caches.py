"""Late lookups, evictions, resets, checkpoints, windows: each really happens (R18, R38)."""

import pytest

from cowtail.harness.contract import contract_level
from cowtail.harness.contract.vllm import CONTRACT
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.fuzz import fuzz
from cowtail.impl.vllm_engine.session import NotPossible, Session
from cowtail.models.actions import (
    Abort,
    Evict,
    Execute,
    LookUp,
    Reset,
    SchedulePass,
    Submit,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role

pytestmark = pytest.mark.vllm

STORED = RequestSpec("stored", "x" * 20)
LATE = EngineConfig(
    requests=(RequestSpec("a", "x" * 20), RequestSpec("b", "y" * 9)),
    stored=(STORED,),
    role=Role.CONSUMER,
    lookup_async=True,
    max_evictions=1,
    max_resets=2,
)
STEP = (SchedulePass(), Execute(), UpdateFromOutput())


def late() -> Session:
    """Return a consumer that has asked the store for a request, and has no answer yet."""
    session = Session(LATE)
    session.do_all(Submit("a"), SchedulePass(), Execute(), UpdateFromOutput())
    return session


def test_a_request_waits_for_its_answer_and_loads_what_it_says() -> None:
    session = late()
    assert session.requests["a"].status.name == "WAITING"
    assert session.ranks[0].next_load is None
    session.do_all(LookUp("a"), SchedulePass())
    assert session.ranks[0].next_load.load_spec.kvpool_cached_tokens == 16
    session.drain()


def test_the_store_is_asked_when_the_answer_comes() -> None:
    session = late()
    session.store.values.clear()
    session.do_all(LookUp("a"), SchedulePass())
    assert session.ranks[0].next_load is None
    session.drain()


def test_a_lookup_that_fails_finds_nothing() -> None:
    session = late()
    session.do_all(LookUp("a", failed=True), SchedulePass())
    assert session.ranks[0].next_load is None
    session.drain()


def test_an_aborted_request_leaves_no_question() -> None:
    session = late()
    session.do(Abort("a"))
    with pytest.raises(NotPossible, match="a is finished"):
        session.do(LookUp("a"))
    session.drain()
    assert not session.lookup.has_lookups


def test_what_is_evicted_between_lookup_and_load_fails_the_load_of_its_rank() -> None:
    session = late()
    session.do_all(LookUp("a"), SchedulePass(), Evict(1, 0, "x" * 16))
    with pytest.raises(NotPossible, match="max_evictions=1 are spent"):
        session.do(Evict(0, 0, "x" * 16))
    session.drain()
    assert session.statistics["loads failed"] == 1
    assert session.requests["a"].status.name == "FINISHED_ERROR"


def test_a_reset_with_blocks_held_is_refused_and_one_without_forgets_all() -> None:
    session = Session(LATE)
    session.do_all(Submit("b"), *STEP)
    session.do_all(LookUp("b"), *STEP, Reset())
    assert session.last_reset is False
    session.drain()
    assert list(session.view.key_map())
    session.do(Reset(store=True))
    assert session.last_reset is True
    assert not list(session.view.key_map())
    assert not session.store.values


@pytest.mark.parametrize(
    ("prepare", "reset", "why"),
    [
        ((Submit("a"), SchedulePass()), Reset(), "a step is in flight"),
        ((Submit("a"), *STEP), Reset(store=True), "lookups are under way"),
        ((Submit("a"), *STEP, LookUp("a"), *STEP), Reset(store=True), "a load is under way"),
    ],
)
def test_a_reset_comes_only_when_the_release_allows_its_caller_one(prepare, reset, why) -> None:
    session = Session(LATE)
    session.do_all(*prepare)
    with pytest.raises(NotPossible, match=why):
        session.do(reset)


def test_the_model_predicts_episodes_with_all_of_it() -> None:
    with contract_level():
        report = fuzz(seed=21, episodes=80, reduce=False)
    assert not [finding for finding in report.findings if finding.failure.identifier == CONTRACT]
    for event in ("look_up", "evict", "resets", "resets refused", "store resets", "loads failed"):
        assert report.statistics[event], event


def test_a_checkpoint_keeps_the_state_where_a_siblings_hit_ended() -> None:
    """With EAGLE, and checkpoints on, a chunk ends at the junction inside a block."""
    requests = (RequestSpec("a", "x" * 40), RequestSpec("b", "x" * 20 + "y" * 20))
    ends = {}
    for on in (False, True):
        config = EngineConfig(
            requests, eagle=True, shared_prefix_checkpoints=on, role=Role.PRODUCER
        )
        session = Session(config)
        session.do(Submit("a"))
        session.drain()
        session.do_all(Submit("b"), SchedulePass())
        scheduled = session.steps[-1].scheduled
        ends[on] = scheduled.num_scheduled_tokens["b"]
        session.drain()
    assert ends == {False: 16, True: 12}


WINDOWED = EngineConfig(
    requests=(RequestSpec("a", "x" * 44, max_tokens=8), RequestSpec("b", "x" * 44)), window=9
)


def test_a_window_leaves_its_blocks_behind_and_a_resend_finds_the_last_ones() -> None:
    session = Session(WINDOWED)
    session.do(Submit("a"))
    while session.requests["a"].num_computed_tokens < 44:
        session.do_all(*STEP)
    _, _, window = session.view.tables("a")
    assert window[:8] == [0] * 8
    assert all(window[8:])
    session.do_all(Submit("b"), *STEP)
    assert session.requests["b"].num_computed_tokens > 40
    session.drain()


def test_what_a_window_reads_is_watched() -> None:
    session = Session(WINDOWED)
    session.do_all(Submit("a"), *STEP)
    before = session.requests["a"].num_computed_tokens
    block = session.view.tables("a")[2][(before - 1) // WINDOWED.window_block_size]
    session.do(SchedulePass())
    for memory in session.memories:
        memory.write_slot(block, 3, "somebody else")
    with pytest.raises(Violation, match="V5: a reads wrong KV on rank 0: slot 3 of block"):
        session.do(Execute())
