"""What must hold of every transition, about who is released by whom (T2, T5, T6, T7)."""

from __future__ import annotations

import attrs

from cowtail.models import block_pool, extension
from cowtail.models.actions import Action, LoadOutcome, Preempt, UpdateConnectorOutput
from cowtail.models.observations import Status
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.step_invariants.property import StepProperty


def released_once(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T2: see ``STEP_PROPERTIES``."""
    kept = {pin.job for pin in after.pins}
    arrived = {(job, rank) for job, rank in before.inbox}
    for pin in before.pins:
        if pin.job in kept:
            continue
        silent = [rank for rank in pin.ranks_owed if (pin.job, rank) not in arrived]
        if not isinstance(action, UpdateConnectorOutput) or silent:
            return f"the pin of job {pin.job} went although ranks {silent} have not reported"
    return None


def held_released_by_the_last_rank(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T5: see ``STEP_PROPERTIES``."""
    if not before.held:
        return None
    kept = {held.request for held in after.held}
    for held in before.held:
        if held.request in kept:
            continue
        arrived = {rank for index, rank, _ in before.load_inbox if index == held.request}
        if held.sending:
            arrived = {rank for index, rank in before.send_inbox if index == held.request}
        silent = [rank for rank in held.ranks_owed if rank not in arrived]
        if not isinstance(action, UpdateConnectorOutput) or silent:
            name = scope.requests[held.request].name
            return f"{name!r} was released although ranks {silent} have not reported"
        unsent = [
            r for r, w in enumerate(after.ranks) if any(s[0] == held.request for s in w.sends)
        ]
        if unsent:
            name = scope.requests[held.request].name
            return f"{name!r} was released although ranks {unsent} still send it for some child"
    return None


def loads_complete_by_the_last_rank(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T6: see ``STEP_PROPERTIES``."""
    for load in before.loads:
        old, new = before.requests[load.request], after.requests[load.request]
        if old.status is not Status.LOADING or new.status in (Status.LOADING, Status.FINISHED):
            continue
        name = scope.requests[load.request].name
        results = {rank: well for i, rank, well in before.load_inbox if i == load.request}
        silent = [rank for rank in load.ranks_owed if rank not in results]
        if not isinstance(action, UpdateConnectorOutput) or silent:
            return f"the load of {name!r} ended although ranks {silent} have not reported"
        went_well = not load.failed and all(results.values())
        loaded = new.status is Status.LOADED and new.settles is not LoadOutcome.FAILED
        if loaded != went_well:
            return f"the load of {name!r} {'succeeded' if went_well else 'failed'}: {new.status}"
    return None


def blocks_on_their_way_back_are_waited_for(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T7: see ``STEP_PROPERTIES``."""
    if not isinstance(action, Preempt) or after.spent.preemptions > before.spent.preemptions:
        return None
    pool = before.pool
    for waiting in before.deferred:
        pool = block_pool.free(pool, waiting.blocks)
    if extension.someone_lacks_blocks(scope, attrs.evolve(before, pool=pool, deferred=())):
        return None
    return f"{action.request!r} was preempted, and blocks on their way back would have done"


STEP_PROPERTIES: tuple[StepProperty, ...] = (
    StepProperty(
        "T2",
        "released by the last rank",
        "A pin goes only when the scheduler consumes the last report that its job was owed.",
        "R6, R15",
        released_once,
    ),
    StepProperty(
        "T5",
        "held until the last rank",
        "A held request is released only when the scheduler consumes the last report that it was "
        "owed, and every child has sent it.",
        "domain S15, domain g, R5, K43",
        held_released_by_the_last_rank,
    ),
    StepProperty(
        "T6",
        "loaded by the last rank",
        "A load ends only when the scheduler consumes the last rank's report of it, and well only "
        "if it went well on every rank.",
        "R18, K33, K38",
        loads_complete_by_the_last_rank,
    ),
    StepProperty(
        "T7",
        "no preemption for blocks on their way back",
        "Lack of blocks preempts nobody if what is freed, and only deferred, would do.",
        "domain L1, K41",
        blocks_on_their_way_back_are_waited_for,
    ),
)
"""In the order in which they are judged."""
