"""The engine's own account of how the caches of a scope are laid out, and where prompts replay.

Worked out from the sizes of the groups and the hash unit alone. The engine does not ask the model
for any of it: a rule that both shared could be wrong in both, and comparing them would not tell.

>>> from cowtail.models.scope import RequestSpec, Scope, full_attention, mamba
>>> layout = CacheLayout.of(Scope(name="tiny", groups=(full_attention(6), mamba(4)), hash_unit=2,
...                               num_blocks=16, requests=(RequestSpec("a", "abcd"),)))
>>> layout.lcm, layout.partial_hits, layout.alignment, layout.chunk_block
(12, True, 2, 4)
>>> [layout.replay_boundary(length) for length in (1, 2, 3, 4, 5)]
[0, 0, 2, 2, 4]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from cowtail.models.scope import Group, GroupKind, Scope

_LOOKUP_ORDER = (GroupKind.FULL_ATTENTION, GroupKind.SLIDING_WINDOW, GroupKind.MAMBA)


@attrs.frozen
class LookupSet:
    """Groups of one kind, block size and window: they are looked up together.

    ``groups`` are positions in the scope, ascending. ``eagle``: some group of the set is a
    drafter's, so the lookup drops the last unit that it matched. ``margin``: the tokens by which
    a key must lie beyond a hit to prove it; 0 unless ``eagle`` (R24).
    """

    kind: GroupKind
    block_size: int
    window: int
    groups: tuple[int, ...]
    eagle: bool
    margin: int

    @property
    def window_blocks(self) -> int:
        """Blocks that a window reaches back over, not counting the token's own."""
        return math.ceil((self.window - 1) / self.block_size)


@attrs.frozen
class CacheLayout:
    """Lengths that the caches of all groups go by, in tokens.

    ``hash_unit``: the grid that keys lie on. ``block_sizes``: one per group. ``lcm``: the
    smallest length that every group fills with whole blocks; normal saves are multiples of it.
    ``partial_hits``: whether a hit may end inside a block. ``alignment``: what every hit's
    length is a multiple of. ``chunk_block``: the block that prefill chunks end on, None if no
    group keeps a state. ``lookup_sets`` in the order in which they are looked up.
    """

    hash_unit: int
    block_sizes: tuple[int, ...]
    lcm: int
    partial_hits: bool
    alignment: int
    chunk_block: int | None
    lookup_sets: tuple[LookupSet, ...]

    @classmethod
    def of(cls, scope: Scope) -> CacheLayout:
        """Return the layout of a scope's caches.

        A hit inside a block needs a state on the hash grid that is not on the block grid. So
        one Mamba group with blocks above the hash unit turns partial hits on for all groups,
        unless a window has larger blocks, which cannot be hit inside. Chunks follow the first
        Mamba group.
        """
        unit = scope.hash_unit
        sizes = tuple(group.block_size for group in scope.groups)
        state_sizes = [group.block_size for group in scope.groups if group.is_mamba]
        windows = [g.block_size for g in scope.groups if g.kind is GroupKind.SLIDING_WINDOW]
        lcm = math.lcm(*sizes)
        partial = max(state_sizes, default=0) > unit and all(size == unit for size in windows)
        return cls(
            hash_unit=unit,
            block_sizes=sizes,
            lcm=lcm,
            partial_hits=partial,
            alignment=unit if partial else lcm,
            chunk_block=state_sizes[0] if state_sizes else None,
            lookup_sets=_lookup_sets(scope.groups, unit, partial_hits=partial),
        )

    @property
    def drops(self) -> bool:
        """Whether some lookup drops the last unit that it matched."""
        return any(each.eagle for each in self.lookup_sets)

    def lookup_set(self, group: int) -> LookupSet:
        """Return the set that a group is looked up in."""
        return next(each for each in self.lookup_sets if group in each.groups)

    def margin(self, group: int) -> int:
        """Return how far beyond a boundary the group's proof of it lies, in tokens."""
        return self.lookup_set(group).margin

    def replay_boundary(self, length: int, unit: int | None = None) -> int:
        """Return the last multiple of ``unit`` that a resent prompt can be resumed from.

        ``unit`` is the hash unit if None. One token at least must be left to compute, so a prompt
        that ends on the grid resumes one unit earlier. If lookups drop a unit, the one before
        the last full one counts. 0: from nowhere.
        """
        unit = unit or self.hash_unit
        past_grid = length % unit
        if self.drops:
            return max(length - past_grid - unit, 0)
        return length - (past_grid or unit)

    def saved_whole(self, length: int) -> int:
        """Return the part of ``length`` tokens that a normal save covers: whole blocks of all."""
        return length - length % self.lcm


def _lookup_sets(
    groups: Sequence[Group], unit: int, *, partial_hits: bool
) -> tuple[LookupSet, ...]:
    """Return the sets: full attention first, windows, then states, each by its first group."""
    members: dict[tuple[GroupKind, int, int], list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault((group.kind, group.block_size, group.window), []).append(index)
    sets = []
    for (kind, size, window), indices in members.items():
        eagle = any(groups[index].eagle for index in indices)
        step = unit if partial_hits and size > unit else size
        sets.append(LookupSet(kind, size, window, tuple(indices), eagle, step if eagle else 0))
    return tuple(sorted(sets, key=lambda each: _LOOKUP_ORDER.index(each.kind)))
