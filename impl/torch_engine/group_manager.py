"""The managers of single KV cache groups: what they share, and full attention.

One method per moment of a request's life, in the order in which ``KVCacheManager`` calls them:
give back, count, adopt the hit, allocate, key, free.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.block_table import BlockTable, PassRecord
from cowtail.impl.torch_engine.chunking import Extent
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.retention import Retention
from cowtail.models.observations import NULL_BLOCK, Copy, Handoff, Key, Marker
from cowtail.models.scope import Scope


class GroupManager(ABC):
    """Tables of every request in one group. ``index`` is the group's position in the scope."""

    def __init__(
        self,
        scope: Scope,
        index: int,
        pool: BlockPool,
        record: PassRecord,
        retention: Retention,
    ) -> None:
        self.scope = scope
        self.layout = CacheLayout.of(scope)
        self.index = index
        self.block_size = self.layout.block_sizes[index]
        self.pool = pool
        self.record = record
        self.retention = retention
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
        return chunk.worker_tables[self.index][chunk.start // self.block_size : last]

    @abstractmethod
    def columns_skipped(self, computed: int) -> int:
        """Return how many leading columns nobody needs who goes on from ``computed`` tokens."""

    @abstractmethod
    def reclaimable(self, request: Request) -> list[list[int]]:
        """Return the columns of real blocks that the processed tokens no longer need.

        In batches, each freed by itself in the order given.
        """

    def remove_skipped(self, request: Request) -> None:
        """Give back blocks that the processed tokens no longer need, judged by those only.

        A step in flight still reads what it starts from.
        """
        blocks = self.table(request).blocks
        for batch in self.reclaimable(request):
            freed = [blocks[column] for column in batch]
            for column in batch:
                blocks[column] = NULL_BLOCK
            self.pool.free(freed)

    @abstractmethod
    def num_needed(
        self, blocks: Sequence[int], extent: Extent, *, copy_due: bool, allocated: bool
    ) -> int:
        """Return how many new blocks it takes to compute up to ``extent.end`` tokens.

        ``blocks``: the table as it is, or as a hit would begin it.
        """

    @abstractmethod
    def allocate(self, request: Request, extent: Extent, *, admitted: bool) -> None:
        """Carry out the copy-on-write that is due, and extend the table to ``extent.end``."""

    @abstractmethod
    def register(self, request: Request, length: int, extent: Extent | None) -> None:
        """Key what the first ``length`` tokens, all of them known, cover anew.

        ``extent`` is that of the chunk which computes them; None for tokens that were loaded.
        """

    def take_finished_tail(self, request: Request) -> Handoff | None:
        """Consume the marker at finish; only a Mamba group ever answers with a tail (R4)."""
        return None

    def copy_due(self, request: Request) -> bool:
        """Whether the next allocation must copy a block first."""
        return self.table(request).copy_at is not None

    def copy_due_once_keyed(self, request: Request, length: int) -> bool:
        """Whether a copy is due, now or once the first ``length`` tokens are registered."""
        return self.copy_due(request)

    def adoptable(self, blocks: list[int], length: int) -> list[int]:
        """Return what a table adopts of a hit of ``length`` tokens: nulls where it needs none."""
        skipped = self.columns_skipped(length)
        return [NULL_BLOCK] * min(skipped, len(blocks)) + blocks[skipped:]

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

    def keeps(self, request: Request, column: int) -> bool:
        """Whether the full block at ``column`` is worth a key."""
        return self.retention.keeps(self.index, column, request.prompt_length, request.junction)

    def register_full_blocks(self, request: Request, length: int) -> range:
        """Key each full, real, retained block not considered before; return their columns."""
        table = self.table(request)
        full = length // self.block_size
        columns = range(table.num_cached, full)
        for column in columns:
            block = table.blocks[column]
            if block != NULL_BLOCK and self.keeps(request, column):
                self.pool.drop_keys(block)
                self.add_key(request, block, (column + 1) * self.block_size)
        table.num_cached = max(table.num_cached, full)
        return columns

    def register_partial(self, request: Request, block: int, length: int) -> None:
        """Key a block at a boundary inside it; keys that cover less are dropped first."""
        primary = self.pool.primary(block)
        held = self.key(request, length) in self.pool.keys(block)
        if not held and primary and len(primary.prefix) < length:
            self.pool.drop_keys(block)
        self.add_key(request, block, length)

    def add_key(self, request: Request, block: int, length: int) -> None:
        """Key a block at ``length`` tokens; nothing if it has that key."""
        key = self.key(request, length)
        if key not in self.pool.keys(block):
            self.pool.add_key(block, key)
            self.record.note_key(request.name, block, key)

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


class AttentionManager(GroupManager):
    """KV per token: the table only grows, one block for every ``block_size`` tokens."""

    def num_needed(
        self, blocks: Sequence[int], extent: Extent, *, copy_due: bool, allocated: bool
    ) -> int:
        """Return what the table lacks, and one more for a copy."""
        return max(0, math.ceil(extent.end / self.block_size) - len(blocks)) + copy_due

    def allocate(self, request: Request, extent: Extent, *, admitted: bool) -> None:
        """Copy what is due (only ever a consumer's), then append the blocks that are missing."""
        table = self.table(request)
        due = table.copy_at
        blocks = self.take_blocks(
            self.num_needed(
                table.blocks, extent, copy_due=due is not None, allocated=table.allocated
            )
        )
        if due is not None:
            self.copy_for_consumer(table, due, blocks.pop(0))
        table.blocks.extend(blocks)
        table.allocated = True

    def register(self, request: Request, length: int, extent: Extent | None) -> None:
        """Key full blocks."""
        self.register_full_blocks(request, length)


class FullAttentionManager(AttentionManager):
    """Every token attends to all before it, so every block is kept."""

    def columns_skipped(self, computed: int) -> int:
        """Return none."""
        return 0

    def reclaimable(self, request: Request) -> list[list[int]]:
        """Return nothing."""
        return []

    def register(self, request: Request, length: int, extent: Extent | None) -> None:
        """Key full blocks, and what proves the prompt's replay boundary, inside a block."""
        super().register(request, length, extent)
        proof = self.layout.replay_boundary(request.prompt_length) + self.layout.margin(self.index)
        inside = proof % self.block_size != 0
        known = min(length, request.prompt_length)
        if self.layout.partial_hits and inside and 0 < proof <= known:
            block = self.table(request).blocks[proof // self.block_size]
            self.register_partial(request, block, proof)


class SlidingWindowManager(AttentionManager):
    """A token attends to the ``window - 1`` before it and itself: older blocks are given back."""

    def columns_skipped(self, computed: int) -> int:
        """Return the blocks that the window of the next token does not reach."""
        window = self.scope.groups[self.index].window
        return max(0, computed - window + 1) // self.block_size

    def reclaimable(self, request: Request) -> list[list[int]]:
        """Return, from the right, the blocks behind the window, up to those given back before."""
        blocks = self.table(request).blocks
        columns = []
        for column in range(min(self.columns_skipped(request.processed), len(blocks)) - 1, -1, -1):
            if blocks[column] == NULL_BLOCK:
                break
            columns.append(column)
        return [columns] if columns else []
