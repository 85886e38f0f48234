"""The managers of single KV cache groups: what they share, and full attention.

One method per moment of a request's life, in the order in which ``KVCacheManager`` calls them:
look up, give back, count, adopt the hit, allocate, key, free.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.block_table import BlockTable, PassRecord
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.models.observations import NULL_BLOCK, Copy, Handoff, Key, Marker
from cowtail.models.scope import Scope


class GroupManager(ABC):
    """Tables of every request in one group. ``index`` is the group's position in the scope."""

    def __init__(self, scope: Scope, index: int, pool: BlockPool, record: PassRecord) -> None:
        self.layout = CacheLayout.of(scope)
        self.index = index
        self.block_size = self.layout.block_sizes[index]
        self.pool = pool
        self.record = record
        self._tables: dict[str, BlockTable] = {}

    def table(self, request: Request) -> BlockTable:
        """Return the table of a request, an empty one if it has none yet."""
        return self._tables.setdefault(request.name, BlockTable())

    def blocks(self, request_name: str) -> tuple[int, ...]:
        """Return the block ids of a request's table, () if it has none."""
        table = self._tables.get(request_name)
        return tuple(table.blocks) if table else ()

    def marker(self, request_name: str) -> Marker | None:
        """Return the registered partial tail of a request."""
        table = self._tables.get(request_name)
        return table.marker if table else None

    def key(self, request: Request, length: int) -> Key:
        """Return the key of the request's first ``length`` tokens in this group."""
        return Key(self.index, request.prefix(length))

    def blocks_written(self, chunk: ScheduledChunk) -> tuple[int, ...]:
        """Return the blocks that computing a chunk writes: every one that it reaches into."""
        last = -(-chunk.end // self.block_size)
        return chunk.tables[self.index][chunk.start // self.block_size : last]

    @abstractmethod
    def remove_skipped(self, request: Request) -> None:
        """Give back blocks that the processed tokens no longer need."""

    @abstractmethod
    def num_needed(self, table_length: int, copy_due: bool, end: int) -> int:
        """Return how many new blocks it takes to compute up to ``end`` tokens."""

    @abstractmethod
    def allocate(self, request: Request, end: int, *, admitted: bool) -> None:
        """Carry out the copy-on-write that is due, and extend the table to ``end`` tokens."""

    @abstractmethod
    def register(self, request: Request, length: int) -> None:
        """Key what the first ``length`` tokens, all of them known, cover anew."""

    def take_finished_tail(self, request: Request) -> Handoff | None:
        """Consume the marker at finish; only a Mamba group ever answers with a tail (R4)."""
        return None

    def copy_due(self, request: Request) -> bool:
        """Whether the next allocation must copy a block first."""
        return self.table(request).copy_at is not None

    def adopt_hit(self, request: Request, blocks: list[int], length: int) -> None:
        """Start the table with a hit's blocks, which are touched already.

        A hit that ends inside its last block makes that block's copy due: others share it.
        """
        table = self.table(request)
        table.blocks = list(blocks)
        table.num_cached = len(blocks)
        if length % self.block_size:
            table.copy_at = table.num_cached = length // self.block_size

    def forget(self, request: Request) -> list[int]:
        """Forget the request's table; return its blocks in the order in which to free them.

        From its last block to its first: the end of a prefix is worth less than its head, so it
        is allocated again earlier.
        """
        table = self._tables.pop(request.name, None)
        return table.blocks[::-1] if table is not None else []

    def register_full_blocks(self, request: Request, length: int) -> list[tuple[int, int]]:
        """Key each full, real block not considered before; return (block, its last token)."""
        table = self.table(request)
        registered = []
        full = length // self.block_size
        for index in range(table.num_cached, full):
            block = table.blocks[index]
            if block == NULL_BLOCK:
                continue
            end = (index + 1) * self.block_size
            self.pool.drop_keys(block)
            self.pool.add_key(block, self.key(request, end))
            registered.append((block, end))
        table.num_cached = max(table.num_cached, full)
        return registered

    def register_partial(self, request: Request, block: int, length: int) -> Key:
        """Key a block at a boundary inside it; keys that cover less are dropped first."""
        key = self.key(request, length)
        primary = self.pool.primary(block)
        if key not in self.pool.keys(block) and primary and len(primary.prefix) < length:
            self.pool.drop_keys(block)
        self.pool.add_key(block, key)
        return key

    def take_blocks(self, count: int) -> list[int]:
        """Allocate blocks that the pass's step will zero."""
        blocks = self.pool.allocate(count)
        self.record.new_blocks.extend(blocks)
        return blocks

    def copy_for_consumer(self, table: BlockTable, index: int, destination: int) -> None:
        """Put a private copy into the table in place of the block that was hit.

        The copy keeps the hit's reference on the source, and one of its own on the copy, until
        the pass ends.
        """
        source = table.blocks[index]
        table.blocks[index] = destination
        table.copy_at = None
        self.pool.touch((destination,))
        self.record.copies.append(Copy(self.index, source, destination))


class FullAttentionManager(GroupManager):
    """KV per token: the table only grows, one block for every ``block_size`` tokens."""

    def remove_skipped(self, request: Request) -> None:
        """Keep everything: every token attends to all before it."""

    def num_needed(self, table_length: int, copy_due: bool, end: int) -> int:
        """Return what the table lacks, and one more for a copy."""
        return max(0, math.ceil(end / self.block_size) - table_length) + copy_due

    def allocate(self, request: Request, end: int, *, admitted: bool) -> None:
        """Copy what is due (only ever a consumer's), then append the blocks that are missing."""
        table = self.table(request)
        due = table.copy_at
        blocks = self.take_blocks(self.num_needed(len(table.blocks), due is not None, end))
        if due is not None:
            self.copy_for_consumer(table, due, blocks.pop(0))
        table.blocks.extend(blocks)

    def register(self, request: Request, length: int) -> None:
        """Key full blocks, and the prompt's replay boundary where it is inside a block."""
        self.register_full_blocks(request, length)
        boundary = self.layout.replay_boundary(request.prompt_length)
        inside = boundary % self.block_size != 0
        if self.layout.partial_hits and inside and 0 < boundary <= length:
            block = self.table(request).blocks[boundary // self.block_size]
            self.register_partial(request, block, boundary)
