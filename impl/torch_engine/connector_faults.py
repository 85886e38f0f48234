"""Store connectors that somebody got wrong: what is stored, out of which block, how far."""

from __future__ import annotations

from collections.abc import Sequence

from cowtail.impl.torch_engine.connector import Save, StoreConnector
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.store_jobs import Tables
from cowtail.models.observations import Handoff, Put


class FindsStateByPosition(StoreConnector):
    """The block of a boundary state is looked up in the table, where the state once was."""

    def state_block(self, handoff: Handoff, tables: Tables) -> int:
        """Ignore the block that was handed over."""
        column = (handoff.boundary - 1) // self.scope.groups[handoff.group].block_size
        return tables[handoff.group][column]


class SkipsPartialChunk(StoreConnector):
    """Tail blocks are enumerated by floor division, so a boundary inside a block is left out."""

    def tail_positions(self, start: int, boundary: int, block_size: int) -> range:
        """Return the full blocks only."""
        return range(start // block_size, boundary // block_size)


class StoresPastBoundary(StoreConnector):
    """A tail block is stored as if it were full, beyond the boundary."""

    def tail_end(self, position: int, block_size: int, boundary: int) -> int:
        """Return the end of the block."""
        return (position + 1) * block_size


class PinsBlocksTwice(StoreConnector):
    """A block that a job uses twice is pinned twice."""

    def blocks_to_pin(self, puts: Sequence[Put], tables: Tables) -> tuple[int, ...]:
        """Return every use of every block."""
        return tuple(self.blocks_used(puts, tables))


class SavesKnownTokensAtFinish(StoreConnector):
    """A request that finishes on a block boundary has its last block saved as a full one.

    The token sampled last is known, and has never been computed.
    """

    def request_finished(self, request: Request, tables: Tables) -> int:
        """Save up to the known tokens if they end on a block boundary."""
        tracker = self.trackers.get(request.name)
        known = request.known
        on_boundary = known % self.layout.lcm == 0
        if self.saves and tracker is not None and on_boundary and known > tracker.num_saved:
            self.queue_at_finish(Save(request, tables, completed=known, save_to=known))
        return super().request_finished(request, tables)
