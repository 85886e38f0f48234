"""The joint lookup: the longest prefix that every group of a scope can supply.

It is the same wherever keys are: a ``KeySource`` says which blocks of a lookup set have a key, be
it the local pool or a store, of which only the presence of keys is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.layout import CacheLayout, LookupSet
from cowtail.models.observations import NULL_BLOCK, Key
from cowtail.models.scope import GroupKind

Column = tuple[int, ...]
"""One block for each group of a lookup set."""


class KeySource(Protocol):
    """Somewhere that keys are kept."""

    def find(self, groups: Sequence[int], prefix: str) -> Column | None:
        """Return what is cached under ``prefix``, a block for each group; None unless all have it.

        A source without blocks of its own answers with null blocks.
        """


class PoolKeys:
    """The keys of a block pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def find(self, groups: Sequence[int], prefix: str) -> Column | None:
        """Return the block that got the key first, for each group."""
        blocks = []
        for group in groups:
            block = self._pool.lookup(Key(group, prefix))
            if block is None:
                return None
            blocks.append(block)
        return tuple(blocks)


@attrs.frozen(eq=False)
class Hit:
    """A cached prefix of ``length`` tokens: the start of every group's table.

    ``junction``: where some group's hit ended that the others could not supply; 0 if the hit is
    as long as any group's.
    """

    length: int
    tables: tuple[list[int], ...]
    junction: int = 0

    @property
    def blocks(self) -> list[int]:
        """The real blocks, group by group."""
        return [block for table in self.tables for block in table if block != NULL_BLOCK]


@attrs.frozen(eq=False)
class _Found:
    """What one lookup of one set found: its columns, nulls included, and their length in tokens."""

    columns: list[Column]
    length: int


class JointLookup:
    """Lookups across the groups of a scope."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout

    def find(self, source: KeySource, tokens: str, most: int | None = None) -> Hit:
        """Return the longest hit of ``tokens``, all known, of at most ``most`` of them.

        Unless said otherwise, one is left to compute.
        Each set shortens what the next ones look for, until a whole round agrees. Full attention
        is looked up once, because any part of what it found is found; a window and a state must
        be cached at exactly the final length. An EAGLE set drops its last unit once, and may
        look as far beyond the common length as it will drop.
        """
        sets = self.layout.lookup_sets
        length, longest = self.bound(len(tokens)) if most is None else most, 0
        found: dict[int, _Found] = {}
        verified: set[int] = set()
        while True:
            agreed = length
            for index, each in enumerate(sets):
                if each.kind is GroupKind.FULL_ATTENTION and index in found:
                    agreed = min(agreed, found[index].length)
                    continue
                drop = each.eagle and index not in verified
                limit = self.limit(each, agreed, len(tokens)) if drop else agreed
                found[index] = self.find_in_set(source, each, tokens, limit, drop=drop)
                if drop:
                    verified.add(index)
                elif found[index].length < agreed:
                    verified.clear()
                agreed = found[index].length
                longest = max(longest, agreed)
            settled = agreed >= length
            length = min(length, agreed)
            if settled or (len(sets) == 2 and sets[0].kind is GroupKind.FULL_ATTENTION):
                break
        return Hit(length, self._tables(found, length), longest if longest > length else 0)

    def _tables(self, found: dict[int, _Found], length: int) -> tuple[list[int], ...]:
        tables: list[list[int]] = [[] for _ in self.layout.block_sizes]
        for index, each in enumerate(self.layout.lookup_sets):
            columns = found[index].columns
            if each.kind is GroupKind.FULL_ATTENTION:
                columns = columns[: math.ceil(length / each.block_size)]
            for position, group in enumerate(each.groups):
                tables[group] = [column[position] for column in columns]
        return tuple(tables)

    def bound(self, known: int) -> int:
        """Return the most tokens that a hit may have: the last one is computed for its output."""
        return known - 1

    def limit(self, each: LookupSet, agreed: int, known: int) -> int:
        """Return how far a set that will drop may look: its proof lies beyond the hit (R24)."""
        unit = self.layout.hash_unit
        return min(agreed + each.margin, known // unit * unit)

    def find_in_set(
        self, source: KeySource, each: LookupSet, tokens: str, limit: int, *, drop: bool
    ) -> _Found:
        """Return the longest prefix, of at most ``limit`` tokens, that the groups of a set have."""
        if each.kind is GroupKind.FULL_ATTENTION:
            return self._full_attention(source, each, tokens, limit, drop=drop)
        if each.kind is GroupKind.SLIDING_WINDOW:
            return self._window(source, each, tokens, limit, drop=drop)
        return self._state(source, each, tokens, limit)

    def _full_attention(
        self, source: KeySource, each: LookupSet, tokens: str, limit: int, *, drop: bool
    ) -> _Found:
        """Find the leading full blocks, and with partial hits a tail.

        With ``drop`` the last block found may be keyed beyond the hit: slots are only appended,
        so those below are what the hit needs.
        """
        size, unit = each.block_size, self.layout.alignment
        columns: list[Column] = []
        while len(columns) < limit // size:
            column = source.find(each.groups, tokens[: (len(columns) + 1) * size])
            if column is None:
                break
            columns.append(column)
        hit = len(columns) * size
        if self.layout.partial_hits and unit < size:
            for length in range(min(hit + size - unit, limit // unit * unit), hit, -unit):
                column = source.find(each.groups, tokens[:length])
                if column is not None:
                    columns.append(column)
                    hit = length
                    break
        if drop and hit:
            hit -= min(unit, size)
        hit -= hit % unit
        return _Found(columns[: math.ceil(hit / size)], hit)

    def _window(
        self, source: KeySource, each: LookupSet, tokens: str, limit: int, *, drop: bool
    ) -> _Found:
        """Find, from the right, the blocks that the window of the next token reaches.

        A prefix shorter than the window needs them all from its first token on.
        """
        size, unit = each.block_size, self.layout.alignment
        needed = each.window_blocks + drop
        run: list[Column] = []  # last column first
        first, reached = 0, False
        for index in range(limit // size - 1, -1, -1):
            column = source.find(each.groups, tokens[: (index + 1) * size])
            if column is None:
                run = []
                continue
            # A hit has to end on the alignment; with a drop it ends one block earlier.
            ends = (index if drop else index + 1) * size
            if not run and size != unit and ends % unit:
                continue
            run.append(column)
            if len(run) == needed:
                first, reached = index, True
                break
        columns = [(NULL_BLOCK,) * len(each.groups)] * first + run[::-1]
        if not reached:
            self._align(columns, size)
        if drop and columns:
            columns.pop()
            self._align(columns, size)
        return _Found(columns, len(columns) * size)

    def _align(self, columns: list[Column], size: int) -> None:
        """Cut columns from the end until they are a multiple of the alignment long."""
        while len(columns) * size % self.layout.alignment:
            columns.pop()

    def _state(self, source: KeySource, each: LookupSet, tokens: str, limit: int) -> _Found:
        """Find the longest state that a hit may end on: it must be cached exactly there."""
        size = each.block_size
        step = self.layout.hash_unit if self.layout.partial_hits else size
        for length in range(limit // step * step, 0, -step):
            if length % self.layout.alignment:
                continue
            column = source.find(each.groups, tokens[:length])
            if column is not None:
                null = (NULL_BLOCK,) * len(each.groups)
                return _Found([null] * ((length - 1) // size) + [column], length)
        return _Found([], 0)
