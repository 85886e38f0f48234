"""Admitting a request to a pass: from the cache, for a load, or after one (domain.md c).

The local cache is looked up first, then what the connectors supply. A hit is refused as long as
this very pass computes, or copies from, what it ends in: its bytes come too late for this pass.
"""

from __future__ import annotations

import attrs

from cowtail.models import keys, loads, lookup, planning, store_lookup, tables
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Status
from cowtail.models.planning import ChunkPlan, Refusal
from cowtail.models.scope import Scope
from cowtail.models.state import BlockTable, OpenPass, State, known_tokens, with_request
from cowtail.models.tables import Allocation
from cowtail.models.transition import Transition

WAITING = (Status.WAITING, Status.PREEMPTED)
ADMISSIBLE = (*WAITING, Status.LOADED)


def plan_admission(
    scope: Scope, state: State, index: int, lookup_failed: bool = False
) -> ChunkPlan | loads.LoadPlan | Refusal:
    """Plan the first chunk of a waiting or loaded request, or its load, or say why there is none.

    ``lookup_failed``: the store, looked up at once, answers with an error.
    """
    spec, request = scope.requests[index], state.requests[index]
    if state.open_pass is None:
        return Refusal("no pass is open")
    if request.status not in ADMISSIBLE:
        return Refusal(f"{spec.name!r} is {request.status.value}, not waiting")
    if state.open_pass.preempted:
        return Refusal("a request was preempted in this pass")
    if lookup_failed:
        guard = store_lookup.lookup_failed_guard(scope, state, index)
        if guard:
            return Refusal(guard)
    if request.status is Status.LOADED:
        return _plan_after_load(scope, state, index)
    if store_lookup.awaits_answer(scope, state, index):
        return Refusal(f"the answer of the lookup for {spec.name!r} has not arrived")
    hit = lookup.find_hit(scope, state.pool, spec.tokens[: known_tokens(spec, request)])
    offered = loads.supply(scope, state, index, hit.length, lookup_failed=lookup_failed)
    if offered is not None:
        return loads.plan_load(scope, state, index, hit, offered)
    return _plan_with_hit(scope, state, index, hit)


def _plan_with_hit(scope: Scope, state: State, index: int, hit: lookup.Hit) -> ChunkPlan | Refusal:
    """Plan the first chunk after what the local cache supplies."""
    assert state.open_pass is not None
    if state_computed_in_this_pass(scope, state, hit):
        return Refusal("the hit ends in a state that this very pass computes")
    adopted = tables.adopt_hit(scope, state.requests[index].tables, hit)
    refuses = scope.behaviours.chained_copies_refused
    if refuses and copies_what_this_pass_writes(scope, state.open_pass, adopted):
        return Refusal("the hit would be copied from a block that this very pass writes")
    begun = Allocation(tables.touch_adopted(state.pool, adopted), adopted)
    plan = planning.plan_chunk(scope, state, index, begun, hit.length, hit.junction)
    return plan if isinstance(plan, Refusal) else attrs.evolve(plan, hit=hit.length)


def _plan_after_load(scope: Scope, state: State, index: int) -> ChunkPlan | Refusal:
    """Plan the first chunk after a load: keys first, for they say whether a copy is due."""
    spec, request = scope.requests[index], state.requests[index]
    if request.settles is not None:
        return Refusal(f"no pass has taken note that the load of {spec.name!r} is over")
    brought = Allocation(state.pool, request.tables)
    computed = request.computed
    loaded = keys.register_keys(scope, spec, brought, computed, computed, request.junction)
    return planning.plan_chunk(scope, state, index, loaded, request.computed, request.junction)


def state_computed_in_this_pass(scope: Scope, state: State, hit: lookup.Hit) -> bool:
    """Whether the hit ends in a Mamba block whose primary key this pass registered or moved."""
    assert state.open_pass is not None
    return any(
        state.pool.keys[blocks[-1]][0] in state.open_pass.registered
        for group, blocks in zip(scope.groups, hit.blocks, strict=True)
        if group.is_mamba and blocks
    )


def copies_what_this_pass_writes(
    scope: Scope, opened: OpenPass, adopted: tuple[BlockTable, ...]
) -> bool:
    """Whether a copy that is due would read a block that a chunk of this pass writes.

    All copies of a step read before any writes, and before the forward pass: what this pass
    puts into a block, by copy or by computation, comes too late for another copy.
    """
    sources = {table.copy_due.source for table in adopted if table.copy_due is not None}
    return any(
        block in sources
        for chunk in (opened.scheduled if sources else ())
        for group in range(len(scope.groups))
        for block in tables.blocks_written(scope, group, chunk)
    )


def admit(scope: Scope, state: State, index: int, lookup_failed: bool = False) -> Transition:
    """Adopt the longest local hit and schedule the first chunk, or begin the load of a longer one.

    Whatever comes of it, an answer that the request held is used up.
    """
    plan = plan_admission(scope, state, index, lookup_failed)
    if isinstance(plan, Refusal):
        raise NotEnabled(plan.reason)
    events: tuple[str, ...] = ()
    if lookup_failed:
        state = store_lookup.with_failed_lookup(state)
        events = ("lookup failed",)
    if isinstance(plan, loads.LoadPlan):
        begun = loads.begin_load(scope, state, index, plan)
        return attrs.evolve(begun, events=events + begun.events)
    request = state.requests[index]
    if request.answer is not None or request.leased:
        state = with_request(state, index, attrs.evolve(request, answer=None, leased=False))
    if plan.hit:
        events += ("prefix hit",)
    if request.status is Status.PREEMPTED:
        events += ("resumed after preemption",)
    if request.status is Status.LOADED:
        events += ("continued after a load",)
    if copies_from_registered_tail(state, plan.begun.tables):
        events += ("consumer copy-on-write from a registered tail",)
    opened = state.open_pass
    assert opened is not None
    state = attrs.evolve(
        state,
        open_pass=attrs.evolve(opened, admitted=(*opened.admitted, index)),
        admitted=(*(other for other in state.admitted if other != index), index),
    )
    return planning.schedule(scope, state, index, plan, events)


def spend_answer_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a request does not lose its answer for nothing, or an empty string."""
    spec, request = scope.requests[index], state.requests[index]
    if scope.behaviours.answers_kept:
        return "an answer is kept until its request is admitted"
    if request.answer is None:
        return f"{spec.name!r} has no answer"
    needed = scope.behaviours.passes_need_work
    if needed and not isinstance(plan_admission(scope, state, index), Refusal):
        return f"{spec.name!r} can be admitted, and may be all that the pass has to do"
    return ""


def spend_answer(scope: Scope, state: State, index: int) -> Transition:
    """Take a request's answer away, and what it leases: it will be looked up again."""
    guard = spend_answer_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    request = attrs.evolve(state.requests[index], answer=None, leased=False)
    return Transition(with_request(state, index, request))


def copies_from_registered_tail(state: State, adopted: tuple[BlockTable, ...]) -> bool:
    """Whether a copy due from the hit reads a block that is some request's registered tail."""
    tails = {
        table.marker.block
        for request in state.requests
        for table in request.tables
        if table.marker is not None
    }
    return any(t.copy_due is not None and t.copy_due.source in tails for t in adopted)
