"""Named scopes: bounded instances that are explored completely.

Each is as small as it can be while still doing what its name says. Two Mamba or attention
blocks of two tokens with a hash unit of one are enough for a tail inside a block; sizes that
differ (2 and 4) make the LCM differ from both.

Left out on purpose: prompts of three and more blocks with two ranks, failures and preemption at
once. Each job multiplies the interleavings of queues, outboxes and reports; two requests with
one job each, or one request with two, already show every order that we know to matter.
"""

from __future__ import annotations

from cowtail.models.actions import (
    ACTIONS,
    Abort,
    Action,
    Evict,
    ExpireLease,
    FinishSend,
    ForeignPut,
    LookUp,
    Preempt,
    Promote,
    Report,
    ReportLoad,
    Reset,
    RunJob,
    RunLoad,
    SchedulePass,
    Shed,
    SpendAnswer,
    UpdateConnectorOutput,
)
from cowtail.models.scope import ChildKind, Lookup, Role, Scope
from cowtail.spec.names import unknown
from cowtail.spec.scopes import as_vllm, caches, loads, producers, stores

SCOPES: dict[str, Scope] = {
    scope.name: scope
    for theme in (producers, caches, stores, loads, as_vllm)
    for scope in theme.SCOPES
}
"""Every named scope by name."""


def scope_named(name: str) -> Scope:
    """Return a named scope. Raises ValueError with the nearest known name."""
    if name in SCOPES:
        return SCOPES[name]
    raise ValueError(unknown(name, "scope", SCOPES))


_UNDER_PRESSURE = ("preempt_under_pressure", "as_vllm_pressure")
"""Scopes whose pool is so small that requests are preempted for want of blocks."""


def required_actions(scope: Scope) -> tuple[str, ...]:
    """Return the names of the actions that exploring a named scope must take; none for others."""
    if SCOPES.get(scope.name) != scope:
        return ()
    possible = _possible_actions(scope)
    return tuple(action.name for action in ACTIONS if possible.get(action, True))


def _possible_actions(scope: Scope) -> dict[type[Action], bool]:
    """Return whether a scope's constants allow for an action, where that depends on them."""
    has_store = scope.role is not Role.NONE and any(
        child.kind is ChildKind.STORE for child in scope.children
    )
    saves = has_store and scope.role is not Role.CONSUMER
    sends = scope.role is not Role.NONE and any(child.retains for child in scope.children)
    return {
        SchedulePass: False,
        Abort: scope.may_abort != (),
        SpendAnswer: scope.lookup is Lookup.ASYNC
        and not scope.behaviours.answers_kept
        and len(scope.requests) > 1,
        Promote: scope.loads and not scope.behaviours.loads_settle_when_reported,
        Shed: not scope.behaviours.failed_extension_keeps and scope.name in _UNDER_PRESSURE,
        Preempt: bool(scope.max_preemptions) or scope.name in _UNDER_PRESSURE,
        RunJob: saves,
        Report: saves,
        UpdateConnectorOutput: saves or sends or scope.loads,
        LookUp: scope.loads and has_store and scope.lookup is Lookup.ASYNC,
        ExpireLease: bool(scope.max_expired_leases),
        RunLoad: scope.loads,
        ReportLoad: scope.loads,
        FinishSend: sends,
        ForeignPut: bool(scope.foreign),
        Evict: bool(scope.max_evictions),
        Reset: bool(scope.max_resets),
    }
