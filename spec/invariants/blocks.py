"""What must hold of blocks: references, free list, keys (S0-S2)."""

from __future__ import annotations

from collections import Counter

from cowtail.models.observations import NULL_BLOCK
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.invariants.property import Property


def rules_do_not_fail(scope: Scope, state: State) -> str | None:
    """S0: no rule meets a state that it must never meet."""
    return state.failure or None


def references_equal_owners(scope: Scope, state: State) -> str | None:
    """S1: see ``PROPERTIES``."""
    owners: Counter[int] = Counter()
    for request in state.requests:
        for table in request.tables:
            owners.update(b for b in table.blocks if b != NULL_BLOCK)
    for pin in state.pins:
        if len(set(pin.blocks)) != len(pin.blocks):
            return f"job {pin.job} pins a block twice: {pin.blocks}"
        owners.update(pin.blocks)
    for waiting in state.deferred:
        owners.update(waiting.blocks)
    if state.open_pass is not None:
        for copy in state.open_pass.copies:
            owners.update((copy.source, copy.destination))
    counts = state.pool.ref_counts
    for block in range(len(counts)):
        if block == NULL_BLOCK:
            if counts[block] or owners[block] or block in state.pool.free:
                return "the null block is referenced, pinned or free"
        elif counts[block] != owners[block]:
            return f"block {block} has {counts[block]} references and {owners[block]} owners"
        elif (block in state.pool.free) != (counts[block] == 0):
            return f"block {block} with {counts[block]} references is misplaced in the free list"
    if len(set(state.pool.free)) != len(state.pool.free):
        return f"the free list holds a block twice: {state.pool.free}"
    return None


def keys_match_the_index(scope: Scope, state: State) -> str | None:
    """S2: see ``PROPERTIES``."""
    pool = state.pool
    if pool.keys[NULL_BLOCK]:
        return f"the null block is keyed {pool.keys[NULL_BLOCK]}"
    from_blocks = sorted((key, block) for block, keys in enumerate(pool.keys) for key in keys)
    if from_blocks != sorted(pool.index):
        return f"the index {pool.index} is not what the blocks say: {from_blocks}"
    if list(pool.index) != sorted(pool.index, key=lambda entry: entry[0]):
        return f"the index is out of order: {pool.index}"
    return None


PROPERTIES: tuple[Property, ...] = (
    Property(
        "S0",
        "rules do not fail",
        "No rule meets a state that it must never meet: no double free, no key on the null "
        "block, no copy of a block other than the marked one.",
        "R9, domain A1-A5",
        rules_do_not_fail,
    ),
    Property(
        "S1",
        "conservation",
        "A block's references are its table entries, its pins, its pending copies and its "
        "deferred frees; it is in the free list exactly if it has none.",
        "domain S1, R8, R15, K25, K32, K39, K45",
        references_equal_owners,
    ),
    Property(
        "S2",
        "keys match the index",
        "A key leads to a block exactly if the block carries the key; the null block carries none.",
        "domain S2",
        keys_match_the_index,
    ),
)
"""In the order in which they are judged."""
