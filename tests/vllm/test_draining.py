"""Issue 4: every workload drains; a bound that is met is proved by replaying twice as far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cowtail.harness.findings.trace import read_vllm_trace
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.draining import EMPTY_PASS_BOUND, Drain
from cowtail.impl.vllm_engine.failures import attempt
from cowtail.impl.vllm_engine.session import Session
from cowtail.impl.vllm_engine.surface import surface
from cowtail.impl.vllm_engine.whole_state import COUNTERS, whole_state
from cowtail.models.actions import Execute, SchedulePass, Submit, UpdateFromOutput
from cowtail.models.scope import RequestSpec

pytestmark = pytest.mark.vllm

_FINDINGS = Path(__file__).parent / "findings"


def submitted() -> Session:
    config = EngineConfig(requests=(RequestSpec("a", "x" * 44, max_tokens=3),))
    session = Session(config, unchecked=("L6", "R29"))  # asked of a scheduler that may stall
    session.do(Submit("a"))
    return session


def stall(monkeypatch: pytest.MonkeyPatch, passes: int | None) -> None:
    """Let every scheduler schedule nothing in its first passes, None for all of them.

    It counts them in itself: what decides is part of its state.
    """
    original = surface().Scheduler.schedule

    def schedule(scheduler: Any) -> Any:
        had = scheduler.max_num_scheduled_tokens
        if passes is None or vars(scheduler).setdefault("stalled", 0) < passes:
            if passes is not None:
                scheduler.stalled += 1
            scheduler.max_num_scheduled_tokens = 0
        try:
            return original(scheduler)
        finally:
            scheduler.max_num_scheduled_tokens = had

    monkeypatch.setattr(surface().Scheduler, "schedule", schedule)


def test_a_planted_livelock_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is ever scheduled: both bounds are told, and that the state comes again."""
    stall(monkeypatch, None)
    session = submitted()
    with pytest.raises(Violation) as caught:
        session.drain()
    assert caught.value.identifier == "L2"
    reason = caught.value.reason
    assert f"the last {EMPTY_PASS_BOUND + 1} passes empty (bound {EMPTY_PASS_BOUND})" in reason
    assert f"the last {2 * EMPTY_PASS_BOUND + 1} passes empty (bound 40)" in reason
    assert "its whole state comes again every 3 actions, for ever" in reason
    assert "scheduler.requests still has a" in reason


def test_a_slow_workload_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """More empty passes than the bound, and then it goes on: the single bound would have lied."""
    stall(monkeypatch, EMPTY_PASS_BOUND + 10)
    assert not Drain(submitted()).run()
    session = submitted()
    session.drain()
    assert session.is_quiescent
    assert session.statistics["slow drains"] == 1


def test_a_workload_slower_than_both_bounds_is_reported_without_a_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What counts its passes is never in the same state twice; nobody calls that for ever."""
    stall(monkeypatch, 2 * EMPTY_PASS_BOUND + 10)
    session = submitted()
    with pytest.raises(Violation, match="L2: not quiescent") as caught:
        session.drain()
    assert "for ever" not in caught.value.reason


def test_a_long_workload_is_not_stuck() -> None:
    """The same of the bound on actions: half of what it takes is enough, a third is not."""
    session = submitted()
    drain = Drain(submitted())
    assert drain.run()
    session.drain(bound=drain.actions // 2 + 1)
    assert session.statistics["slow drains"] == 1
    with pytest.raises(Violation, match="L2: not quiescent"):
        submitted().drain(bound=drain.actions // 3)


def test_a_replay_that_rests_where_the_engine_does_not_is_told() -> None:
    """Something outside the trace holds this one engine up: that is said, and not excused."""
    session = submitted()
    session.scheduler.max_num_scheduled_tokens = 0
    with pytest.raises(Violation, match="a replay comes to rest after"):
        session.drain()


@pytest.mark.parametrize("name", ["failed-load-retry-blocks-the-queue", "loads-that-fill-the-pool"])
def test_the_known_hangs_are_for_ever(name: str) -> None:
    """The two findings that hang are livelocks, and are recognized still."""
    trace = read_vllm_trace(_FINDINGS / name / "trace.jsonl")
    failure = attempt(trace.config, trace.actions).failure
    assert failure is not None
    assert failure.identifier == "L2"
    assert failure.known is not None
    assert "its whole state comes again every" in failure.reason


def test_states_differ_wherever_something_differs() -> None:
    """The state sees a token, a reference, a key and a queued job; it leaves out step numbers."""
    session = submitted()
    states = [whole_state(session)]
    for action in (SchedulePass(), Execute(), UpdateFromOutput()):
        session.do(action)
        states.append(whole_state(session))
    assert len(set(states)) == len(states)
    assert whole_state(session) == states[-1]
    session.scheduler.current_step += 1
    assert "current_step" in COUNTERS
    assert whole_state(session) == states[-1]
    block = session.scheduler.kv_cache_manager.block_pool.blocks[-1]
    block.ref_cnt += 1
    assert whole_state(session) != states[-1]
    block.ref_cnt -= 1
    session.requests["a"].num_preemptions += 1
    assert whole_state(session) != states[-1]
