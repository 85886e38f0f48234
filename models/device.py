"""The device: steps run in order, and contents change only here (domain.md b, i).

Order within a step: zero new blocks, copy-on-write copies, Mamba column copy, forward. The
forward depends on what it reads: after a wrong read everything it writes is garbage, so that
"wrong bytes under a key" is something the model can be asked about.
"""

from __future__ import annotations

import math

import attrs

from cowtail.models.errors import NotEnabled
from cowtail.models.observations import GARBAGE, Status
from cowtail.models.scope import Scope
from cowtail.models.state import (
    DeviceStep,
    JobMeta,
    RankWorker,
    ScheduledChunk,
    State,
    with_request,
)
from cowtail.models.transition import Transition

Memory = tuple[tuple[str, ...], ...]


def execute_guard(state: State) -> str:
    """Return why no step can run, or an empty string."""
    return "" if any(not step.executed for step in state.steps) else "no step is waiting to run"


def execute(scope: Scope, state: State) -> Transition:
    """Run the oldest step that has not run, and let every rank take its metadata."""
    guard = execute_guard(state)
    if guard:
        raise NotEnabled(guard)
    position = next(i for i, step in enumerate(state.steps) if not step.executed)
    step = state.steps[position]
    done = DeviceStep(
        chunks=tuple(attrs.evolve(chunk, tables=()) for chunk in step.chunks), executed=True
    )
    state = attrs.evolve(
        state,
        memory=run_step(scope, state.memory, step),
        steps=(*state.steps[:position], done, *state.steps[position + 1 :]),
        ranks=tuple(receive_metadata(rank, step) for rank in state.ranks),
    )
    return Transition(state)


def run_step(scope: Scope, memory: Memory, step: DeviceStep) -> Memory:
    """Return the memory after ``step``."""
    pages = [list(page) for page in memory]
    for block in step.new_blocks:
        pages[block] = [""] * scope.slots_per_block
    read = [list(pages[copy.source]) for copy in step.copies]
    for copy, page in zip(step.copies, read, strict=True):
        pages[copy.destination] = page
    for chunk in step.chunks:
        _move_running_state(scope, pages, chunk)
        _forward(scope, pages, chunk)
    return tuple(tuple(page) for page in pages)


def _move_running_state(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> None:
    """Copy the state to the chunk's column, where the column changes."""
    if chunk.start == 0:
        return
    for group, table in zip(scope.groups, chunk.tables, strict=True):
        if not group.is_mamba:
            continue
        before = (chunk.start - 1) // group.block_size
        after = math.ceil(chunk.end / group.block_size) - 1
        if before != after:
            pages[table[after]] = list(pages[table[before]])


def _forward(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> None:
    """Write the chunk's KV and states, garbage if anything it reads is not its own prefix."""
    tokens = scope.requests[chunk.request].tokens
    intact = reads_its_prefix(scope, pages, chunk)
    for group, table in zip(scope.groups, chunk.tables, strict=True):
        size = group.block_size
        if group.is_mamba:
            block = table[math.ceil(chunk.end / size) - 1]
            pages[block][0] = tokens[: chunk.end] if intact else GARBAGE
            continue
        for position in range(chunk.start, chunk.end):
            value = tokens[: position + 1] if intact else GARBAGE
            pages[table[position // size]][position % size] = value


def reads_its_prefix(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> bool:
    """Whether every slot below the chunk, and the state it continues, hold the request's prefix."""
    tokens = scope.requests[chunk.request].tokens
    for group, table in zip(scope.groups, chunk.tables, strict=True):
        size = group.block_size
        if group.is_mamba:
            column = math.ceil(chunk.end / size) - 1
            if chunk.start and pages[table[column]][0] != tokens[: chunk.start]:
                return False
            continue
        for position in range(chunk.start):
            if pages[table[position // size]][position % size] != tokens[: position + 1]:
                return False
    return True


def receive_metadata(rank: RankWorker, step: DeviceStep) -> RankWorker:
    """Retire jobs of preempted generations, queue the step's jobs, close finished requests."""
    queue = tuple(
        attrs.evolve(job, live=False) if job.request in step.preempted else job
        for job in rank.queue
    )
    saved = _cleared(rank.saved, step.preempted)
    queue += step.jobs
    closing = dict.fromkeys((*rank.closing, *step.finished))
    closed = [index for index in closing if not _has_live_job(queue, index)]
    return attrs.evolve(
        rank,
        queue=queue,
        saved=_cleared(saved, tuple(closed)),
        closing=tuple(index for index in closing if index not in closed),
    )


def _has_live_job(queue: tuple[JobMeta, ...], index: int) -> bool:
    return any(job.request == index and job.live for job in queue)


def _cleared(saved: tuple[int, ...], indices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(0 if index in indices else offset for index, offset in enumerate(saved))


def update_from_output_guard(state: State) -> str:
    """Return why no output can be processed, or an empty string."""
    if not state.steps:
        return "no step is in flight"
    return "" if state.steps[0].executed else "the oldest step has not run"


def memory_ahead(scope: Scope, state: State) -> Memory:
    """Return the memory as it will be once every dispatched step has run."""
    memory = state.memory
    for step in state.steps:
        if not step.executed:
            memory = run_step(scope, memory, step)
    return memory


def accept_output(state: State, chunk: ScheduledChunk) -> State:
    """Count the token that a chunk sampled, unless its request moved on in the meantime."""
    request = state.requests[chunk.request]
    if chunk.stale or not chunk.samples or request.status is Status.FINISHED:
        return state
    return with_request(
        state,
        chunk.request,
        attrs.evolve(request, outputs=request.outputs + 1, placeholders=request.placeholders - 1),
    )
