"""What real vLLM 0.32.0 violates: each known finding, shown by hand, and recognized as such.

These tests fail when a release no longer shows the defect: then the finding leaves the table.
"""

import importlib
from collections.abc import Sequence

import attrs
import pytest

from cowtail.impl.vllm_engine import checks
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.known import KNOWN_FINDINGS, known_finding
from cowtail.impl.vllm_engine.ledger import Ledger
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import (
    Abort,
    Action,
    Execute,
    Reset,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role

pytestmark = pytest.mark.vllm

RACE, RETRY, ROOM, CHAIN, WITHDRAWN, RESET, *_FIXED = dict.fromkeys(
    known.name for known in KNOWN_FINDINGS
)
TEXT = "the quick brown fox jumps over the lazy dog, and then it jumps back again"
STORED = "x" * 40

RACING = EngineConfig(
    requests=(RequestSpec("a", TEXT[:30]), RequestSpec("b", TEXT[:30]), RequestSpec("c", STORED)),
    stored=(RequestSpec("stored", STORED),),
    num_blocks=8,
    role=Role.PRODUCER,
    max_steps_in_flight=2,
)


def violation_of(session: Session, actions: Sequence[Action]) -> Violation:
    """Carry out ``actions``, then drain; return the violation that this ends in."""
    try:
        session.do_all(*actions)
        session.drain()
    except Violation as violation:
        return violation
    pytest.fail("nothing is violated")


def name_of(session: Session, violation: Violation) -> str | None:
    known = known_finding(session, violation)
    return known.name if known else None


def racing_session() -> Session:
    """Return a producer that is about to load into the source of a copy not made yet.

    ``a`` has finished; ``b`` has the same prompt, hits inside a block, and copies it in a step
    that is in flight. The source is free as soon as the pass is over, and ``c`` takes it.
    """
    session = Session(RACING)
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), SchedulePass(), Submit("c"))
    return session


def test_a_producer_loads_into_the_source_of_a_copy_that_is_in_flight() -> None:
    session = racing_session()
    assert not session.scheduler.defer_block_free
    violation = violation_of(session, [SchedulePass()])
    assert violation.identifier == "V6"
    assert name_of(session, violation) == RACE


def test_the_racing_load_really_corrupts_what_the_request_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "note_loads", lambda ledger, scheduled, in_flight: None)
    session = racing_session()
    violation = violation_of(session, [SchedulePass(), RunLoad(0), RunLoad(1), Execute()])
    assert violation.identifier == "V5"
    assert "b reads wrong KV on rank 0" in violation.reason


def test_the_same_engine_as_producer_and_consumer_waits_for_the_step() -> None:
    session = Session(attrs.evolve(RACING, role=Role.BOTH))
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), SchedulePass(), Submit("c"), SchedulePass())
    session.drain()


RETRYING = EngineConfig(
    requests=(RequestSpec("a", STORED + "y"),),
    stored=(RequestSpec("stored", STORED + "y"),),
    num_blocks=8,
    recompute_failed_loads=True,
)


def test_the_retry_of_a_failed_load_waits_for_its_own_reservation() -> None:
    session = Session(RETRYING)
    actions = [Submit("a"), SchedulePass(), RunLoad(0, failed=True), RunLoad(1), Execute()]
    violation = violation_of(session, [*actions, UpdateConnectorOutput()])
    assert violation.identifier == "L2"
    assert session.view.free_count() == RETRYING.num_blocks - 1, "every block is free"
    assert name_of(session, violation) == RETRY


def test_a_failed_load_is_retried_where_two_reservations_fit() -> None:
    session = Session(attrs.evolve(RETRYING, num_blocks=16))
    session.do_all(Submit("a"), SchedulePass(), RunLoad(0, failed=True), RunLoad(1), Execute())
    session.do(UpdateConnectorOutput())
    session.drain()


FILLING = EngineConfig(
    requests=(RequestSpec("a", TEXT[:44]), RequestSpec("b", "y" * 33)),
    stored=(RequestSpec("stored_a", TEXT[:44]), RequestSpec("stored_b", "y" * 33)),
    num_blocks=8,
)


def test_two_loads_that_fill_the_pool_wait_for_each_other() -> None:
    session = Session(FILLING)
    violation = violation_of(session, [Submit("a"), Submit("b")])
    assert violation.identifier == "L2"
    assert session.view.free_count() == 0
    assert not session.scheduler.running
    assert name_of(session, violation) == ROOM


def test_with_one_more_block_both_go_on() -> None:
    session = Session(attrs.evolve(FILLING, num_blocks=9))
    session.do_all(Submit("a"), Submit("b"))
    session.drain()


CHAINED = EngineConfig(
    requests=(
        RequestSpec("a", TEXT[:4] + "::"),
        RequestSpec("b", TEXT[:13]),
        RequestSpec("c", TEXT[:8] + "::"),
    ),
    attention_block_size=8,
    mamba_block_size=16,
)


def chained_session() -> Session:
    """Return an engine in which one step has copied 1 to 2 and 2 to another block.

    ``a`` leaves a tail of 4 tokens. ``b`` and ``c`` are admitted in one pass: ``b`` copies a's
    block, computes on and keys the copy at 8 tokens; ``c`` finds that block, but no state beyond
    4 tokens, so it hits 4 tokens inside the block that ``b``'s copy has yet to fill.
    """
    session = Session(CHAINED)
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), Submit("c"), SchedulePass())
    return session


def test_two_copies_of_one_step_are_chained() -> None:
    session = chained_session()
    copies = session.steps[-1].scheduled.kv_cache_block_copies
    assert {copy.src_block_id for copy in copies} & {copy.dst_block_id for copy in copies}
    violation = violation_of(session, [Execute()])
    assert violation.identifier == "V5"
    assert "c reads wrong KV" in violation.reason
    assert name_of(session, violation) == CHAIN


COMPUTED = EngineConfig(
    requests=(
        RequestSpec("a", "x" * 8),
        RequestSpec("b", "x" * 20),
        RequestSpec("c", "x" * 16),
    ),
    num_ranks=1,
    eagle=True,
)


def test_a_block_that_another_request_computes_in_the_step_is_copied_too_early() -> None:
    session = Session(COMPUTED)
    session.do_all(Submit("a"), SchedulePass(), Submit("b"), Abort("a"), Submit("c"))
    session.do_all(Execute(), UpdateFromOutput(), SchedulePass())
    (to_c,) = (
        copy
        for copy in session.steps[-1].scheduled.kv_cache_block_copies
        if copy.dst_block_id in session.view.tables("c")[0]
    )
    assert to_c.src_block_id in session.view.tables("b")[0]
    violation = violation_of(session, [Execute()])
    assert violation.identifier == "V5"
    assert "c reads wrong KV" in violation.reason
    assert name_of(session, violation) == CHAIN


def test_a_load_into_a_block_that_a_step_reads_is_the_same_race() -> None:
    config = EngineConfig(
        requests=(RequestSpec("a", "x" + "y" * 32), RequestSpec("b", "x" * 5)),
        stored=(RequestSpec("stored", "x" * 5),),
        token_budget=16,
        role=Role.PRODUCER,
        num_ranks=1,
        max_steps_in_flight=2,
    )
    session = Session(config)
    session.do_all(Submit("a"), SchedulePass(), SchedulePass(), Execute(), UpdateFromOutput())
    session.do_all(Submit("b"), Abort("a"))
    violation = violation_of(session, [SchedulePass()])
    assert violation.identifier == "V6"
    assert name_of(session, violation) == RACE


def test_the_real_copy_reads_every_source_before_it_writes() -> None:
    torch = importlib.import_module("torch")
    utils = importlib.import_module("vllm.v1.worker.utils")
    cache = torch.arange(4.0).repeat_interleave(2).reshape(4, 2)
    utils.copy_kv_cache_blocks_inplace([cache], 4, [(1, 2), (2, 3)])
    assert cache[:, 0].tolist() == [0.0, 1.0, 1.0, 2.0]


def test_admitted_one_pass_later_the_copy_is_right() -> None:
    session = Session(CHAINED)
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), SchedulePass(), Execute(), UpdateFromOutput(), Submit("c"))
    session.drain()


WITHDRAWING = EngineConfig(
    requests=(
        RequestSpec("high", "01234", max_tokens=12, priority=0),
        RequestSpec("low", TEXT[:50], priority=2),
        RequestSpec("mid", TEXT[20:33], priority=1),
    ),
    num_blocks=10,
    token_budget=32,
    role=Role.CONSUMER,
    priority=True,
)
STEP = (SchedulePass(), Execute(), UpdateFromOutput())


def withdrawing_session() -> Session:
    """Return an engine whose next pass schedules ``low`` and preempts it in favour of ``mid``.

    ``low`` has computed 32 of its 50 tokens and is next; ``mid`` has computed 12 of 13 and needs
    one block for its copy-on-write, when none is left.
    """
    session = Session(WITHDRAWING)
    session.do_all(Submit("high"), *STEP, *STEP, *STEP, Submit("low"), *STEP, Submit("mid"), *STEP)
    return session


def test_keys_of_a_chunk_stay_when_its_request_is_preempted_in_the_same_pass() -> None:
    session = withdrawing_session()
    session.do(SchedulePass())
    scheduled = session.steps[-1].scheduled
    assert scheduled.preempted_req_ids == {"low"}
    assert "low" not in scheduled.num_scheduled_tokens
    violation = violation_of(session, [Execute()])
    assert violation.identifier == "S3"
    assert "(48 tokens) is wrong" in violation.reason
    assert name_of(session, violation) == WITHDRAWN


def test_the_preempted_request_resumes_on_tokens_that_were_never_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    safety = tuple(p for p in checks.SAFETY if p.identifier != "S3")
    monkeypatch.setattr(checks, "SAFETY", safety)
    session = withdrawing_session()
    session.do_all(*STEP, SchedulePass())
    assert session.steps[-1].scheduled.num_scheduled_tokens["low"] == 2, "48 of 50 were a hit"
    violation = violation_of(session, [Execute()])
    assert violation.identifier == "V5"
    assert "low reads wrong KV" in violation.reason
    assert name_of(session, violation) == WITHDRAWN


def test_with_one_more_block_nobody_is_preempted_and_all_is_well() -> None:
    session = Session(attrs.evolve(WITHDRAWING, num_blocks=11))
    session.do_all(Submit("high"), *STEP, *STEP, *STEP, Submit("low"), *STEP, Submit("mid"), *STEP)
    session.drain()


def test_a_violation_of_another_property_is_not_taken_for_a_known_one() -> None:
    session = racing_session()
    violation_of(session, [SchedulePass()])
    assert known_finding(session, Violation("S1", "made up")) is None
    session = Session(RACING)
    session.do_all(Submit("a"), SchedulePass(), Execute(), UpdateFromOutput())
    assert known_finding(session, Violation("L2", "made up")) is None


def test_a_race_that_no_load_took_part_in_is_new() -> None:
    session = racing_session()
    assert known_finding(session, Violation("V6", "made up")) is None


@pytest.mark.parametrize(
    ("role", "defers", "known"),
    [
        (Role.PRODUCER, False, True),
        (Role.PRODUCER, True, False),
        (Role.BOTH, False, False),
    ],
)
def test_a_race_is_known_of_a_producer_whose_frees_do_not_wait(
    role: Role, defers: bool, known: bool
) -> None:
    session = Session(attrs.evolve(RACING, role=role))
    session.scheduler.defer_block_free = False
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), SchedulePass(), Submit("c"))
    violation = violation_of(session, [SchedulePass()])
    assert violation.identifier == "V6"
    session.scheduler.defer_block_free = defers
    assert (name_of(session, violation) == RACE) is known


RESETTING = EngineConfig(
    requests=(RequestSpec("a", "x" * 17),), token_budget=16, num_ranks=1, max_resets=1
)


def test_a_reset_crashes_the_step_that_resumes_what_it_preempted() -> None:
    """The connector is told of the resumption first, and forgets it when told of the preemption."""
    session = Session(RESETTING)
    session.do_all(Submit("a"), *STEP, Reset(running=True))
    assert session.view.untold_preemptions() == {"a"}
    violation = violation_of(session, [SchedulePass()])
    assert violation.identifier == "A"
    assert "TypeError in build_connector_meta" in violation.reason
    assert name_of(session, violation) == RESET


def test_by_the_other_runner_conventions_too() -> None:
    session = Session(attrs.evolve(RESETTING, model_runner="v2"))
    violation = violation_of(session, [Submit("a"), *STEP, Reset(running=True)])
    assert violation.identifier == "A"
    assert "AssertionError in build_connector_meta" in violation.reason
    assert name_of(session, violation) == RESET


def test_what_is_resumed_with_a_load_waits_for_it_for_ever() -> None:
    config = attrs.evolve(RESETTING, stored=(RequestSpec("stored", "x" * 5),), token_budget=8)
    session = Session(config)
    session.do_all(Submit("a"), SchedulePass(), RunLoad(0), Execute(), UpdateConnectorOutput())
    violation = violation_of(session, [*STEP, Reset(running=True)])
    assert violation.identifier == "L2"
    assert session.requests["a"].status.name == "WAITING_FOR_REMOTE_KVS"
    assert all(rank.next_load is None for rank in session.ranks)
    assert name_of(session, violation) == RESET


def test_a_reset_between_requests_is_harmless() -> None:
    session = Session(attrs.evolve(RESETTING, max_resets=2))
    session.do_all(Submit("a"), *STEP, Reset())
    assert session.last_reset is False
    session.drain()
    session.do(Reset(running=True, store=True))
    assert session.last_reset is True
    assert not session.store.values
