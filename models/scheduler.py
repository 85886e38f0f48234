"""The scheduling pass: begin, admit, extend, preempt, end (domain.md d).

A pass commits the scheduler before the device has run: counts advance, keys are registered,
blocks move. Device and ranks do not interleave with an open pass here: they touch memory,
queues and the store only, which no rule of the pass reads, so the order makes no difference.
"""

from __future__ import annotations

import attrs

from cowtail.models import (
    block_pool,
    boundaries,
    chunking,
    connector,
    deferred_frees,
    loads,
    lookup,
    store_lookup,
    tables,
)
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Chunk, Effects, Status
from cowtail.models.scope import Scope
from cowtail.models.state import (
    BlockTable,
    DeviceStep,
    OpenPass,
    Request,
    ScheduledChunk,
    State,
    known_tokens,
    tokens_in_flight,
    with_request,
)
from cowtail.models.tables import Allocation
from cowtail.models.transition import Transition

WAITING = (Status.WAITING, Status.PREEMPTED)
ADMISSIBLE = (*WAITING, Status.LOADED)


def begin_pass(scope: Scope, state: State) -> Transition:
    """Open a pass, if there is anything that it could do."""
    guard = begin_pass_guard(scope, state)
    if guard:
        raise NotEnabled(guard)
    return Transition(attrs.evolve(state, open_pass=OpenPass()))


def begin_pass_guard(scope: Scope, state: State) -> str:
    """Return why no pass can begin, or an empty string."""
    if state.open_pass is not None:
        return "a pass is open"
    if len(state.steps) >= scope.max_steps_in_flight:
        return f"{len(state.steps)} steps are in flight, the limit is {scope.max_steps_in_flight}"
    if _has_metadata(state):
        return ""
    opened = attrs.evolve(state, open_pass=OpenPass())
    for index, (spec, request) in enumerate(zip(scope.requests, state.requests, strict=True)):
        if chunking.has_tokens_to_schedule(spec, request):
            return ""
        if request.status in ADMISSIBLE and not _plan_admission(scope, opened, index).guard:
            return ""
    return "there is nothing to schedule and nothing to tell the workers"


def _has_metadata(state: State) -> bool:
    return bool(state.queued_tails or state.untold_finished or state.untold_preempted)


@attrs.frozen
class _Plan:
    """A chunk or a load that a pass could begin, or the guard that forbids it.

    ``loaded``: what registering a completed load did, before anything is allocated.
    """

    guard: str = ""
    hit: lookup.Hit | None = None
    start: int = 0
    end: int = 0
    pool: block_pool.Pool | None = None
    tables: tuple[BlockTable, ...] = ()
    loaded: Allocation | None = None
    load: loads.LoadPlan | None = None


def admit_guard(scope: Scope, state: State, index: int, lookup_failed: bool = False) -> str:
    """Return why a request cannot be admitted now, or an empty string."""
    return _plan_admission(scope, state, index, lookup_failed).guard


def _plan_admission(scope: Scope, state: State, index: int, lookup_failed: bool = False) -> _Plan:
    spec, request = scope.requests[index], state.requests[index]
    if state.open_pass is None:
        return _Plan("no pass is open")
    if request.status not in ADMISSIBLE:
        return _Plan(f"{spec.name!r} is {request.status.value}, not waiting")
    if state.open_pass.preempted:
        return _Plan("a request was preempted in this pass")
    if lookup_failed:
        guard = store_lookup.lookup_failed_guard(scope, state, index)
        if guard:
            return _Plan(guard)
    if request.status is Status.LOADED:
        return _plan_after_load(scope, state, index)
    if store_lookup.awaits_answer(scope, state, index):
        return _Plan(f"the answer of the lookup for {spec.name!r} has not arrived")
    hit = lookup.find_hit(scope, state.pool, spec.tokens[: known_tokens(spec, request)])
    offered = loads.supply(scope, state, index, hit.length, lookup_failed=lookup_failed)
    if offered is not None:
        load = loads.plan_load(scope, state, index, hit, offered)
        return _Plan(load.guard, load=load)
    end = chunking.chunk_end(scope, spec, request, hit.length)
    if end == hit.length:
        return _Plan("no chunk can be scheduled within the token budget")
    if state_computed_in_this_pass(scope, state, hit):
        return _Plan("the hit ends in a state that this very pass computes")
    adopted = tables.adopt_hit(scope, request.tables, hit)
    if copies_what_this_pass_writes(scope, state.open_pass, adopted):
        return _Plan("the hit would be copied from a block that this very pass writes")
    needed = tables.blocks_needed(scope, adopted, end)
    needed += tables.hit_blocks_in_free_list(state.pool, hit)
    if needed > len(state.pool.free):
        return _Plan(f"{needed} blocks are needed, {len(state.pool.free)} are free")
    return _Plan("", hit, hit.length, end, state.pool, adopted)


def _plan_after_load(scope: Scope, state: State, index: int) -> _Plan:
    """Plan the first chunk after a load: keys first, for they say whether a copy is due."""
    spec, request = scope.requests[index], state.requests[index]
    end = chunking.chunk_end(scope, spec, request, request.computed)
    if end == request.computed:
        return _Plan("no chunk can be scheduled within the token budget")
    loaded = Allocation(state.pool, request.tables)
    loaded = tables.register_keys(scope, spec, loaded, request.computed)
    needed = tables.blocks_needed(scope, loaded.tables, end)
    if needed > len(loaded.pool.free):
        return _Plan(f"{needed} blocks are needed, {len(loaded.pool.free)} are free")
    return _Plan("", None, request.computed, end, loaded.pool, loaded.tables, loaded)


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
    written = {
        block
        for chunk in opened.scheduled
        for group, table in enumerate(chunk.tables)
        for block in tables.blocks_written(scope, group, table, chunk.start, chunk.end)
    }
    return any(t.copy_due is not None and t.copy_due.source in written for t in adopted)


def admit(scope: Scope, state: State, index: int, lookup_failed: bool = False) -> Transition:
    """Adopt the longest local hit and schedule the first chunk, or begin the load of a longer one.

    Whatever comes of it, an answer that the request held is used up.
    """
    plan = _plan_admission(scope, state, index, lookup_failed)
    if plan.guard:
        raise NotEnabled(plan.guard)
    events = []
    if lookup_failed:
        state = store_lookup.with_failed_lookup(state)
        events.append("lookup failed")
    if plan.load is not None:
        begun = loads.begin_load(scope, state, index, plan.load)
        return attrs.evolve(begun, events=(*events, *begun.events))
    if plan.loaded is not None:
        return _schedule_after_load(scope, state, index, plan, plan.loaded)
    assert plan.hit is not None
    assert plan.pool is not None
    if scope.loads:
        request = attrs.evolve(state.requests[index], answer=None, leased=False)
        state = with_request(state, index, request)
    assert state.open_pass is not None
    if plan.hit.length:
        events.append("prefix hit")
    if state.requests[index].status is Status.PREEMPTED:
        events.append("resumed after preemption")
    if _copies_from_registered_tail(state, plan):
        events.append("consumer copy-on-write from a registered tail")
    pool = plan.pool
    for blocks in plan.hit.blocks:
        pool = block_pool.touch(pool, blocks)
    opened = attrs.evolve(state.open_pass, admitted=(*state.open_pass.admitted, index))
    state = attrs.evolve(state, open_pass=opened)
    return _schedule(scope, state, index, attrs.evolve(plan, pool=pool), tuple(events))


def _schedule_after_load(
    scope: Scope, state: State, index: int, plan: _Plan, loaded: Allocation
) -> Transition:
    """Schedule the first chunk after a load; what registering its keys did is of this pass."""
    assert state.open_pass is not None
    opened = attrs.evolve(
        state.open_pass,
        admitted=(*state.open_pass.admitted, index),
        offers=state.open_pass.offers + loaded.offers,
        registered=state.open_pass.registered + loaded.registered,
    )
    state = attrs.evolve(state, open_pass=opened)
    return _schedule(scope, state, index, plan, ("continued after a load", *loaded.events))


def _copies_from_registered_tail(state: State, plan: _Plan) -> bool:
    """Whether a copy due from the hit reads a block that is some request's registered tail."""
    tails = {
        table.marker.block
        for request in state.requests
        for table in request.tables
        if table.marker is not None
    }
    return any(t.copy_due is not None and t.copy_due.source in tails for t in plan.tables)


def extend_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a request cannot be extended now, or an empty string."""
    return _plan_extension(scope, state, index).guard


def _plan_extension(scope: Scope, state: State, index: int) -> _Plan:
    spec, request = scope.requests[index], state.requests[index]
    if state.open_pass is None:
        return _Plan("no pass is open")
    if is_scheduled(state, index):
        return _Plan(f"{spec.name!r} is scheduled in this pass already")
    if not chunking.has_tokens_to_schedule(spec, request):
        return _Plan(f"{spec.name!r} has no tokens to schedule")
    end = chunking.chunk_end(scope, spec, request, request.computed)
    if end == request.computed:
        return _Plan("no chunk can be scheduled within the token budget")
    processed = max(0, request.computed - tokens_in_flight(state, index))
    pool, kept = tables.remove_skipped(scope, state.pool, request.tables, processed)
    needed = tables.blocks_needed(scope, kept, end)
    if needed > len(pool.free):
        return _Plan(f"{needed} blocks are needed, {len(pool.free)} are free")
    return _Plan("", None, request.computed, end, pool, kept)


def is_scheduled(state: State, index: int) -> bool:
    """Whether the open pass has a chunk of this request."""
    assert state.open_pass is not None
    return any(chunk.request == index for chunk in state.open_pass.scheduled)


def extend(scope: Scope, state: State, index: int) -> Transition:
    """Schedule the next chunk of a running request."""
    plan = _plan_extension(scope, state, index)
    if plan.guard:
        raise NotEnabled(plan.guard)
    return _schedule(scope, state, index, plan, ())


def _schedule(
    scope: Scope, state: State, index: int, plan: _Plan, events: tuple[str, ...]
) -> Transition:
    """Allocate for the planned chunk, register its keys, and put it into the pass."""
    spec, request = scope.requests[index], state.requests[index]
    opened = state.open_pass
    assert opened is not None
    assert plan.pool is not None
    known = known_tokens(spec, request)
    samples = plan.end == known + request.placeholders
    allocation = tables.allocate(scope, plan.pool, spec.name, plan.tables, plan.end)
    allocation = tables.register_keys(scope, spec, allocation, min(plan.end, known))
    chunk = ScheduledChunk(
        index,
        plan.start,
        plan.end,
        samples,
        tuple(table.blocks for table in allocation.tables),
    )
    state = with_request(
        state,
        index,
        attrs.evolve(
            request,
            tables=allocation.tables,
            status=Status.RUNNING,
            computed=plan.end,
            placeholders=request.placeholders + samples,
        ),
    )
    state = attrs.evolve(
        state,
        pool=allocation.pool,
        open_pass=_with_allocation(opened, chunk, allocation),
    )
    effects = Effects(
        hit=None if plan.hit is None else plan.hit.length,
        chunk=Chunk(spec.name, plan.start, plan.end),
    )
    return Transition(state, effects, events + allocation.events)


def _with_allocation(opened: OpenPass, chunk: ScheduledChunk, allocation: Allocation) -> OpenPass:
    return attrs.evolve(
        opened,
        scheduled=(*opened.scheduled, chunk),
        copies=opened.copies + allocation.copies,
        offers=opened.offers + allocation.offers,
        registered=opened.registered + allocation.registered,
        new_blocks=opened.new_blocks + allocation.new_blocks,
    )


def preempt_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a request cannot be preempted now, or an empty string."""
    spec = scope.requests[index]
    if state.open_pass is None:
        return "no pass is open"
    if state.requests[index].status is not Status.RUNNING:
        return f"{spec.name!r} is {state.requests[index].status.value}, not running"
    if is_scheduled(state, index):
        return f"{spec.name!r} is scheduled in this pass already"
    if state.open_pass.admitted or state.open_pass.loads:
        return "a request was admitted in this pass"
    if state.spent.preemptions >= scope.max_preemptions and not _lacks_blocks(scope, state):
        return f"no request lacks blocks, and max_preemptions={scope.max_preemptions} are spent"
    return ""


def _lacks_blocks(scope: Scope, state: State) -> bool:
    """Whether some running, unscheduled request has tokens to schedule that do not fit."""
    return any(
        chunking.has_tokens_to_schedule(spec, request)
        and not is_scheduled(state, index)
        and bool(extend_guard(scope, state, index))
        for index, (spec, request) in enumerate(zip(scope.requests, state.requests, strict=True))
    )


def preempt(scope: Scope, state: State, index: int) -> Transition:
    """Take a running request's blocks away; it waits again, and its steps in flight are stale."""
    guard = preempt_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    opened = state.open_pass
    assert opened is not None
    free_of_charge = _lacks_blocks(scope, state)
    spent = state.spent
    if not free_of_charge:
        spent = attrs.evolve(spent, preemptions=spent.preemptions + 1)
    opened = attrs.evolve(opened, preempted=(*opened.preempted, index))
    state, events = take_back(scope, attrs.evolve(state, open_pass=opened, spent=spent), index)
    return Transition(state, Effects(), events)


def take_back(scope: Scope, state: State, index: int) -> tuple[State, tuple[str, ...]]:
    """Free a running request's blocks and let it wait again; its chunks in flight are stale."""
    request = state.requests[index]
    events = ["preempted"]
    if tokens_in_flight(state, index):
        events.append("preempted with a step in flight")
    if connector.has_unfinished_job(state, index):
        events.append("preempted with a job in flight")
    if any(table.marker is not None for table in request.tables):
        events.append("tail dropped: preempted")
    steps = tuple(_with_stale_chunks(step, index) for step in state.steps)
    state = attrs.evolve(state, steps=steps)
    freed = tables.blocks_to_free(request.tables)
    state = deferred_frees.give_back(scope, state, freed, len(state.steps))
    released = Request(
        tables=tuple(BlockTable() for _ in scope.groups),
        status=Status.PREEMPTED,
        outputs=request.outputs,
        load_failed=request.load_failed,
    )
    return with_request(state, index, released), tuple(events)


def _with_stale_chunks(step: DeviceStep, index: int) -> DeviceStep:
    chunks = tuple(
        attrs.evolve(chunk, stale=True) if chunk.request == index else chunk
        for chunk in step.chunks
    )
    return attrs.evolve(step, chunks=chunks)


def end_pass_guard(scope: Scope, state: State) -> str:
    """Return why the pass cannot end, or an empty string."""
    if state.open_pass is None:
        return "no pass is open"
    opened = state.open_pass
    if opened.scheduled or opened.preempted or opened.loads or _has_metadata(state):
        return ""
    return "nothing is scheduled and there is nothing to tell the workers"


def end_pass(scope: Scope, state: State) -> Transition:
    """Drain copies and handoffs, build the connector's metadata, and dispatch the step."""
    guard = end_pass_guard(scope, state)
    if guard:
        raise NotEnabled(guard)
    opened = state.open_pass
    assert opened is not None
    built = connector.build_metadata(scope, state, opened)
    state = built.state
    retained = [
        block
        for group in range(len(scope.groups))
        for copy in opened.copies
        if copy.group == group
        for block in (copy.source, copy.destination)
    ]
    step = DeviceStep(
        chunks=opened.scheduled,
        copies=opened.copies,
        new_blocks=opened.new_blocks,
        jobs=built.jobs,
        preempted=(*state.untold_preempted, *opened.preempted),
        finished=state.untold_finished,
    )
    state = attrs.evolve(
        loads.ship_loads(state, opened.loads),
        open_pass=None,
        steps=(*state.steps, step),
        untold_finished=(),
        untold_preempted=(),
    )
    state = deferred_frees.give_back(scope, state, [retained], len(state.steps))
    effects = Effects(
        copies=opened.copies,
        handoffs=opened.offers if boundaries.saves(scope.role) else (),
        jobs=connector.emitted(scope, built.jobs),
        loads=loads.emitted(scope, state, opened.loads),
    )
    return Transition(state, effects, built.events)
