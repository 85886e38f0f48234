"""The block pool: batched reference counts, the free list, and the prefix cache's keys.

Reference counts are one tensor on the CPU. Touching or freeing many blocks is one
``index_add_``, which counts a block that is listed twice twice. The free list is an ordered
dict: a linked list with a hash index, so that a block in the middle leaves in constant time.

>>> pool = BlockPool(4)
>>> pool.allocate(2)
[1, 2]
>>> pool.free([2, 1])
>>> pool.free_blocks()
(2, 1, 3)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch

from cowtail.impl.torch_engine.errors import ConservationError, EngineError
from cowtail.models.observations import NULL_BLOCK, Key


class BlockPool:
    """``num_blocks`` equal blocks; block 0 is null: never counted, freed, keyed or stored.

    ``ref_counts`` is int32 [num_blocks]. A block is in the free list iff its count is zero.
    """

    def __init__(self, num_blocks: int) -> None:
        self.ref_counts = torch.zeros(num_blocks, dtype=torch.int32)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._keys: list[list[Key]] = [[] for _ in range(num_blocks)]
        self._cached: dict[Key, dict[int, None]] = {}
        self._ones: dict[int, torch.Tensor] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that nothing references."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Number of blocks that something references; the null block does not count."""
        return len(self._keys) - 1 - len(self._free)

    def free_blocks(self) -> tuple[int, ...]:
        """Return the free list, head first."""
        return tuple(self._free)

    def is_free(self, block: int) -> bool:
        """Whether nothing references ``block``, cached or not."""
        return block in self._free

    def allocate(self, count: int) -> list[int]:
        """Pop ``count`` blocks off the head, evict their keys, and reference each once.

        Raises EngineError if fewer are free.
        """
        if count > len(self._free):
            raise EngineError(
                f"allocating {count} blocks: only {len(self._free)} are free; free some first"
            )
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self.drop_keys(block)
        if blocks:
            self._count(blocks, 1)
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Reference each block once more; free ones leave the free list.

        Raises ConservationError for the null block.
        """
        if not blocks:
            return
        if NULL_BLOCK in blocks:
            raise ConservationError("touching block 0: the null block is never referenced")
        for block in blocks:
            self._free.pop(block, None)
        self._count(blocks, 1)

    def free(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block, nulls skipped.

        Of those that reach zero, the ones without keys go to the head of the free list (the
        first given is the next allocated), the ones with keys to its tail: cached blocks live
        as long as there are others. Raises ConservationError if a count falls below zero.
        """
        real = [block for block in blocks if block != NULL_BLOCK]
        if not real:
            return
        index = self._count(real, -1)
        counts = dict(zip(real, self.ref_counts.index_select(0, index).tolist(), strict=True))
        below = [block for block, count in counts.items() if count < 0]
        if below:
            raise ConservationError(f"freeing blocks {below}: their counts fall below zero")
        # A block that is listed twice is unreferenced at its last place, not at its first.
        order = list(dict.fromkeys(reversed(real)))[::-1]
        unreferenced = [block for block in order if counts[block] == 0]
        for block in unreferenced:
            if self._keys[block]:
                self._free[block] = None
        for block in reversed(unreferenced):
            if not self._keys[block]:
                self._free[block] = None
                self._free.move_to_end(block, last=False)

    def _count(self, blocks: Sequence[int], change: int) -> torch.Tensor:
        """Add ``change`` to the count of every listed block; return the index, int64 [n]."""
        ones = self._ones.get(len(blocks))
        if ones is None:
            ones = self._ones[len(blocks)] = torch.ones(len(blocks), dtype=torch.int32)
        index = torch.tensor(blocks)
        self.ref_counts.index_add_(0, index, ones, alpha=change)
        return index

    def keys(self, block: int) -> Sequence[Key]:
        """Return the keys of a block: the primary one first, then extras in insertion order."""
        return self._keys[block]

    def primary(self, block: int) -> Key | None:
        """Return the first key of a block, None if it has none."""
        keys = self._keys[block]
        return keys[0] if keys else None

    def lookup(self, key: Key) -> int | None:
        """Return the block that got ``key`` first, of those that still have it."""
        holders = self._cached.get(key)
        return next(iter(holders)) if holders else None

    def add_key(self, block: int, key: Key) -> None:
        """Cache ``block`` under ``key`` too; nothing if it is already.

        Raises ConservationError for the null block.
        """
        if block == NULL_BLOCK:
            raise ConservationError(f"keying block 0 with {key}: the null block has no content")
        if key in self._keys[block]:
            return
        self._keys[block].append(key)
        self._cached.setdefault(key, {})[block] = None

    def drop_key(self, block: int, key: Key) -> None:
        """Evict one key of ``block``, if it has it."""
        if key not in self._keys[block]:
            return
        self._keys[block].remove(key)
        holders = self._cached[key]
        del holders[block]
        if not holders:
            del self._cached[key]

    def drop_keys(self, block: int) -> None:
        """Evict every key of ``block``; its references stay."""
        for key in self._keys[block]:
            holders = self._cached[key]
            del holders[block]
            if not holders:
                del self._cached[key]
        self._keys[block] = []

    def forget_keys(self) -> None:
        """Evict every key of every block; the free list stays as it is."""
        for block in range(len(self._keys)):
            self.drop_keys(block)

    def move_keys(self, source: int, destination: int) -> list[Key]:
        """Re-point all keys of ``source`` to ``destination``, in order; return them."""
        moved = list(self._keys[source])
        self.drop_keys(source)
        for key in moved:
            self.add_key(destination, key)
        return moved
