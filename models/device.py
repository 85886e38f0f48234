"""The device: steps run in order, and contents change only here (domain.md b, i).

Order within a step: zero new blocks, copy-on-write copies, Mamba column copy, forward, and
after drafts a copy of the state at the block boundary that they passed. The forward depends on what it reads: after a wrong read everything it writes is garbage, so that
"wrong bytes under a key" is something the model can be asked about.
"""

from __future__ import annotations

import math

import attrs

from cowtail.models import peers, workers
from cowtail.models.errors import NotEnabled
from cowtail.models.memories import agreed_memory, with_memories
from cowtail.models.observations import GARBAGE
from cowtail.models.scope import Scope
from cowtail.models.state import DeviceStep, Memory, RunningState, ScheduledChunk, State
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
    done = DeviceStep(
        chunks=tuple(attrs.evolve(chunk, tables=()) for chunk in step.chunks), executed=True
    )
    state = attrs.evolve(
        state,
        steps=(*state.steps[:position], done, *state.steps[position + 1 :]),
        ranks=tuple(workers.receive_metadata(rank, step) for rank in state.ranks),
    )
    memories = [run_step(scope, memory, step) for memory in (state.memory, *state.other_memories)]
    return Transition(peers.queue_sends(scope, with_memories(state, memories), step))


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


def running_before(scope: Scope, chunk: ScheduledChunk, group: int) -> RunningState:
    """Return where a Mamba group's state is before a chunk, which does not begin at token 0."""
    known = chunk.running[group] if chunk.running else None
    return known or _in_the_column_of(chunk.start, scope.groups[group].block_size)


def running_after(scope: Scope, chunk: ScheduledChunk, group: int) -> RunningState | None:
    """Return where a chunk leaves a Mamba group's state; None: in its last token's column.

    That of accepted drafts is in a scratch column, unless it has been copied to the running one.
    """
    size = scope.groups[group].block_size
    column = math.ceil(chunk.end / size) - 1
    state = column + chunk.accepted
    passed = boundary_passed(scope, chunk, group)
    if passed is not None and passed // size - 1 == column:
        state = column
    left = RunningState(column, state)
    return None if left == _in_the_column_of(chunk.settled, size) else left


def boundary_passed(scope: Scope, chunk: ScheduledChunk, group: int) -> int | None:
    """Return the last block boundary among the tokens that a chunk with drafts has settled."""
    size = scope.groups[group].block_size
    boundary = chunk.settled // size * size
    return boundary if chunk.drafts and boundary > chunk.start else None


def _in_the_column_of(tokens: int, size: int) -> RunningState:
    column = (tokens - 1) // size
    return RunningState(column, column)


def _column_read(scope: Scope, chunk: ScheduledChunk, group: int) -> int:
    """Return the column that the forward reads the state from: the running one, if it moves."""
    before = running_before(scope, chunk, group)
    running = math.ceil(chunk.end / scope.groups[group].block_size) - 1
    return before.state if before.column == running else running


def _move_running_state(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> None:
    """Copy the state to the chunk's running column, where that is another than before."""
    if chunk.start == 0:
        return
    for index, (group, table) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
        if not group.is_mamba:
            continue
        before = running_before(scope, chunk, index)
        running = math.ceil(chunk.end / group.block_size) - 1
        if running not in (before.column, before.state):
            pages[table[running]] = list(pages[table[before.state]])


def _forward(scope: Scope, pages: list[list[str]], chunk: ScheduledChunk) -> None:
    """Write the chunk's KV and states, garbage if anything it reads is not its own prefix."""
    tokens = scope.requests[chunk.request].tokens
    intact = reads_its_prefix(scope, pages, chunk)
    for index, (group, table) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
        size = group.block_size
        if group.is_mamba:
            running = math.ceil(chunk.end / size) - 1
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
            column = _column_read(scope, chunk, index)
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
        boundary = boundary_passed(scope, chunk, index)
        if boundary is None:
            continue
        running = math.ceil(chunk.end / group.block_size) - 1
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
