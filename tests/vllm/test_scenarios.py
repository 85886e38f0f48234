"""The known scenarios of the partial tail, on real vLLM (R1, R6, R8, R14, R15, R22)."""

import pytest

from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.session import NotPossible, Session
from cowtail.models.actions import (
    Abort,
    Execute,
    JobOutcome,
    Report,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role

pytestmark = pytest.mark.vllm

STEP = (SchedulePass(), Execute(), UpdateFromOutput())
TEXT = "the quick brown fox jumps over the lazy dog, and then it jumps back again"


def producer(num_tokens: int, *, eagle: bool = False) -> Session:
    """Return a producer to which a request of that many tokens has been submitted."""
    request = RequestSpec("p", TEXT[:num_tokens])
    session = Session(EngineConfig(requests=(request,), role=Role.PRODUCER, eagle=eagle))
    session.do(Submit("p"))
    return session


def found_by_later_consumer(session: Session, num_tokens: int) -> int:
    """Return the tokens that a consumer with a prompt one token longer finds in the store.

    The consumer then loads them and runs to its end, with every read checked.
    """
    config = EngineConfig(
        requests=(RequestSpec("c", TEXT[: num_tokens + 1]),),
        role=Role.CONSUMER,
        eagle=session.config.eagle,
    )
    consumer = Session(config, session.store)
    consumer.do_all(Submit("c"), SchedulePass())
    load = consumer.ranks[0].next_load
    found = load.load_spec.kvpool_cached_tokens if load is not None else 0
    consumer.drain()
    assert consumer.statistics["loads done"] == int(found > 0)
    return found


def run_to_boundary(session: Session, boundary: int) -> None:
    """Step until exactly ``boundary`` tokens are computed, with no step in flight."""
    while session.requests["p"].num_computed_tokens < boundary:
        session.do_all(*STEP)
    assert session.requests["p"].num_computed_tokens == boundary
    assert not session.steps


def test_a_producer_of_44_tokens_leaves_40_for_a_later_consumer() -> None:
    session = producer(44)
    session.drain()
    assert session.statistics["tails handed off by CoW"] == 1
    assert found_by_later_consumer(session, 44) == 40


def test_an_abort_at_the_boundary_hands_the_tail_off_pinned_until_both_ranks_reported() -> None:
    session = producer(45)
    run_to_boundary(session, 44)
    (attention, states) = session.view.tables("p")
    ((marked, boundary),) = session.view.markers().values()
    assert (marked, boundary) == (states[-1], 44)
    save = max(session.view.pins())

    session.do(Abort("p"))
    (handoff,) = set(session.view.pins()) - {save}
    blocks = set(session.view.pins()[handoff].blocks)
    # The tail's own source block (R1), and what normal saves, in units of 16, leave out (R16).
    assert blocks == {states[-1], attention[-1]}
    assert session.requests["p"].is_finished()
    assert not session.view.markers()

    session.do_all(SchedulePass(), Execute())
    for rank in (0, 1):
        session.do_all(RunJob(rank), RunJob(rank), Report(rank, save))
    session.do(Report(0, handoff))
    session.do(UpdateConnectorOutput())
    assert session.view.pins()[handoff].ranks_left == 1
    assert all(session.view.references()[block] == 1 for block in blocks)

    session.do_all(SchedulePass(), Execute(), Report(1, handoff), UpdateConnectorOutput())
    assert not session.view.pins()
    assert all(session.view.references()[block] == 0 for block in blocks)
    free = session.view.free_list()
    assert all(free.count(block) == 1 for block in blocks)

    session.drain()
    assert session.statistics["tails handed off at finish"] == 1
    assert session.statistics["tails handed off by CoW"] == 0
    assert found_by_later_consumer(session, 44) == 44


def test_the_pin_of_a_finish_time_handoff_outlives_many_passes() -> None:
    session = producer(45)
    run_to_boundary(session, 44)
    session.do(Abort("p"))
    pins = session.view.pins()
    for _ in range(5):
        session.do_all(*STEP)
    assert session.view.pins() == pins
    assert session.scheduler.has_requests()


def test_a_failed_put_of_the_tail_is_a_miss_and_releases_the_pin() -> None:
    session = producer(45)
    run_to_boundary(session, 44)
    session.do_all(Abort("p"), SchedulePass(), Execute())
    session.do_all(RunJob(0), RunJob(0, JobOutcome.FAILED), RunJob(1), RunJob(1))
    session.drain()
    assert session.statistics["failed puts"] > 0
    assert found_by_later_consumer(session, 44) == 32


def test_a_consumer_hands_nothing_off() -> None:
    config = EngineConfig(requests=(RequestSpec("p", TEXT[:45]),), role=Role.CONSUMER)
    session = Session(config)
    session.do(Submit("p"))
    run_to_boundary(session, 44)
    session.do(Abort("p"))
    session.drain()
    assert not session.ledger.jobs
    assert not session.store.values


def test_a_failed_load_on_one_rank_only_is_never_read() -> None:
    request = RequestSpec("c", TEXT[:50], max_tokens=2)
    stored = (RequestSpec("stored", TEXT[:50]),)
    session = Session(EngineConfig(requests=(request,), stored=stored, recompute_failed_loads=True))
    session.do_all(Submit("c"), SchedulePass(), RunLoad(0), RunLoad(1, failed=True))
    session.drain()
    assert session.statistics["loads failed"] == 1
    assert len(session.requests["c"].output_token_ids) == 2


@pytest.mark.parametrize(("num_tokens", "found"), [(52, 48), (45, 40)])
def test_with_eagle_attention_is_stored_past_the_boundary(num_tokens: int, found: int) -> None:
    session = producer(num_tokens, eagle=True)
    session.drain()
    assert found_by_later_consumer(session, num_tokens) == found


def test_a_report_cannot_come_twice() -> None:
    session = producer(44)
    session.do_all(*STEP, RunJob(0))
    with pytest.raises(NotPossible, match="takes each completion from its thread once"):
        session.do(Report(0, 0, again=True))


def test_a_store_job_waits_for_its_step_and_a_load_does_not() -> None:
    stored = (RequestSpec("stored", TEXT[:40]),)
    requests = (RequestSpec("c", TEXT[:40]), RequestSpec("p", "x" * 40))
    session = Session(EngineConfig(requests=requests, stored=stored))
    session.do_all(Submit("c"), Submit("p"), SchedulePass(), RunLoad(0), RunLoad(1))
    with pytest.raises(NotPossible, match="has not been executed"):
        session.do(RunJob(0))
    session.do_all(Execute(), RunJob(0))
    session.drain()
