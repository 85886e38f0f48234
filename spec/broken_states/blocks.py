"""Broken states of blocks: references, free list, keys (S0-S2)."""

from __future__ import annotations

import attrs

from cowtail.models.observations import Key
from cowtail.models.state import DeferredFree, State
from cowtail.spec.broken_states import edits
from cowtail.spec.broken_states.case import BrokenState


def _any(state: State) -> bool:
    return True


def _has_pin(state: State) -> bool:
    return bool(state.pins)


def _runs(state: State) -> bool:
    return any(state.pool.ref_counts)


def _two_keys(state: State) -> bool:
    return len({key for key, _ in state.pool.index}) > 1


def _held_block_is_free(state: State) -> State:
    held = next(block for block, count in enumerate(state.pool.ref_counts) if count)
    return edits.pool(state, free=(*state.pool.free, held))


BROKEN_STATES: tuple[BrokenState, ...] = (
    BrokenState(
        "S0",
        "a rule has failed",
        "lone_producer",
        _any,
        lambda state: attrs.evolve(state, failure="a rule failed"),
        "a rule failed",
    ),
    BrokenState(
        "S1",
        "a job pins a block twice",
        "lone_producer",
        _has_pin,
        lambda state: edits.pin(state, blocks=state.pins[0].blocks * 2),
        "pins a block twice",
    ),
    BrokenState(
        "S1",
        "the null block has a reference",
        "lone_producer",
        _any,
        lambda state: edits.references(state, 0, 1),
        "the null block is referenced, pinned or free",
    ),
    BrokenState(
        "S1",
        "the null block is pinned",
        "lone_producer",
        _has_pin,
        lambda state: edits.pin(state, blocks=(0, *state.pins[0].blocks)),
        "the null block is referenced, pinned or free",
    ),
    BrokenState(
        "S1",
        "the null block is free",
        "lone_producer",
        _any,
        lambda state: edits.pool(state, free=(0, *state.pool.free)),
        "the null block is referenced, pinned or free",
    ),
    BrokenState(
        "S1",
        "a table gives up a block and its reference stays",
        "lone_producer",
        _runs,
        lambda state: edits.table(state, 0, blocks=()),
        "has 1 references and 0 owners",
    ),
    BrokenState(
        "S1",
        "a block is owned and not referenced",
        "lone_producer",
        _any,
        lambda state: attrs.evolve(state, deferred=(DeferredFree(1, (1,)),)),
        "has 0 references and 1 owners",
    ),
    BrokenState(
        "S1",
        "a block without references is not in the free list",
        "lone_producer",
        _any,
        lambda state: edits.pool(state, free=state.pool.free[1:]),
        "with 0 references is misplaced in the free list",
    ),
    BrokenState(
        "S1",
        "a block with references is in the free list",
        "lone_producer",
        _runs,
        _held_block_is_free,
        "with 1 references is misplaced in the free list",
    ),
    BrokenState(
        "S1",
        "a block is in the free list twice",
        "lone_producer",
        _any,
        lambda state: edits.pool(state, free=(*state.pool.free, state.pool.free[0])),
        "the free list holds a block twice",
    ),
    BrokenState(
        "S2",
        "the null block has a key",
        "lone_producer",
        _any,
        lambda state: edits.pool(state, keys=edits.at(state.pool.keys, 0, (Key(0, "a"),))),
        "the null block is keyed",
    ),
    BrokenState(
        "S2",
        "the index has lost a key",
        "lone_producer",
        lambda state: state.pool.index,
        lambda state: edits.pool(state, index=state.pool.index[1:]),
        "is not what the blocks say",
    ),
    BrokenState(
        "S2",
        "a block has lost its keys and the index has them",
        "lone_producer",
        lambda state: state.pool.index,
        lambda state: edits.pool(state, keys=((),) * len(state.pool.keys)),
        "is not what the blocks say",
    ),
    BrokenState(
        "S2",
        "the index is out of order",
        "lone_producer",
        _two_keys,
        lambda state: edits.pool(state, index=state.pool.index[::-1]),
        "is out of order",
    ),
)
"""In the order of the properties."""
