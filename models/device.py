"""The device: steps run in order, and contents change only here (domain.md b, i).

Order within a step: zero new blocks, copy-on-write copies, Mamba column copy, forward. The
forward depends on what it reads: after a wrong read everything it writes is garbage, so that
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
from cowtail.models.state import (
    DeviceStep,
    Memory,
    ScheduledChunk,
    State,
)
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


def memory_ahead(scope: Scope, state: State) -> Memory:
    """Return what every rank's memory will hold once every dispatched step has run."""
    memory = agreed_memory(state)
    for step in state.steps:
        if not step.executed:
            memory = run_step(scope, memory, step)
    return memory
