"""What must happen in the end, judged on a scope's complete state graph (L1-L4)."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from cowtail.models import store_lookup
from cowtail.models.actions import (
    Abort,
    Action,
    Admit,
    Evict,
    Execute,
    ExpireLease,
    JobOutcome,
    LoadOutcome,
    LookUp,
    Report,
    ReportLoad,
    Reset,
    RunJob,
    RunLoad,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.lifecycle import is_quiescent
from cowtail.models.observations import Status
from cowtail.models.scope import Lookup, Scope
from cowtail.models.state import State
from cowtail.spec.exploration import StateGraph, Violation
from cowtail.spec.liveness import can_reach, drains
from cowtail.spec.machine import LifecycleMachine

Graph = StateGraph[State, Action]


@attrs.frozen
class LivenessProperty:
    """A property of whole state graphs; ``check`` returns a violation, or None."""

    identifier: str
    name: str
    sentence: str
    source: str
    check: Callable[[Scope, Graph], Violation[Action] | None]


def comes_to_rest(scope: Scope, graph: Graph) -> Violation[Action] | None:
    """L1: see ``LIVENESS``."""
    return can_reach(graph, lambda state: is_quiescent(scope, state), follow=is_benign)


def pins_drain(scope: Scope, graph: Graph) -> Violation[Action] | None:
    """L2: see ``LIVENESS``."""
    return drains(graph, is_owed_to_jobs, pins_are_drained, LifecycleMachine(scope))


def loads_arrive(scope: Scope, graph: Graph) -> Violation[Action] | None:
    """L3: see ``LIVENESS``."""
    if not scope.loads:
        return None
    return drains(graph, is_owed_to_loads, _loads_have_arrived, LifecycleMachine(scope))


def lookups_answer(scope: Scope, graph: Graph) -> Violation[Action] | None:
    """L4: see ``LIVENESS``."""
    if not scope.loads or scope.lookup is not Lookup.ASYNC:
        return None

    def answered(state: State) -> bool:
        return state.open_pass is not None or not any(
            request.status in (Status.WAITING, Status.PREEMPTED)
            and store_lookup.awaits_answer(scope, state, index)
            for index, request in enumerate(state.requests)
        )

    return drains(graph, lambda a: isinstance(a, LookUp), answered, LifecycleMachine(scope))


def is_benign(action: Action) -> bool:
    """Whether an action needs no help from, and does no harm by, the environment."""
    match action:
        case RunJob(outcome=outcome):
            return outcome is JobOutcome.OK
        case RunLoad(outcome=result):
            return result is LoadOutcome.OK
        case Report(again=again):
            return not again
        case LookUp(failed=failed) | Admit(lookup_failed=failed):
            return not failed
    return not isinstance(action, (Submit, Abort, Evict, ExpireLease, Reset))


def is_owed_to_jobs(action: Action) -> bool:
    """Whether an action is one that device, ranks and scheduler owe to every pinned job."""
    if isinstance(action, Report):
        return not action.again
    return isinstance(action, (Execute, UpdateFromOutput, RunJob, UpdateConnectorOutput))


def is_owed_to_loads(action: Action) -> bool:
    """Whether an action is one that ranks and scheduler owe to every load under way."""
    return isinstance(action, (RunLoad, ReportLoad, UpdateConnectorOutput))


def pins_are_drained(state: State) -> bool:
    """Whether no job that has been shipped is pinned; states inside a pass are not judged."""
    if state.open_pass is not None:
        return True
    queued = {job.job for job in state.queued_tails}
    return all(pin.job in queued for pin in state.pins)


def _loads_have_arrived(state: State) -> bool:
    return state.open_pass is not None or not state.loads


LIVENESS: tuple[LivenessProperty, ...] = (
    LivenessProperty(
        "L1",
        "quiescence",
        "From every reachable state the system can come to rest without submissions, aborts, "
        "failures, evictions, resets or repeated reports.",
        "domain L1",
        comes_to_rest,
    ),
    LivenessProperty(
        "L2",
        "pins drain",
        "If device, ranks and scheduler go on, every pin that has been shipped is released, "
        "whatever their order.",
        "domain L2, R6, K21, K28",
        pins_drain,
    ),
    LivenessProperty(
        "L3",
        "loads arrive",
        "If ranks and scheduler go on, every load that has been shipped ends, well or not.",
        "domain L3, R18, K31",
        loads_arrive,
    ),
    LivenessProperty(
        "L4",
        "lookups answer",
        "Every request that waits for the answer of a lookup gets one, whatever it is.",
        "domain L4, R18",
        lookups_answer,
    ),
)
"""In the order in which they are judged."""
