"""Edits of states: one part replaced, all else as it was."""

from __future__ import annotations

from typing import Any, TypeVar

import attrs

from cowtail.models.memories import memory_of
from cowtail.models.state import DeviceStep, JobMeta, OpenPass, PinnedJob, State

T = TypeVar("T")


def at(items: tuple[T, ...], position: int, item: T) -> tuple[T, ...]:
    """Return ``items`` with one replaced; a negative position counts from the end."""
    changed = list(items)
    changed[position] = item
    return tuple(changed)


def pool(state: State, **changes: Any) -> State:
    """Return the state with parts of its pool replaced."""
    return attrs.evolve(state, pool=attrs.evolve(state.pool, **changes))


def references(state: State, block: int, count: int) -> State:
    """Return the state with another reference count of a block."""
    return pool(state, ref_counts=at(state.pool.ref_counts, block, count))


def request(state: State, index: int = 0, **changes: Any) -> State:
    """Return the state with parts of a request replaced."""
    changed = attrs.evolve(state.requests[index], **changes)
    return attrs.evolve(state, requests=at(state.requests, index, changed))


def table(state: State, group: int, index: int = 0, **changes: Any) -> State:
    """Return the state with parts of one block table replaced."""
    tables = state.requests[index].tables
    changed = attrs.evolve(tables[group], **changes)
    return request(state, index, tables=at(tables, group, changed))


def rank(state: State, number: int = 0, **changes: Any) -> State:
    """Return the state with parts of a rank replaced."""
    changed = attrs.evolve(state.ranks[number], **changes)
    return attrs.evolve(state, ranks=at(state.ranks, number, changed))


def opened(state: State) -> OpenPass:
    """Return the open pass of a state that has one."""
    assert state.open_pass is not None
    return state.open_pass


def in_pass(state: State, **changes: Any) -> State:
    """Return the state with parts of its open pass replaced."""
    return attrs.evolve(state, open_pass=attrs.evolve(opened(state), **changes))


def step(state: State, **changes: Any) -> State:
    """Return the state with parts of its last step replaced."""
    changed: DeviceStep = attrs.evolve(state.steps[-1], **changes)
    return attrs.evolve(state, steps=at(state.steps, -1, changed))


def job(state: State, **changes: Any) -> State:
    """Return the state with parts of the first job in each rank's queue replaced."""
    for number, worker in enumerate(state.ranks):
        if worker.queue:
            changed: JobMeta = attrs.evolve(worker.queue[0], **changes)
            state = rank(state, number, queue=at(worker.queue, 0, changed))
    return state


def pin(state: State, **changes: Any) -> State:
    """Return the state with parts of its first pin replaced."""
    changed: PinnedJob = attrs.evolve(state.pins[0], **changes)
    return attrs.evolve(state, pins=at(state.pins, 0, changed))


def blank(state: State, *blocks: int) -> State:
    """Return the state with nothing in some blocks of every memory; of all blocks if none."""
    memories = []
    for number in range(len(state.ranks)):
        memory = memory_of(state, number)
        memories.append(
            tuple(
                ("",) * len(page) if block in blocks or not blocks else page
                for block, page in enumerate(memory)
            )
        )
    others = tuple(memories[1:]) if state.other_memories else ()
    return attrs.evolve(state, memory=memories[0], other_memories=others)
