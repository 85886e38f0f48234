"""vLLM's MultiConnector of two store connectors, each with a store of its own (R38)."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from cowtail.harness.contract import contract_level
from cowtail.harness.findings.emitted_test import NotEmitted, emitted_test
from cowtail.harness.findings.trace import VllmTrace, dump_vllm_trace, parse_vllm_trace
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.multi import number
from cowtail.impl.vllm_engine.session import Session
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.actions import (
    Action,
    Execute,
    JobOutcome,
    Report,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec

pytestmark = pytest.mark.vllm

TWO = EngineConfig(requests=(RequestSpec("a", "x" * 45),), num_ranks=1, connectors=2)
STEPS: tuple[Action, ...] = (SchedulePass(), Execute(), UpdateFromOutput()) * 3
LOADS = attrs.evolve(TWO, stored=(RequestSpec("stored", "x" * 45),))


def test_both_children_are_handed_the_tail_and_each_pins_it() -> None:
    session = Session(TWO)
    session.do_all(Submit("a"), *STEPS)
    assert session.statistics["tails handed off by CoW"] == 2
    assert session.statistics["tails handed to a second connector"] == 1
    assert sorted(session.view.pins()) == [0, 1, number(1, 0), number(1, 1)]
    session.do_all(RunJob(0), RunJob(1), Report(1, number(1, 0)))
    session.drain()
    assert {entry for _, entry in session.store.entries()} == {
        entry for _, entry in session.store.of_child(1).entries()
    }


def test_one_child_loads_and_it_is_counted_once() -> None:
    session = Session(LOADS)
    session.do_all(Submit("a"), SchedulePass())
    assert session.ranks[0].next_load is not None
    assert session.ranks[1].next_load is None
    session.drain()
    assert session.statistics["loads done"] == 1
    assert session.statistics["loads by a second connector"] == 0


def test_the_second_child_loads_where_the_first_has_nothing() -> None:
    session = Session(LOADS)
    session.store.values.clear()
    session.do_all(Submit("a"), SchedulePass(), RunLoad(1))
    session.drain()
    assert session.statistics["loads done"] == 1
    assert session.statistics["loads by a second connector"] == 1


def test_a_put_that_one_child_fails_is_in_the_store_of_the_other() -> None:
    session = Session(TWO)
    session.do_all(Submit("a"), *STEPS, RunJob(0, JobOutcome.FAILED))
    session.drain()
    assert len(list(session.store.entries())) < len(list(session.store.of_child(1).entries()))


def planted_loser_loads(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    """Plant: both children are told to load."""
    multi = surface().multi_connector.MultiConnector

    def all_get_the_count(self: Any, request: Any, blocks: Any, count: int) -> None:
        for child in self._connectors:
            child.update_state_after_alloc(request, blocks, count)

    monkeypatch.setattr(multi, "update_state_after_alloc", all_get_the_count)


def planted_half_the_reports(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    """Plant: what the second child's workers report never reaches it."""
    second = session.scheduler.connector._connectors[1]
    monkeypatch.setattr(second, "update_connector_output", lambda output: None)


@pytest.mark.parametrize(
    ("config", "plant", "identifier"),
    [(LOADS, planted_loser_loads, "V6"), (TWO, planted_half_the_reports, "S9")],
)
def test_what_a_multi_connector_does_wrong_is_seen(
    monkeypatch: pytest.MonkeyPatch,
    config: EngineConfig,
    plant: Callable[[pytest.MonkeyPatch, Session], None],
    identifier: str,
) -> None:
    session = Session(config)
    plant(monkeypatch, session)
    session.do(Submit("a"))
    with pytest.raises(Violation, match=f"^({identifier}): "):
        session.drain()


def test_it_is_checked_at_safety_level_and_that_is_said() -> None:
    with contract_level():
        session = Session(TWO)
    assert session.statistics["not at contract level: a MultiConnector"] == 1


def test_a_trace_keeps_it_and_has_no_test_that_stands_alone() -> None:
    trace = VllmTrace(TWO, (Submit("a"), RunJob(1), UpdateConnectorOutput()))
    assert parse_vllm_trace(dump_vllm_trace(trace)) == trace
    with pytest.raises(NotEmitted, match="connectors=2"):
        emitted_test(trace)


@pytest.mark.parametrize("changes", [{"connectors": 3}, {"lookup_async": True}])
def test_what_is_not_driven_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="connectors="):
        attrs.evolve(TWO, **changes)
