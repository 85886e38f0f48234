"""The joint search for the longest prefix that every group supplies, on lengths alone.

From docs/reference/semantics.md, Lookup. ``Demand`` says the same from the other end: what keys a
given length would need, so that a result can be explained, and what a longer one lacked.

>>> from cowtail.models.scope import full_attention, mamba
>>> layout = Layout((full_attention(8, eagle=True), mamba(8)), hash_unit=2)
>>> search(layout, (frozenset({8, 12}), frozenset({8, 10})), known=13).length
10
>>> search(layout, (frozenset({8, 10}), frozenset({8, 10})), known=13).length
8
"""

from __future__ import annotations

import attrs

from cowtail.models.scope import GroupKind
from cowtail.spec.hits.layout import Layout, LookupSet, ceil_div, floor_to
from cowtail.spec.hits.left_behind import Keys


@attrs.frozen
class Found:
    """A joint hit of ``length`` tokens; ``junction``: the longest that a set found alone, or 0."""

    length: int
    junction: int = 0


@attrs.frozen
class Demand:
    """One key that a set must have for a hit: any of ``lengths``; ``proof``: beyond the hit."""

    members: LookupSet
    lengths: tuple[int, ...]
    proof: bool = False


def common_keys(each: LookupSet, keys: Keys) -> frozenset[int]:
    """Return the lengths for which every group of a set has a key."""
    return frozenset.intersection(*(keys[index] for index in each.members))


def search(layout: Layout, keys: Keys, known: int) -> Found:
    """Return what a request of ``known`` tokens finds; ``keys`` are of prefixes of its own."""
    units = floor_to(known, layout.hash_unit)
    present = {each: common_keys(each, keys) for each in layout.sets}
    full = [each for each in layout.sets if each.kind is GroupKind.FULL_ATTENTION]
    settled: dict[LookupSet, int] = {}
    verified: set[LookupSet] = set()
    hit, longest = known - 1, 0
    while True:
        length = hit
        for each in layout.sets:
            if each in settled:
                length = min(length, settled[each])
                continue
            drop = each.eagle and each not in verified
            limit = min(length + layout.margin_of(each), units) if drop else length
            found = _in_set(layout, each, present[each], limit, drop)
            if drop:
                verified.add(each)
            elif found < length:
                verified.clear()
            if each in full:
                settled[each] = found
            length = found
            longest = max(longest, length)
        if length >= hit:
            break
        hit = length
        if len(layout.sets) == 2 and full and full[0] is layout.sets[0]:
            break
    return Found(hit, longest if longest > hit else 0)


def _in_set(
    layout: Layout, each: LookupSet, present: frozenset[int], limit: int, drop: bool
) -> int:
    if each.kind is GroupKind.FULL_ATTENTION:
        return _full_attention(layout, each.block_size, present, limit, drop)
    if each.kind is GroupKind.SLIDING_WINDOW:
        return _sliding_window(layout, each, present, limit, drop)
    step = layout.hash_unit if layout.partial else each.block_size
    states = (end for end in present if end <= limit and end % step == 0)
    return max((end for end in states if end % layout.alignment == 0), default=0)


def _full_attention(
    layout: Layout, size: int, present: frozenset[int], limit: int, drop: bool
) -> int:
    unit = layout.alignment
    run = 0
    while run + size <= limit and run + size in present:
        run += size
    hit = run
    if layout.partial and unit < size:
        tails = range(run + unit, min(run + size - unit, floor_to(limit, unit)) + 1, unit)
        hit = max((end for end in tails if end in present), default=run)
    if drop and hit:
        hit -= min(unit, size)
    return floor_to(hit, unit)


def _sliding_window(
    layout: Layout, each: LookupSet, present: frozenset[int], limit: int, drop: bool
) -> int:
    """Return the length of the right-most run of blocks that is long enough for the window."""
    size, unit = each.block_size, layout.alignment
    needed = ceil_div(each.window - 1, size) + drop
    run = columns = 0
    for column in reversed(range(limit // size)):
        if (column + 1) * size not in present:
            run = 0
            continue
        if run == 0:
            if size != unit and (column if drop else column + 1) * size % unit:
                continue
            columns = column + 1
        run += 1
        if run == needed:
            break
    else:
        columns = run
        while columns and columns * size % unit:
            columns -= 1
    if drop and columns:
        columns -= 1
    while columns and columns * size % unit:
        columns -= 1
    return columns * size


def demands(layout: Layout, length: int) -> tuple[Demand, ...]:
    """Return the keys that a hit of ``length`` tokens needs, set by set, shortest first."""
    return tuple(demand for each in layout.sets for demand in _demands(layout, each, length))


def _demands(layout: Layout, each: LookupSet, length: int) -> list[Demand]:
    size = each.block_size
    end = length + layout.margin_of(each)
    if each.kind is GroupKind.MAMBA:
        return [Demand(each, (length,))]
    if each.kind is GroupKind.SLIDING_WINDOW:
        needed = ceil_div(each.window - 1, size) + each.eagle
        first = max(end - (needed - 1) * size, size)
        return [Demand(each, (key,), key > length) for key in range(first, end + 1, size)]
    run = range(size, floor_to(end, size) + 1, size)
    wanted = [Demand(each, (key,), key > length) for key in run]
    if end % size:
        choice = range(end, floor_to(end, size) + size + 1, layout.alignment)
        wanted.append(Demand(each, tuple(choice), proof=True))
    return wanted


def lacking(layout: Layout, keys: Keys, length: int, known: int) -> tuple[Demand, ...]:
    """Return the demands of a hit of ``length`` that no key within reach satisfies.

    Within reach: a lookup of ``known`` tokens sees keys of whole hash units, and without a drop
    only keys of at most ``known - 1`` tokens.
    """
    units = floor_to(known, layout.hash_unit)
    missing = []
    for demand in demands(layout, length):
        margin = layout.margin_of(demand.members)
        reach = min(known - 1 + margin, units) if margin else known - 1
        present = common_keys(demand.members, keys)
        if not any(key in present and key <= reach for key in demand.lengths):
            missing.append(demand)
    return tuple(missing)
