"""What a pass could schedule: a chunk with everything that it takes, or why there is none.

A plan is made for the guard and carried out for the effect, so that an action does exactly what
made it possible.
"""

from __future__ import annotations

import attrs

from cowtail.models import chunking, keys, state_columns, store_lookup, tables
from cowtail.models.observations import Chunk, Effects, Status
from cowtail.models.scope import Policy, Scope
from cowtail.models.state import (
    BlockTable,
    OpenPass,
    ScheduledChunk,
    State,
    known_tokens,
    tokens_in_flight,
    with_request,
)
from cowtail.models.tables import Allocation
from cowtail.models.transition import Transition


@attrs.frozen
class Refusal:
    """Why something cannot be scheduled now; ``lacks_blocks``: there are not enough of them."""

    reason: str
    lacks_blocks: bool = False


@attrs.frozen
class ChunkPlan:
    """A chunk [start, end) that a pass can schedule.

    The last ``drafts`` tokens are drafts; the state at ``checkpoint`` tokens, if that is not 0, is
    exported from within the chunk. ``begun`` is what the allocation starts from: blocks left
    behind are retired, those of a hit are touched. ``hit``: what a lookup found, in tokens.
    """

    start: int
    end: int
    drafts: int
    checkpoint: int
    junction: int
    begun: Allocation
    hit: int | None = None


def plan_chunk(
    scope: Scope, state: State, index: int, begun: Allocation, start: int, junction: int
) -> ChunkPlan | Refusal:
    """Plan the next chunk of a request, from ``start`` on, if budget and blocks suffice."""
    spec, request = scope.requests[index], state.requests[index]
    opened = state.open_pass
    assert opened is not None
    budget = chunking.budget_left(scope, opened)
    end = chunking.chunk_end(scope, spec, request, start, budget, junction)
    if end <= start:
        return Refusal("no chunk can be scheduled within the token budget")
    drafts = 0
    if scope.speculative_tokens:
        in_flight = tokens_in_flight(state, index)
        drafts = chunking.drafts_to_schedule(scope, spec, request, start, end, budget, in_flight)
    known = known_tokens(spec, request)
    checkpoint = chunking.internal_checkpoint(scope, spec, known, start, end)
    end += drafts
    needed = tables.blocks_needed(scope, begun.tables, end, checkpoint)
    if needed > len(begun.pool.free):
        reason = f"{needed} blocks are needed, {len(begun.pool.free)} are free"
        return Refusal(reason, lacks_blocks=True)
    return ChunkPlan(start, end, drafts, checkpoint, junction, begun)


def schedule(
    scope: Scope, state: State, index: int, plan: ChunkPlan, events: tuple[str, ...]
) -> Transition:
    """Allocate for the planned chunk, register its keys, and put it into the pass."""
    spec, request = scope.requests[index], state.requests[index]
    opened = state.open_pass
    assert opened is not None
    known = known_tokens(spec, request)
    samples = plan.end - plan.drafts == known + request.placeholders
    allocation = tables.allocate(scope, plan.begun, spec.name, plan.end, plan.checkpoint)
    allocation = keys.register_keys(
        scope, spec, allocation, plan.start, min(plan.end, known), plan.junction
    )
    mirror = tables.workers_tables(request, allocation.tables)
    running = tuple(table.running for table in allocation.tables)
    chunk = ScheduledChunk(
        index,
        plan.start,
        plan.end,
        samples,
        tables.tables_of_step(scope, mirror, allocation.tables, plan.start),
        drafts=plan.drafts,
        accepted=chunking.accepted_drafts(spec, request.outputs, plan.drafts),
        running=running if any(running) else (),
        checkpoint=plan.checkpoint,
        exports=allocation.exports if plan.checkpoint else (),
        keys=allocation.keyed if scope.policy is Policy.PRIORITY else (),
    )
    request = attrs.evolve(
        request,
        tables=_where_states_go(scope, chunk, allocation.tables),
        status=Status.RUNNING,
        computed=plan.end,
        placeholders=request.placeholders + samples + plan.drafts,
        drafted=plan.drafts,
        junction=plan.junction,
        worker_tables=mirror,
        load_failed=store_lookup.is_given_up(scope, request),
        prefilling=not samples and not scope.behaviours.loads_reserve_for_themselves,
    )
    state = attrs.evolve(
        with_request(state, index, request),
        pool=allocation.pool,
        open_pass=_with_allocation(opened, chunk, allocation),
    )
    if plan.drafts:
        events += ("drafts scheduled",)
    effects = Effects(hit=plan.hit, chunk=Chunk(spec.name, plan.start, plan.end))
    return Transition(state, effects, events + allocation.events)


def _where_states_go(
    scope: Scope, chunk: ScheduledChunk, allocated: tuple[BlockTable, ...]
) -> tuple[BlockTable, ...]:
    """Note where the chunk will leave each Mamba group's state; only drafts make a difference."""
    if not scope.speculative_tokens:
        return allocated
    return tuple(
        attrs.evolve(table, running=state_columns.after_chunk(scope, chunk, group))
        if scope.groups[group].is_mamba
        else table
        for group, table in enumerate(allocated)
    )


def _with_allocation(opened: OpenPass, chunk: ScheduledChunk, allocation: Allocation) -> OpenPass:
    return attrs.evolve(
        opened,
        scheduled=(*opened.scheduled, chunk),
        copies=opened.copies + allocation.copies,
        offers=opened.offers + allocation.offers,
        registered=opened.registered + allocation.registered,
        new_blocks=opened.new_blocks + allocation.new_blocks,
    )
