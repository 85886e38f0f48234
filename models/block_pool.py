"""The block pool: reference counts, free-list order, and the prefix keys of every block.

All groups share one id space; block 0 is the null block. Allocation pops the head of the
free list and forgets the block's keys; freeing puts unkeyed blocks back at the head and
keyed ones at the tail, so that what can still be hit is recycled last (domain.md a).

>>> pool = initial_pool(4)
>>> pool, blocks = allocate(pool, 2)
>>> blocks, pool.free
((1, 2), (3,))
>>> pool = add_key(pool, 1, Key(0, "ab"))
>>> pool = free(pool, (2, 1))
>>> pool.free, cached_block(pool, Key(0, "ab"))
((2, 3, 1), 1)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import attrs

from cowtail.models.errors import LifecycleError
from cowtail.models.observations import NULL_BLOCK, Key


@attrs.frozen
class Pool:
    """Block metadata.

    ``ref_counts`` and ``keys`` are indexed by block id; ``keys[b][0]`` is the primary key.
    ``free`` is the free list, head first. ``index`` holds every (key, block) pair sorted by
    key; blocks with the same key stand in the order in which they got it.
    """

    ref_counts: tuple[int, ...]
    free: tuple[int, ...]
    keys: tuple[tuple[Key, ...], ...]
    index: tuple[tuple[Key, int], ...] = ()


def initial_pool(num_blocks: int) -> Pool:
    """Return a pool of ``num_blocks``, the null block included, all others free in id order."""
    return Pool(
        ref_counts=(0,) * num_blocks,
        free=tuple(range(1, num_blocks)),
        keys=((),) * num_blocks,
    )


def cached_block(pool: Pool, key: Key) -> int | None:
    """Return the block that got ``key`` first and still has it, or None."""
    position = bisect_left(pool.index, key, key=_key_of)
    if position < len(pool.index) and pool.index[position][0] == key:
        return pool.index[position][1]
    return None


def allocate(pool: Pool, count: int) -> tuple[Pool, tuple[int, ...]]:
    """Take ``count`` blocks from the head of the free list; their keys are evicted."""
    if count > len(pool.free):
        raise LifecycleError(f"allocation of {count} blocks with {len(pool.free)} free")
    if not count:
        return pool, ()
    taken = pool.free[:count]
    ref_counts = list(pool.ref_counts)
    for block in taken:
        if ref_counts[block] != 0:
            raise LifecycleError(f"free block {block} has {ref_counts[block]} references")
        ref_counts[block] = 1
    pool = attrs.evolve(pool, ref_counts=tuple(ref_counts), free=pool.free[count:])
    for block in taken:
        pool = drop_keys(pool, block)
    return pool, taken


def touch(pool: Pool, blocks: Iterable[int]) -> Pool:
    """Take one reference on each block; a free one leaves the free list. Nulls are skipped."""
    ref_counts = list(pool.ref_counts)
    revived = set()
    for block in blocks:
        if block == NULL_BLOCK:
            continue
        if ref_counts[block] == 0:
            revived.add(block)
        ref_counts[block] += 1
    free_list = tuple(b for b in pool.free if b not in revived) if revived else pool.free
    return attrs.evolve(pool, ref_counts=tuple(ref_counts), free=free_list)


def free(pool: Pool, blocks: Iterable[int]) -> Pool:
    """Give back one reference on each block, in the order given (callers: tail first)."""
    ref_counts = list(pool.ref_counts)
    released = []
    for block in blocks:
        if block == NULL_BLOCK:
            continue
        if ref_counts[block] == 0:
            raise LifecycleError(f"block {block} freed although nothing refers to it")
        ref_counts[block] -= 1
        if ref_counts[block] == 0:
            released.append(block)
    head = tuple(b for b in released if not pool.keys[b])
    tail = tuple(b for b in released if pool.keys[b])
    return attrs.evolve(pool, ref_counts=tuple(ref_counts), free=head + pool.free + tail)


def add_key(pool: Pool, block: int, key: Key) -> Pool:
    """Make ``block`` reachable under ``key``; a no-op if it is already."""
    if block == NULL_BLOCK:
        raise LifecycleError(f"key {key} put on the null block")
    if key in pool.keys[block]:
        return pool
    position = bisect_right(pool.index, key, key=_key_of)
    return attrs.evolve(
        pool,
        keys=_replaced(pool.keys, block, (*pool.keys[block], key)),
        index=(*pool.index[:position], (key, block), *pool.index[position:]),
    )


def drop_keys(pool: Pool, block: int) -> Pool:
    """Forget every key of ``block``."""
    if not pool.keys[block]:
        return pool
    return attrs.evolve(
        pool,
        keys=_replaced(pool.keys, block, ()),
        index=tuple(entry for entry in pool.index if entry[1] != block),
    )


def forget_all_keys(pool: Pool) -> Pool:
    """Forget every key of every block: what a reset of the prefix cache does."""
    return attrs.evolve(pool, keys=((),) * len(pool.keys), index=())


def drop_key(pool: Pool, block: int, key: Key) -> Pool:
    """Forget one key of ``block``, if it has it."""
    if key not in pool.keys[block]:
        return pool
    kept = tuple(held for held in pool.keys[block] if held != key)
    return attrs.evolve(
        pool,
        keys=_replaced(pool.keys, block, kept),
        index=tuple(entry for entry in pool.index if entry != (key, block)),
    )


def add_partial_key(pool: Pool, block: int, key: Key) -> Pool:
    """Add ``key``; if the primary covers fewer tokens the content has moved on: drop it first."""
    held = pool.keys[block]
    if held and key not in held and len(held[0].prefix) < len(key.prefix):
        pool = drop_keys(pool, block)
    return add_key(pool, block, key)


def promote_to_full(pool: Pool, block: int, key: Key) -> Pool:
    """Key a block that has become full: whatever it was keyed with before is replaced."""
    held = pool.keys[block]
    if held and len(held[0].prefix) >= len(key.prefix):
        raise LifecycleError(f"block {block} is keyed {held[0]} and cannot be promoted to {key}")
    return add_key(drop_keys(pool, block), block, key)


def move_keys(pool: Pool, source: int, destination: int) -> Pool:
    """Re-point all keys of ``source`` to ``destination``, which must have none; order is kept."""
    if pool.keys[destination]:
        raise LifecycleError(
            f"keys moved to block {destination}, which has {pool.keys[destination]}"
        )
    moved = pool.keys[source]
    pool = drop_keys(pool, source)
    for key in moved:
        pool = add_key(pool, destination, key)
    return pool


def _key_of(entry: tuple[Key, int]) -> Key:
    return entry[0]


def _replaced(
    keys: tuple[tuple[Key, ...], ...], block: int, value: tuple[Key, ...]
) -> tuple[tuple[Key, ...], ...]:
    return (*keys[:block], value, *keys[block + 1 :])
