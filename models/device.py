"""The device: steps run in order, and contents change only here (domain.md b, i).

Order within a step: zero new blocks, copy-on-write copies, Mamba column copy, forward, and
after drafts a copy of the state at the block boundary that they passed. The forward depends on
what it reads: after a wrong read everything it writes is garbage, so that "wrong bytes under a
key" is something the model can be asked about.
"""

from __future__ import annotations

import attrs

from cowtail.models import peers, state_columns, workers
from cowtail.models.errors import NotEnabled
from cowtail.models.memories import agreed_memory, with_memories
from cowtail.models.observations import GARBAGE
from cowtail.models.scope import Scope
from cowtail.models.state import DeviceStep, Memory, ScheduledChunk, State
from cowtail.models.transition import Transition


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
    done = DeviceStep(chunks=tuple(_without_tables(chunk) for chunk in step.chunks), executed=True)
    state = attrs.evolve(
        state,
        steps=(*state.steps[:position], done, *state.steps[position + 1 :]),
    )
    if scope.behaviours.jobs_queued_by_device:
        state = workers.tell(state, step)
    memories = [run_step(scope, memory, step) for memory in (state.memory, *state.other_memories)]
    return Transition(peers.queue_sends(scope, with_memories(state, memories), step))


def _without_tables(chunk: ScheduledChunk) -> ScheduledChunk:
    return attrs.evolve(chunk, tables=(), running=(), checkpoint=0, exports=(), keys=())


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
        if chunk.drafts:
            _settle_drafts(scope, pages, chunk)
    return tuple(tuple(page) for page in pages)


def _move_running_state(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> None:
    """Copy the state to the chunk's running column, where that is another than before."""
    if chunk.start == 0:
        return
    for index, (group, table) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
        if not group.is_mamba:
            continue
        before = state_columns.before_chunk(scope, chunk, index)
        running = state_columns.running_column(scope, chunk, index)
        if running not in (before.column, before.state):
            pages[table[running]] = list(pages[table[before.state]])


def _forward(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> None:
    """Write the chunk's KV and states, garbage if anything it reads is not its own prefix."""
    tokens = scope.requests[chunk.request].tokens
    intact = reads_its_prefix(scope, pages, chunk)
    for index, (group, table) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
        size = group.block_size
        if group.is_mamba:
            running = state_columns.running_column(scope, chunk, index)
            sampled = chunk.end - chunk.drafts
            for draft in range(chunk.drafts + 1):
                true = intact and draft <= chunk.accepted
                pages[table[running + draft]][0] = tokens[: sampled + draft] if true else GARBAGE
            export = chunk.exports[index] if chunk.exports else None
            if export is not None:
                pages[table[export]][0] = tokens[: chunk.checkpoint] if intact else GARBAGE
            continue
        for position in range(chunk.start, chunk.end):
            true = intact and position < chunk.settled
            value = tokens[: position + 1] if true else GARBAGE
            pages[table[position // size]][position % size] = value


def reads_its_prefix(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> bool:
    """Whether all that a chunk's first token reads, KV and state, holds the request's prefix."""
    tokens = scope.requests[chunk.request].tokens
    for index, (group, table) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
        size = group.block_size
        if group.is_mamba:
            column = state_columns.column_read(scope, chunk, index)
            if chunk.start and pages[table[column]][0] != tokens[: chunk.start]:
                return False
            continue
        first = max(chunk.start - group.window + 1, 0) if group.window else 0
        for position in range(first, chunk.start):
            if pages[table[position // size]][position % size] != tokens[: position + 1]:
                return False
    return True


def _settle_drafts(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> None:
    """Copy the state at the last block boundary that was passed to the column it belongs in."""
    for index, (group, table) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
        if not group.is_mamba:
            continue
        boundary = state_columns.boundary_passed(scope, chunk, index)
        if boundary is None:
            continue
        running = state_columns.running_column(scope, chunk, index)
        source = running + boundary - chunk.start - 1
        target = boundary // group.block_size - 1
        if source != target:
            pages[table[target]] = list(pages[table[source]])


def memory_ahead(scope: Scope, state: State) -> Memory:
    """Return what every rank's memory will hold once every dispatched step has run."""
    memory = agreed_memory(state)
    for step in state.steps:
        if not step.executed:
            memory = run_step(scope, memory, step)
    return memory
