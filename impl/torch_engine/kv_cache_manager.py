"""The KV cache manager: one pool, one manager per group, and what they do together.

A hit must suit every group; an allocation must fit for all groups or for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.block_table import PassRecord
from cowtail.impl.torch_engine.chunking import Extent
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.fence import FreeFence
from cowtail.impl.torch_engine.group_manager import GroupManager
from cowtail.impl.torch_engine.lookup import Hit, JointLookup, PoolKeys
from cowtail.impl.torch_engine.mamba_manager import MambaManager
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.retention import Retention
from cowtail.models.observations import Copy, Handoff, Marker
from cowtail.models.scope import GroupKind, Scope


class KVCacheManager:
    """Lookup, allocation, keys and frees across the groups of a scope."""

    def __init__(
        self,
        scope: Scope,
        pool: BlockPool,
        managers: Mapping[GroupKind, type[GroupManager]],
        record: PassRecord,
        retention: Retention,
        lookup: JointLookup,
        fence: FreeFence,
    ) -> None:
        self.pool = pool
        self.record = record
        self.lookup = lookup
        self.fence = fence
        self._keys = PoolKeys(pool)
        self.groups: tuple[GroupManager, ...] = tuple(
            managers[group.kind](scope, index, pool, record, retention)
            for index, group in enumerate(scope.groups)
        )
        self._mamba = [g for g in self.groups if isinstance(g, MambaManager)]

    def find_hit(self, request: Request) -> Hit:
        """Return the longest prefix, short of the last known token, that all groups have.

        Its tables hold what is adopted: nulls where a window does not reach.
        """
        hit = self.lookup.find(self._keys, request.prefix(request.known))
        tables = [g.adoptable(hit.tables[g.index], hit.length) for g in self.groups]
        return attrs.evolve(hit, tables=tuple(tables))

    def hit_of_this_pass(self, hit: Hit) -> bool:
        """Whether a hit ends on a state that this pass's own step has yet to produce."""
        for group in self._mamba:
            table = hit.tables[group.index]
            if table and self.pool.primary(table[-1]) in self.record.mamba_keys:
                return True
        return False

    def copies_unwritten(self, hit: Hit, chunks: Iterable[ScheduledChunk]) -> bool:
        """Whether a hit ends inside a block that one of this pass's chunks has yet to write.

        The step makes its copies before its forward pass, and reads for all of them first.
        """
        scheduled = tuple(chunks)
        for group in self.groups:
            table = hit.tables[group.index]
            if not table or hit.length % group.block_size == 0:
                continue
            if any(table[-1] in group.blocks_written(chunk) for chunk in scheduled):
                return True
        return False

    def allocate(self, request: Request, extent: Extent, hit: Hit | None) -> None:
        """Make the tables hold the tokens of a chunk, and key what is known of them.

        ``hit`` is given at admission; ``request.computed`` includes it already. Raises
        EngineError, and changes nothing, if the blocks do not fit.
        """
        self._require_room(request, self._num_needed(request, extent, hit), extent)
        for group in self.groups:
            group.remove_skipped(request)
        if hit is not None:
            self.pool.touch(hit.blocks)
            for group in self.groups:
                group.adopt_hit(request, hit.tables[group.index], hit.length)
        for group in self.groups:
            group.allocate(request, extent, admitted=hit is not None)
        self.register(request, min(extent.end, request.known), extent)

    def allocate_after_load(self, request: Request, extent: Extent) -> None:
        """Key what was loaded; then make the tables hold the tokens of the chunk after it.

        Raises EngineError, and changes nothing, if the blocks do not fit.
        """
        loaded = min(request.computed, request.known)
        needed = 0
        for group in self.groups:
            table, due = group.table(request), group.copy_due_once_keyed(request, loaded)
            needed += group.num_needed(
                table.blocks, extent, copy_due=due, allocated=table.allocated
            )
        self._require_room(request, needed, extent)
        self.register(request, loaded)
        self.allocate(request, extent, None)

    def _require_room(self, request: Request, needed: int, extent: Extent) -> None:
        free = self.pool.num_free
        if needed > free and needed > free + self._reclaimable(request):
            raise EngineError(
                f"request {request.name!r} needs {needed} blocks to reach {extent.end} tokens: "
                f"only {free} are free; preempt another request first"
            )

    def register(self, request: Request, length: int, extent: Extent | None = None) -> None:
        """Key what the first ``length`` tokens cover anew, group by group.

        ``extent`` is that of the chunk which computes them; None for tokens that were loaded.
        """
        for group in self.groups:
            group.register(request, length, extent)

    def _num_needed(self, request: Request, extent: Extent, hit: Hit | None) -> int:
        if hit is None:
            needed = 0
            for group in self.groups:
                table, due = group.table(request), group.copy_due(request)
                needed += group.num_needed(
                    table.blocks, extent, copy_due=due, allocated=table.allocated
                )
            return needed
        revived = sum(self.pool.is_free(block) for block in hit.blocks)
        return revived + sum(
            group.num_needed(
                hit.tables[group.index],
                extent,
                copy_due=hit.length % group.block_size != 0,
                allocated=False,
            )
            for group in self.groups
        )

    def _reclaimable(self, request: Request) -> int:
        """Return how many blocks get free once the request gives back what it needs no more."""
        columns = [
            group.table(request).blocks[column]
            for group in self.groups
            for batch in group.reclaimable(request)
            for column in batch
        ]
        return sum(int(self.pool.ref_counts[block]) == 1 for block in columns)

    def withdraw(self, request: Request) -> None:
        """Take back, for a chunk that will not be computed, its offers and the keys it gave.

        Its blocks are free before the step of this pass runs: that must not zero them.
        """
        for block, key in self.record.withdraw(request.name):
            self.pool.drop_key(block, key)
        self.record.do_not_zero({block for table in self.tables(request.name) for block in table})

    def take_finished_tails(self, request: Request) -> list[Handoff]:
        """Ask every group for its tail at finish (R4); markers are consumed in every case."""
        tails = [group.take_finished_tail(request) for group in self.groups]
        return [tail for tail in tails if tail is not None]

    def remove_skipped(self, request: Request) -> None:
        """Give back, at finish, the blocks that the processed tokens no longer need."""
        for group in self.groups:
            group.remove_skipped(request)

    def free(self, request: Request) -> None:
        """Free every group's table, group by group, once no step in flight may write it."""
        self.fence.give_back(*[group.forget(request) for group in self.groups])

    def free_at_once(self, request: Request) -> None:
        """Free every group's table now: no step has ever had its blocks."""
        for group in self.groups:
            self.pool.free(group.forget(request))

    def reset(self) -> bool:
        """Forget every key; return False, and keep all, while anything references a block."""
        if self.is_in_use():
            return False
        self.pool.forget_keys()
        return True

    def is_in_use(self) -> bool:
        """Whether anything references a block, or gave one back that is not free yet."""
        return bool(self.pool.num_used or self.fence.waiting())

    def release_copies(self, copies: tuple[Copy, ...]) -> None:
        """Drop the references that a pass's copies held: group by group, source first.

        The copies are ordered before whatever a later step overwrites their blocks with, so
        their bytes are safe without a reference; but not from a load.
        """
        by_group = sorted(copies, key=lambda copy: copy.group)
        self.fence.give_back([block for c in by_group for block in (c.source, c.destination)])

    def tables(self, request_name: str) -> tuple[tuple[int, ...], ...]:
        """Return the block ids of a request, group by group."""
        return tuple(group.blocks(request_name) for group in self.groups)

    def markers(self, request_name: str) -> tuple[Marker | None, ...]:
        """Return the registered tail of a request, group by group."""
        return tuple(group.marker(request_name) for group in self.groups)
