"""Loads, on the scheduler's side: what is loaded, for whom, into which blocks, and when it is over.

A request that a connector supplies more of than the local cache does gets its blocks at once and
waits until every rank has filled them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.kv_cache_manager import KVCacheManager
from cowtail.impl.torch_engine.lookup import Hit
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.store_jobs import Tables
from cowtail.models.observations import NULL_BLOCK, Load, LoadView
from cowtail.models.scope import Scope

Present = frozenset[tuple[int, int]]
"""Keys that a store had for every rank when it was looked up: (group, length in tokens)."""


@attrs.frozen
class Supply:
    """``length`` tokens that connector ``child`` can fill. ``present`` is a store's snapshot."""

    child: int
    length: int
    present: Present = frozenset()


@attrs.frozen(eq=False)
class LoadJob:
    """A load as workers get it: into the blocks of ``tables``, out of what was ``present``."""

    load: Load
    request: Request
    tables: Tables
    present: Present


@attrs.define(eq=False)
class LoadEntry:
    """A load under way: the ranks that have not reported it, and whether one of them failed."""

    request: str
    ranks_owed: list[int]
    failed: bool = False


class LoadLedger:
    """Loads that not every rank has reported, in the order begun; one a request at most."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.entries: dict[str, LoadEntry] = {}

    def begin(self, name: str) -> None:
        """Expect a report of the request's load from every rank."""
        self.entries[name] = LoadEntry(name, list(range(self.num_ranks)))

    def report(self, name: str, rank: int, *, failed: bool) -> LoadEntry | None:
        """Count one rank's report; return the entry, which is gone then, if it was the last.

        Raises EngineError for a report that nobody waits for.
        """
        entry = self.entries.get(name)
        if entry is None or rank not in entry.ranks_owed:
            raise EngineError(f"rank {rank} reports a load of {name!r}: nobody waits for it")
        entry.ranks_owed.remove(rank)
        self.note_result(entry, failed=failed)
        if not self.is_complete(entry):
            return None
        return self.entries.pop(name)

    def owed(self, name: str) -> list[int]:
        """Return the ranks that have not reported the request's load."""
        return list(self.entries[name].ranks_owed)

    def note_result(self, entry: LoadEntry, *, failed: bool) -> None:
        """Remember a failure: one rank's is everybody's."""
        entry.failed |= failed

    def is_complete(self, entry: LoadEntry) -> bool:
        """Whether no rank owes a report any more."""
        return not entry.ranks_owed

    def views(self) -> tuple[LoadView, ...]:
        """Return what can be observed of the loads under way."""
        return tuple(
            LoadView(each.request, tuple(each.ranks_owed), each.failed)
            for each in self.entries.values()
        )


class LoadAllocator:
    """Blocks for requests that wait for a load, and the rule that keeps them from filling a pool.

    A loading request holds blocks and computes nothing. Two of them could take all blocks between
    them and wait for more for ever. So a load begins only if everything fits that all of them need
    to compute what they know.
    """

    def __init__(self, scope: Scope, cache: KVCacheManager) -> None:
        self.scope = scope
        self.cache = cache

    def allocate(
        self, request: Request, hit: Hit, start: int, end: int, waiting: Iterable[Request]
    ) -> None:
        """Give ``request`` the local hit below ``start`` and new blocks up to ``end`` tokens.

        ``waiting``: other requests that are loading or loaded. Raises EngineError if not all of
        them would fit. Nothing is keyed, and nothing zeroed: bytes come from outside.
        """
        pool = self.cache.pool
        adopted = [self.adopted(index, hit, start, end) for index in range(len(self.scope.groups))]
        touched = [block for table in adopted for block in table if block != NULL_BLOCK]
        missing = [
            self.columns(index, end) - max(len(table), self.skipped(index, end))
            for index, table in enumerate(adopted)
        ]
        needed = sum(map(pool.is_free, touched)) + sum(missing)
        reserved = self.reserved(request.known, end)
        reserved += sum(self.reserved(each.known, each.computed) for each in waiting)
        if needed + reserved > pool.num_free:
            raise EngineError(
                f"request {request.name!r} needs {needed} blocks to load {end} tokens, and "
                f"{reserved} must stay free for what is loading: only {pool.num_free} are free; "
                "finish or preempt another request first"
            )
        pool.touch(touched)
        for index, group in enumerate(self.cache.groups):
            table = group.table(request)
            skipped = max(self.skipped(index, end) - len(adopted[index]), 0)
            table.blocks = [*adopted[index], *[NULL_BLOCK] * skipped]
            table.blocks += pool.allocate(missing[index])
            table.num_cached = start // group.block_size
            table.allocated = True

    def adopted(self, index: int, hit: Hit, start: int, end: int) -> list[int]:
        """Return the group's blocks of a hit below ``start``, nulls where ``end`` skips them."""
        group = self.scope.groups[index]
        if group.is_mamba:
            return []
        skipped = self.skipped(index, end)
        return [
            NULL_BLOCK if column < skipped else block
            for column, block in enumerate(hit.tables[index][: start // group.block_size])
        ]

    def skipped(self, index: int, end: int) -> int:
        """Return the leading columns that nobody who has computed ``end`` tokens needs."""
        return self.cache.groups[index].columns_skipped(end)

    def columns(self, index: int, end: int) -> int:
        """Return the columns of a table that holds ``end`` tokens, and scratch for drafts."""
        group = self.scope.groups[index]
        scratch = self.scope.speculative_tokens if group.is_mamba else 0
        return math.ceil(end / group.block_size) + scratch

    def reserved(self, known: int, loaded: int) -> int:
        """Return the blocks that a request still needs to compute all it knows after its load."""
        blocks = 0
        for group in self.scope.groups:
            missing = math.ceil(known / group.block_size) - math.ceil(loaded / group.block_size)
            if group.is_mamba:
                blocks += (missing > 0) + 1  # and one for a copy
            else:
                blocks += max(missing, 0)
        return blocks
