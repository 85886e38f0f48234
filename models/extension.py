"""Extending a running request within a pass: its next chunk, or its next tokens (domain.md d)."""

from __future__ import annotations

import attrs

from cowtail.models import chunking, deferred_frees, planning, tables
from cowtail.models.block_pool import Pool
from cowtail.models.errors import NotEnabled
from cowtail.models.planning import ChunkPlan, Refusal
from cowtail.models.scope import Policy, Scope
from cowtail.models.state import State, tokens_in_flight, with_request
from cowtail.models.tables import Allocation
from cowtail.models.transition import Transition


def plan_extension(scope: Scope, state: State, index: int) -> ChunkPlan | Refusal:
    """Plan the next chunk of a running request, or say why there is none now."""
    spec, request = scope.requests[index], state.requests[index]
    if state.open_pass is None:
        return Refusal("no pass is open")
    if is_scheduled(state, index):
        return Refusal(f"{spec.name!r} is scheduled in this pass already")
    if not chunking.has_tokens_to_schedule(spec, request):
        return Refusal(f"{spec.name!r} has no tokens to schedule")
    if scope.policy is not Policy.ANY and _later_is_scheduled(state, index):
        return Refusal(f"a request that was admitted after {spec.name!r} is scheduled already")
    return _plan_from(scope, state, index, state.pool)


def _plan_from(scope: Scope, state: State, index: int, pool: Pool) -> ChunkPlan | Refusal:
    """Plan the next chunk with the free blocks of ``pool``, and those that are left behind."""
    request = state.requests[index]
    processed = max(0, request.computed - tokens_in_flight(state, index))
    pool, kept = tables.remove_skipped(scope, pool, request.tables, processed)
    begun = Allocation(pool, kept)
    return planning.plan_chunk(scope, state, index, begun, request.computed, request.junction)


def extend(scope: Scope, state: State, index: int) -> Transition:
    """Schedule the next chunk of a running request."""
    plan = plan_extension(scope, state, index)
    if isinstance(plan, Refusal):
        raise NotEnabled(plan.reason)
    return planning.schedule(scope, state, index, plan, ())


def shed_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a request gives nothing back for want of blocks, or an empty string."""
    if scope.behaviours.failed_extension_keeps:
        return "a request that does not fit keeps everything"
    plan = plan_extension(scope, state, index)
    if not isinstance(plan, Refusal):
        return f"{scope.requests[index].name!r} fits"
    return "" if plan.lacks_blocks else plan.reason


def shed(scope: Scope, state: State, index: int) -> Transition:
    """Give back the blocks that a request which does not fit has left behind."""
    guard = shed_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    request = state.requests[index]
    processed = max(0, request.computed - tokens_in_flight(state, index))
    pool, kept = tables.remove_skipped(scope, state.pool, request.tables, processed)
    shorter = attrs.evolve(request, tables=kept)
    return Transition(with_request(attrs.evolve(state, pool=pool), index, shorter))


def is_scheduled(state: State, index: int) -> bool:
    """Whether the open pass has a chunk of this request."""
    assert state.open_pass is not None
    return any(chunk.request == index for chunk in state.open_pass.scheduled)


def _later_is_scheduled(state: State, index: int) -> bool:
    later = state.admitted[state.admitted.index(index) + 1 :]
    return any(is_scheduled(state, other) for other in later)


def someone_lacks_blocks(scope: Scope, state: State) -> bool:
    """Whether some running, unscheduled request has tokens to schedule that do not fit.

    Not even with every deferred free returned: what is on its way back is waited for, nobody is
    preempted for it (K41).
    """
    spares = scope.behaviours.returning_blocks_spare
    pool = deferred_frees.with_all_returned(state) if spares else state.pool
    for index, (spec, request) in enumerate(zip(scope.requests, state.requests, strict=True)):
        if not chunking.has_tokens_to_schedule(spec, request) or is_scheduled(state, index):
            continue
        plan = _plan_from(scope, state, index, pool)
        if isinstance(plan, Refusal) and plan.lacks_blocks:
            return True
    return False
