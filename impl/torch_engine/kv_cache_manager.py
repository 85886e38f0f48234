"""The KV cache manager: one pool, one manager per group, and what they do together.

A hit must suit every group; an allocation must fit for all groups or for none.
"""

from __future__ import annotations

from collections.abc import Iterable

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.block_table import PassRecord
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.fence import FreeFence
from cowtail.impl.torch_engine.group_manager import FullAttentionManager, GroupManager
from cowtail.impl.torch_engine.lookup import Hit, JointLookup, PoolKeys
from cowtail.impl.torch_engine.mamba_manager import MambaManager
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.models.observations import Copy, Handoff, Marker
from cowtail.models.scope import Scope


class KVCacheManager:
    """Lookup, allocation, keys and frees across the groups of a scope."""

    def __init__(
        self,
        scope: Scope,
        pool: BlockPool,
        attention: type[FullAttentionManager],
        mamba: type[MambaManager],
        record: PassRecord,
        lookup: JointLookup,
        fence: FreeFence,
    ) -> None:
        self.pool = pool
        self.record = record
        self.lookup = lookup
        self.fence = fence
        self._keys = PoolKeys(pool)
        self.groups: tuple[GroupManager, ...] = tuple(
            (mamba if group.is_mamba else attention)(scope, index, pool, record)
            for index, group in enumerate(scope.groups)
        )
        self._mamba = [g for g in self.groups if isinstance(g, MambaManager)]

    def find_hit(self, request: Request) -> Hit:
        """Return the longest prefix, short of the last known token, that all groups have."""
        return self.lookup.find(self._keys, request.prefix(request.known))

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

    def allocate(self, request: Request, end: int, hit: Hit | None) -> None:
        """Make the tables hold ``end`` tokens and key what is known of them.

        ``hit`` is given at admission; ``request.computed`` includes it already. Raises
        EngineError if the blocks do not fit.
        """
        for group in self.groups:
            group.remove_skipped(request)
        needed = self._num_needed(request, end, hit)
        if needed > self.pool.num_free:
            raise EngineError(
                f"request {request.name!r} needs {needed} blocks to reach {end} tokens: only "
                f"{self.pool.num_free} are free; preempt another request first"
            )
        if hit is not None:
            self.pool.touch(hit.blocks)
            for group in self.groups:
                group.adopt_hit(request, hit.tables[group.index], hit.length)
        for group in self.groups:
            group.allocate(request, end, admitted=hit is not None)
        for group in self.groups:
            group.register(request, min(end, request.known))

    def _num_needed(self, request: Request, end: int, hit: Hit | None) -> int:
        if hit is None:
            return sum(
                group.num_needed(len(group.table(request).blocks), group.copy_due(request), end)
                for group in self.groups
            )
        revived = sum(self.pool.is_free(block) for block in hit.blocks)
        return revived + sum(
            group.num_needed(len(hit.tables[group.index]), hit.length % group.block_size != 0, end)
            for group in self.groups
        )

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
