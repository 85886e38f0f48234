"""The Mamba group in align mode: one recurrent state a block, and the life of the partial tail.

The running state is overwritten in place. The state at the prompt's replay boundary is therefore
*registered* as a partial tail, and copied away before the next step overwrites it: the copy is
the durable block, in no table, and it is what the connector is handed. A request that finishes
exactly at the boundary hands over its own block instead (R1).

Behind the running state stand scratch blocks, one for each draft: the states after the drafts,
of which the one after the last accepted draft counts. They move along with the running state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from cowtail.impl.torch_engine.block_table import BlockTable
from cowtail.impl.torch_engine.chunking import Extent
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.group_manager import GroupManager
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.models.observations import NULL_BLOCK, Copy, Handoff, Marker


@attrs.frozen
class _Growth:
    """How a table reaches ``length`` columns.

    Nulls are appended up to ``padded`` columns, the blocks of the columns ``relocated`` move
    behind them, and new blocks fill up the rest.
    """

    length: int
    padded: int
    relocated: list[int]

    @property
    def num_new(self) -> int:
        """New blocks that it takes."""
        return max(self.length - self.padded - len(self.relocated), 0)


class MambaManager(GroupManager):
    """A table indexed by position: entry i, if real, holds a state inside block i's tokens."""

    def blocks_written(self, chunk: ScheduledChunk) -> tuple[int, ...]:
        """Return the block of the running state at the chunk's end, and those of its drafts."""
        column = math.ceil(chunk.end / self.block_size) - 1
        return chunk.worker_tables[self.index][column : column + 1 + chunk.drafts]

    def columns_skipped(self, computed: int) -> int:
        """Return all before the one whose state is gone on from."""
        return max(0, (computed - 1) // self.block_size)

    def reclaimable(self, request: Request) -> list[list[int]]:
        """Return the states that the device is past, then the one that it copied last."""
        table, processed = self.table(request), request.processed
        upper = min(self.columns_skipped(processed), len(table.blocks))
        passed = range(upper - 1, table.retired - 1, -1)
        batches = [[column for column in passed if table.blocks[column] != NULL_BLOCK]]
        last = table.last_state
        if (
            last is not None
            and last < math.ceil(processed / self.block_size) - 1
            and last not in batches[0]
            and table.blocks[last] != NULL_BLOCK
        ):
            batches.append([last])
        return [batch for batch in batches if batch]

    def remove_skipped(self, request: Request) -> None:
        """Give states back, and remember up to which column."""
        super().remove_skipped(request)
        table = self.table(request)
        upper = min(self.columns_skipped(request.processed), len(table.blocks))
        table.retired = max(table.retired, upper)

    @property
    def num_scratch(self) -> int:
        """Blocks behind the running state's."""
        return self.scope.speculative_tokens

    def checkpoint_column(self, extent: Extent) -> int:
        """Return the column whose block takes a state exported from within the chunk."""
        return math.ceil(extent.end / self.block_size) - 2

    def _growth(self, blocks: Sequence[int], extent: Extent, *, allocated: bool) -> _Growth:
        """Return how a table comes to hold the running state and scratch behind it."""
        old, scratch = len(blocks), self.num_scratch if allocated else 0
        length = math.ceil(extent.end / self.block_size) + self.num_scratch
        nulls = length - self.num_scratch - 1 - self._exports(blocks, extent, allocated=allocated)
        relocated = [column for column in range(old - scratch, old) if column < nulls]
        return _Growth(length, max(old, nulls), relocated)

    def _exports(self, blocks: Sequence[int], extent: Extent, *, allocated: bool) -> bool:
        """Whether the chunk needs a block of its own for a state exported from within it."""
        if extent.checkpoint is None:
            return False
        column, old = self.checkpoint_column(extent), len(blocks)
        if column >= old or blocks[column] == NULL_BLOCK:
            return True
        return allocated and column >= old - self.num_scratch

    def num_needed(
        self, blocks: Sequence[int], extent: Extent, *, copy_due: bool, allocated: bool
    ) -> int:
        """Return what the table lacks, and one more for a copy."""
        if not self._must_allocate(blocks, extent, copy_due=copy_due, allocated=allocated):
            return 0
        return self._growth(blocks, extent, allocated=allocated).num_new + copy_due

    def _must_allocate(
        self, blocks: Sequence[int], extent: Extent, *, copy_due: bool, allocated: bool
    ) -> bool:
        length = math.ceil(extent.end / self.block_size) + self.num_scratch
        return (
            length > len(blocks) or copy_due or self._exports(blocks, extent, allocated=allocated)
        )

    def allocate(self, request: Request, extent: Extent, *, admitted: bool) -> None:
        """Copy the block that is due, then move the running state to the column of the end."""
        table = self.table(request)
        due, allocated = table.copy_at, table.allocated
        copy_due = due is not None
        if not self._must_allocate(table.blocks, extent, copy_due=copy_due, allocated=allocated):
            return
        growth = self._growth(table.blocks, extent, allocated=allocated)
        blocks = self.take_blocks(growth.num_new + copy_due)
        if due is not None and admitted:
            self.copy_for_consumer(table, due, blocks.pop(0))
        elif due is not None:
            self.copy_for_producer(request, due, blocks.pop(0))
        if table.blocks:
            scratch = self.num_scratch if allocated else 0
            table.last_state = len(table.blocks) - 1 - scratch
        table.blocks.extend([NULL_BLOCK] * (growth.padded - len(table.blocks)))
        for column in growth.relocated:
            self.relocate(request, table, column)
        table.blocks.extend(blocks)
        table.allocated = True

    def relocate(self, request: Request, table: BlockTable, column: int) -> None:
        """Move a scratch block to the end of the table.

        Raises EngineError if somebody else may find or hold it.
        """
        block = table.blocks[column]
        if self.pool.keys(block) or int(self.pool.ref_counts[block]) != 1:
            raise EngineError(
                f"relocating block {block} of {request.name!r}: it has keys or other holders, "
                "scratch has neither"
            )
        table.blocks[column] = NULL_BLOCK
        table.blocks.append(block)

    def copy_for_producer(self, request: Request, index: int, destination: int) -> None:
        """Copy a registered tail out of the running block, and hand the copy over (R9).

        The allocation's reference on ``destination`` is the copy's own: no table holds it.
        Raises EngineError if the block is not the one that was registered.
        """
        table = self.table(request)
        source = table.blocks[index]
        marker = table.marker
        if marker is not None and marker.block != source:
            raise EngineError(
                f"copying the tail of {request.name!r}: the table holds block {source}, but "
                f"block {marker.block} was registered"
            )
        table.copy_at = None
        self.record.mamba_keys.update(self.pool.move_keys(source, destination))
        self.hold_source(source)
        self.record.copies.append(Copy(self.index, source, destination))
        if marker is not None:
            table.marker = None
            handoff = Handoff(request.name, self.index, destination, marker.boundary)
            self.record.handoffs.append(handoff)

    def hold_source(self, source: int) -> None:
        """Keep the source of a copy referenced until the pass ends."""
        self.pool.touch((source,))

    def add_key(self, request: Request, block: int, length: int) -> None:
        """Key a state, and note that the pass's own step has yet to compute it."""
        super().add_key(request, block, length)
        self.record.mamba_keys.add(self.key(request, length))

    def register(self, request: Request, length: int, extent: Extent | None) -> None:
        """Key states on block boundaries, an exported one, the tail; offer those in full columns.

        An offer names the length of the block's primary key, which says what it will hold.
        """
        blocks = self.table(request).blocks
        columns = self.register_full_blocks(request, length)
        exported = extent.checkpoint if extent is not None else None
        if extent is not None and exported is not None:
            block = blocks[self.checkpoint_column(extent)]
            self.register_checkpoint(request, block, exported)
        elif self.is_tail(request, length):
            self._register_tail_at(request, length)
        for column in columns:
            block = blocks[column]
            key = self.pool.primary(block) if block != NULL_BLOCK else None
            if key is not None:
                self.record.handoffs.append(
                    Handoff(request.name, self.index, block, len(key.prefix))
                )

    def register_checkpoint(self, request: Request, block: int, length: int) -> None:
        """Key the block of an exported state by it alone, if a later request may resume there."""
        if not self.is_reusable(request, length):
            self.pool.drop_keys(block)
            return
        primary = self.pool.primary(block)
        if primary != self.key(request, length):
            self.pool.drop_keys(block)
            self.add_key(request, block, length)

    def is_reusable(self, request: Request, length: int) -> bool:
        """Whether an exported state is at the replay boundary, retained, or at the junction."""
        replay = self.layout.replay_boundary(request.prompt_length, self.layout.alignment)
        column, rest = divmod(length, self.block_size)
        retained = rest == 0 and self.keeps(request, column - 1)
        return length == replay or retained or length == request.junction

    def is_tail(self, request: Request, length: int) -> bool:
        """Whether the state at ``length`` is kept wherever it lies: a prompt is resumed there."""
        if not self.layout.partial_hits or length == 0:
            return False
        if length == self.layout.replay_boundary(request.prompt_length):
            return True
        return (
            self.scope.shared_prefix_checkpoints
            and length == request.junction
            and request.computed < length <= request.prompt_length
        )

    def copy_due_once_keyed(self, request: Request, length: int) -> bool:
        """Whether a copy is due, now or by the tail that registering ``length`` tokens finds."""
        if self.copy_due(request):
            return True
        inside = length % self.block_size != 0
        return inside and self.is_tail(request, length) and self._lacks_key(request, length)

    def _lacks_key(self, request: Request, length: int) -> bool:
        """Whether the block of the state at ``length`` is real and not keyed there yet."""
        block = self.table(request).blocks[math.ceil(length / self.block_size) - 1]
        return block != NULL_BLOCK and self.key(request, length) not in self.pool.keys(block)

    def _register_tail_at(self, request: Request, length: int) -> None:
        if not self._lacks_key(request, length):
            return
        table = self.table(request)
        column = math.ceil(length / self.block_size) - 1
        block = table.blocks[column]
        self.register_partial(request, block, length)
        if length % self.block_size:
            table.copy_at = table.num_cached = column
            self.register_tail(request, table, Marker(block, length))

    def register_tail(self, request: Request, table: BlockTable, marker: Marker) -> None:
        """Remember the exact block that holds the boundary's state (R9)."""
        table.marker = marker

    def take_finished_tail(self, request: Request) -> Handoff | None:
        """Consume the marker; answer only if its block still holds that state (R1, R2)."""
        table = self.table(request)
        marker, table.marker = table.marker, None
        if marker is None or not self.tail_is_intact(request, marker):
            return None
        return Handoff(request.name, self.index, marker.block, marker.boundary)

    def tail_is_intact(self, request: Request, marker: Marker) -> bool:
        """Whether nothing is computed, or being computed, past the marker's boundary."""
        return request.in_flight == 0 and request.computed == marker.boundary
