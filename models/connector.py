"""The store connector, scheduler side: trackers, handoffs, jobs, pins (domain.md f).

A handoff becomes a numbered store job whose blocks are pinned until every worker rank has
reported it (R6). The request itself is never retained. Progress of tails is kept apart from
that of normal saves (R19), and a handoff-only job saves no prefix (R10).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from cowtail.models import block_pool, boundaries
from cowtail.models.observations import NULL_BLOCK, Handoff, Put, Status, StoreJob
from cowtail.models.scope import ChildKind, RequestSpec, Role, Scope
from cowtail.models.state import (
    JobMeta,
    OpenPass,
    PinnedJob,
    ScheduledChunk,
    State,
    Tracker,
    known_tokens,
    with_request,
)


@attrs.frozen
class SaveRequest:
    """A save that the connector decided on in this pass; it may yet turn out to be empty.

    ``completed`` is how many tokens this request's computation will have covered; ``publish``
    asks for the attention blocks up to the replay boundary although no tail is handed off.
    """

    request: int
    save_to: int
    completed: int
    publish: bool = False
    mamba_puts: tuple[Put, ...] = ()


@attrs.frozen
class BuiltMetadata:
    """What the connector ships with a step, and the state after pinning it."""

    state: State
    jobs: tuple[JobMeta, ...]
    events: tuple[str, ...] = ()


def store_child(scope: Scope) -> int | None:
    """Return the position of the store among the children, or None without one."""
    return next((i for i, c in enumerate(scope.children) if c.kind is ChildKind.STORE), None)


def build_metadata(scope: Scope, state: State, opened: OpenPass) -> BuiltMetadata:
    """Update trackers, turn saves and offers into pinned jobs, flush the queued tails (R14)."""
    if scope.role is Role.NONE or store_child(scope) is None:
        return BuiltMetadata(state, ())
    trackers = list(state.trackers)
    for index in state.untold_finished:
        trackers[index] = None
    for index in (*state.untold_preempted, *opened.preempted):
        if trackers[index] is not None:
            trackers[index] = Tracker()
    saves = _considered_saves(scope, state, opened, trackers)
    state = attrs.evolve(state, trackers=tuple(trackers))
    if not boundaries.saves(scope.role):
        return BuiltMetadata(state, ())
    saves, events = attach_offers(scope, state, saves, opened.offers)
    jobs = []
    for save in saves:
        state, job = emit_job(scope, state, save)
        if job is not None:
            jobs.append(job)
    flushed = state.queued_tails
    state = attrs.evolve(state, queued_tails=())
    return BuiltMetadata(state, (*jobs, *flushed), events)


def _considered_saves(
    scope: Scope, state: State, opened: OpenPass, trackers: list[Tracker | None]
) -> list[SaveRequest]:
    """Advance the trackers of scheduled requests (in place) and return the saves that are due."""
    saves = []
    for chunk in _in_order_of_jobs(scope, opened, trackers):
        spec = scope.requests[chunk.request]
        known = known_tokens(spec, state.requests[chunk.request])
        tracker = trackers[chunk.request]
        if chunk.request in opened.admitted:
            tracker = Tracker(token_len=min(chunk.end, known), prefill_end=known)
        elif tracker is None or chunk.start >= tracker.prefill_end:
            continue
        else:
            added = min(known - tracker.token_len, chunk.end - chunk.start)
            tracker = attrs.evolve(tracker, token_len=tracker.token_len + added)
        tracker, save = consider_save(scope, spec, chunk.request, tracker)
        trackers[chunk.request] = tracker
        if save is not None:
            saves.append(save)
    return saves


def _in_order_of_jobs(
    scope: Scope, opened: OpenPass, trackers: Sequence[Tracker | None]
) -> list[ScheduledChunk]:
    """Return the chunks of a pass in the order in which their requests' jobs are numbered."""
    chunks = list(opened.scheduled)
    if not scope.behaviours.jobs_as_scheduled:
        new = [trackers[chunk.request] is None for chunk in chunks]
        chunks.sort(key=lambda chunk: not new[opened.scheduled.index(chunk)])
    return chunks


def consider_save(
    scope: Scope, spec: RequestSpec, index: int, tracker: Tracker
) -> tuple[Tracker, SaveRequest | None]:
    """Decide whether a request's progress is worth a save: another LCM, or its prompt's tail."""
    save_to = (
        tracker.token_len // boundaries.lcm_block_size(scope) * boundaries.lcm_block_size(scope)
    )
    publish = (
        boundaries.partial_hits(scope)
        and not tracker.tail_sent
        and len(spec.prompt) <= tracker.token_len
    )
    if save_to <= tracker.num_saved and not publish:
        return tracker, None
    save = SaveRequest(index, save_to, tracker.token_len, publish)
    advanced = attrs.evolve(tracker, num_saved=save_to, tail_sent=tracker.tail_sent or publish)
    return advanced, save


def attach_offers(
    scope: Scope, state: State, saves: list[SaveRequest], offers: tuple[Handoff, ...]
) -> tuple[list[SaveRequest], tuple[str, ...]]:
    """Attach each acceptable offer to its request's save, or to a handoff-only one (R7, R10)."""
    attached = list(saves)
    events = []
    for offer in offers:
        index = scope.index(offer.request)
        tracker = state.trackers[index]
        if tracker is None or offer.boundary > tracker.prefill_end or offer.block == NULL_BLOCK:
            events.append("handoff refused")
            continue
        if offer.boundary % scope.groups[offer.group].block_size:
            events.append("tail handed off by copy-on-write")
        else:
            events.append("full state handed off")
        put = Put(offer.group, offer.block, offer.boundary)
        for position, save in enumerate(attached):
            if save.request == index:
                attached[position] = attrs.evolve(save, mamba_puts=(*save.mamba_puts, put))
                break
        else:
            attached.append(SaveRequest(index, 0, tracker.token_len, False, (put,)))
    return attached, tuple(events)


def _remember_handoffs(state: State, save: SaveRequest) -> State:
    """Record in the ghost what this generation handed over: what was accepted, and no refusal."""
    request = state.requests[save.request]
    handed = tuple((put.group, put.boundary) for put in save.mamba_puts)
    request = attrs.evolve(request, handed_off=request.handed_off + handed)
    return with_request(state, save.request, request)


def attention_tail_puts(
    scope: Scope, spec: RequestSpec, tables: tuple[tuple[int, ...], ...], save: SaveRequest
) -> tuple[Put, ...]:
    """Return the attention blocks that a lookup at the replay boundary needs beside the state.

    From the last LCM boundary below it, which normal saves leave out, in chunks by ceiling
    division. Where they end is each group's own matter: see ``tail_end``.
    """
    tails = {
        put.boundary for put in save.mamba_puts if put.boundary % scope.groups[put.group].block_size
    }
    boundary = boundaries.replay_boundary(scope, spec)
    if boundary == 0 or not (save.publish or boundary in tails):
        return ()
    lcm = boundaries.lcm_block_size(scope)
    start = boundary // lcm * lcm
    puts = []
    for index, group in enumerate(scope.groups):
        if group.is_mamba:
            continue
        size = group.block_size
        end = tail_end(scope, index, boundary, save.completed)
        last = min(math.ceil(end / size), len(tables[index]))
        for column in range(start // size, last):
            block = tables[index][column]
            if block != NULL_BLOCK:
                puts.append(Put(index, block, min((column + 1) * size, end)))
    return tuple(puts)


def tail_end(scope: Scope, group: int, boundary: int, completed: int) -> int:
    """Return up to where a group is stored for a lookup at ``boundary``; 0 for not at all (R26).

    An EAGLE group is probed one margin further, and stored as far once that is computed (R25).
    Until then the boundary is inside a block of some Mamba group, or nothing would be stored
    beside a state: it is covered exactly, without a companion.
    """
    end = boundary + boundaries.margins(scope)[group]
    if end <= completed:
        return end
    through = scope.behaviours.tail_without_companion
    return boundary if through and boundary <= completed else 0


def emit_job(scope: Scope, state: State, save: SaveRequest) -> tuple[State, JobMeta | None]:
    """Number a save and pin its blocks, one reference each (R6, R8); None if it stores nothing."""
    spec = scope.requests[save.request]
    tables = tuple(table.blocks for table in state.requests[save.request].tables)
    puts = attention_tail_puts(scope, spec, tables, save) + save.mamba_puts
    if not puts and not save.save_to:
        return state, None
    tracker = state.trackers[save.request]
    assert tracker is not None
    blocks = [put.block for put in puts]
    if save.save_to:
        blocks += [
            block
            for group, table in zip(scope.groups, tables, strict=True)
            if not group.is_mamba
            for block in table
            if block != NULL_BLOCK
        ]
    pinned = tuple(dict.fromkeys(blocks))
    by_position = tuple(
        () if group.is_mamba or not save.save_to else table
        for group, table in zip(scope.groups, tables, strict=True)
    )
    job = JobMeta(
        state.next_job, save.request, puts, save.save_to, by_position, pinned, tracker.prefill_end
    )
    pin = PinnedJob(job.job, save.request, pinned, tuple(range(scope.num_ranks)))
    state = attrs.evolve(
        state,
        pool=block_pool.touch(state.pool, pinned),
        pins=(*state.pins, pin),
        next_job=state.next_job + 1,
    )
    return _remember_handoffs(state, save), job


def register_finished_tail(
    scope: Scope, state: State, index: int, tails: tuple[Handoff, ...]
) -> tuple[State, JobMeta | None]:
    """Take the tails of a finishing request: pin at once, queue for the next metadata (R5-R8).

    Every child is asked; only the store may take them. Returns no job when they are not
    accepted. The request is never retained for it.
    """
    if store_child(scope) is None:
        return state, None
    tracker = state.trackers[index]
    tables = state.requests[index].tables
    if not boundaries.saves(scope.role) or not tails or tracker is None:
        return state, None
    if not any(table.blocks for table in tables):
        return state, None
    ends = sorted({tail.boundary for tail in tails})
    if len(ends) != 1:
        raise ValueError(
            f"tails of {scope.requests[index].name!r} end at {ends}: "
            "tails of one request share one boundary"
        )
    for tail in tails:
        if tail.boundary > tracker.prefill_end or tail.block == NULL_BLOCK:
            return state, None
        if not scope.groups[tail.group].is_mamba:
            return state, None
    puts = tuple(Put(tail.group, tail.block, tail.boundary) for tail in tails)
    save = SaveRequest(index, 0, state.requests[index].computed, False, puts)
    state, job = emit_job(scope, state, save)
    assert job is not None
    return attrs.evolve(state, queued_tails=(*state.queued_tails, job)), job


def strike_off(pin: PinnedJob, rank: int) -> tuple[int, ...]:
    """Return the ranks that still owe a report after ``rank`` has made its own."""
    return tuple(owed for owed in pin.ranks_owed if owed != rank)


def emitted(scope: Scope, jobs: tuple[JobMeta, ...]) -> tuple[StoreJob, ...]:
    """Return jobs as an observer sees them."""
    return tuple(
        StoreJob(job.job, scope.requests[job.request].name, job.puts, job.save_to, job.blocks)
        for job in jobs
    )


def has_unfinished_job(state: State, index: int) -> bool:
    """Whether some pinned job belongs to this request."""
    return any(pin.request == index for pin in state.pins)


def leaves_a_pin(state: State, index: int) -> bool:
    """Whether a request that has just finished leaves a pinned job behind."""
    return state.requests[index].status is Status.FINISHED and has_unfinished_job(state, index)
