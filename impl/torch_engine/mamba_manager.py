"""The Mamba group in align mode: one recurrent state a block, and the life of the partial tail.

The running state is overwritten in place. The state at the prompt's replay boundary is therefore
*registered* as a partial tail, and copied away before the next step overwrites it: the copy is
the durable block, in no table, and it is what the connector is handed. A request that finishes
exactly at the boundary hands over its own block instead (R1).
"""

from __future__ import annotations

import math

from cowtail.impl.torch_engine.block_table import BlockTable
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.group_manager import GroupManager
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.models.observations import NULL_BLOCK, Copy, Handoff, Marker


class MambaManager(GroupManager):
    """A table indexed by position: entry i, if real, holds a state inside block i's tokens."""

    def blocks_written(self, chunk: ScheduledChunk) -> tuple[int, ...]:
        """Return the block of the running state at the chunk's end."""
        column = math.ceil(chunk.end / self.block_size) - 1
        return chunk.tables[self.index][column : column + 1]

    def remove_skipped(self, request: Request) -> None:
        """Give back the states that the device is past, judged by processed tokens only.

        A step in flight still reads the state that it starts from.
        """
        table, processed = self.table(request), request.processed
        upper = min((processed - 1) // self.block_size, len(table.blocks))
        if upper > table.retired:
            retired = range(upper - 1, table.retired - 1, -1)
            freed = [table.blocks[index] for index in retired]
            table.blocks[table.retired : upper] = [NULL_BLOCK] * len(freed)
            table.retired = upper
            self.pool.free(freed)
        last = table.last_state
        if last is not None and last < math.ceil(processed / self.block_size) - 1:
            table.give_back(last, self.pool)

    def num_needed(self, table_length: int, copy_due: bool, end: int) -> int:
        """Return one for a new running state if its column changes, and one for a copy."""
        return (math.ceil(end / self.block_size) > table_length) + copy_due

    def allocate(self, request: Request, end: int, *, admitted: bool) -> None:
        """Copy the block that is due, then move the running state to the column of ``end``."""
        table = self.table(request)
        columns = math.ceil(end / self.block_size)
        due = table.copy_at
        if columns <= len(table.blocks) and due is None:
            return
        blocks = self.take_blocks(self.num_needed(len(table.blocks), due is not None, end))
        if due is not None and admitted:
            self.copy_for_consumer(table, due, blocks.pop(0))
        elif due is not None:
            self.copy_for_producer(request, due, blocks.pop(0))
        if table.blocks:
            table.last_state = len(table.blocks) - 1
        table.blocks.extend([NULL_BLOCK] * (columns - 1 - len(table.blocks)))
        table.blocks.extend(blocks)

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

    def register(self, request: Request, length: int) -> None:
        """Key and offer states on block boundaries; register the tail at the replay boundary."""
        for block, end in self.register_full_blocks(request, length):
            self.record.mamba_keys.add(self.key(request, end))
            self.record.handoffs.append(Handoff(request.name, self.index, block, end))
        boundary = self.layout.replay_boundary(request.prompt_length)
        if not self.layout.partial_hits or length == 0 or length != boundary:
            return
        table = self.table(request)
        index = math.ceil(length / self.block_size) - 1
        block = table.blocks[index]
        if block == NULL_BLOCK:
            return
        self.record.mamba_keys.add(self.register_partial(request, block, length))
        if length % self.block_size:
            table.copy_at = table.num_cached = index
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
