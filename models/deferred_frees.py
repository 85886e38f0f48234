"""Deferred frees: blocks that wait for the steps in flight before they can be taken again.

A load writes into blocks without waiting for the device. So where loads and steps overlap, a
block given back while steps are in flight stays referenced until their output is processed:
one of them may still write it (K29, K40).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from cowtail.models import block_pool
from cowtail.models.observations import NULL_BLOCK
from cowtail.models.scope import Scope
from cowtail.models.state import DeferredFree, State


def give_back(scope: Scope, state: State, batches: Iterable[Sequence[int]], steps: int) -> State:
    """Give back one reference on every block, once ``steps`` more outputs are processed.

    ``batches`` are sequences of blocks, each freed by itself if that can be done at once: then
    each batch has a place of its own in the free list. What has to wait is one sequence.
    """
    if not scope.defer_frees or not steps:
        pool = state.pool
        for batch in batches:
            pool = block_pool.free(pool, batch)
        return attrs.evolve(state, pool=pool)
    waiting = tuple(block for batch in batches for block in batch if block != NULL_BLOCK)
    if not waiting:
        return state
    return attrs.evolve(state, deferred=(*state.deferred, DeferredFree(steps, waiting)))


def give_back_tables(
    scope: Scope, state: State, index: int, batches: Sequence[Sequence[int]]
) -> State:
    """Give back the blocks of a request's tables, which its own steps in flight may still write."""
    if scope.behaviours.every_free_waits:
        return give_back(scope, state, batches, len(state.steps))
    if not scope.defer_frees or not any(
        chunk.request == index for step in state.steps for chunk in step.chunks
    ):
        return give_back(scope, state, batches, 0)
    return give_back(scope, state, batches[::-1], fence(scope, state))


def fence(scope: Scope, state: State) -> int:
    """Return how many outputs have to be processed before a block given back now is free."""
    if scope.behaviours.every_free_waits:
        return len(state.steps)
    computing = (number for number, step in enumerate(state.steps, start=1) if step.chunks)
    return max(computing, default=0)


def output_processed(state: State) -> State:
    """Count one step less for every deferred free, and free those that waited for it, in order."""
    if not state.deferred:
        return state
    pool = state.pool
    waiting = []
    for entry in state.deferred:
        if entry.steps == 1:
            pool = block_pool.free(pool, entry.blocks)
        else:
            waiting.append(attrs.evolve(entry, steps=entry.steps - 1))
    return attrs.evolve(state, pool=pool, deferred=tuple(waiting))


def with_all_returned(state: State) -> block_pool.Pool:
    """Return the pool as it will be once nothing is deferred any more."""
    pool = state.pool
    for entry in state.deferred:
        pool = block_pool.free(pool, entry.blocks)
    return pool
