"""Prefix lookup: per set of groups, and the joint fix-point over all of them (domain.md c).

Hits end on the hit alignment, which can be smaller than a block: a *partial hit*. A Mamba
state is valid at its exact token only, and a window needs its last blocks only, so a joint hit
is one that every group can supply. Sets with a drafter's group probe one margin further than
the others, and drop the last unit that they matched (R23, R24).

The fix-point asks a *source* which block is under a key, so the local cache and a snapshot of
the store are looked up by the same rules.

>>> from cowtail.models.observations import Key
>>> from cowtail.models.scope import RequestSpec, Scope, full_attention, mamba
>>> scope = Scope(name="tiny", groups=(full_attention(2), mamba(2)), hash_unit=1,
...               num_blocks=8, requests=(RequestSpec("a", "abcd"),))
>>> present = {Key(0, "ab"): 1, Key(0, "abc"): 2, Key(1, "abc"): 3}
>>> joint_hit(scope, present.get, "abcd")
Hit(length=3, blocks=((1, 2), (0, 3)), junction=0)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from cowtail.models import boundaries
from cowtail.models.block_pool import Pool, cached_block
from cowtail.models.boundaries import LookupSet
from cowtail.models.observations import NULL_BLOCK, Key
from cowtail.models.scope import GroupKind, Scope

KeySource = Callable[[Key], int | None]
"""Returns the block under a key, or None if the key is not there. A source without blocks of
its own, the store, returns any number for a key that is."""

Columns = tuple[tuple[int, ...], ...]
"""Blocks by column, for each group of a lookup set."""


@attrs.frozen
class Hit:
    """A joint hit: its length in tokens, and the blocks that supply it, per group by column.

    ``junction``: the longest length that some set supplied, if it is longer than the hit; else 0.
    """

    length: int
    blocks: tuple[tuple[int, ...], ...]
    junction: int = 0


def find_hit(scope: Scope, pool: Pool, tokens: str) -> Hit:
    """Return the longest prefix of ``tokens`` in the local cache that every group supplies.

    ``tokens`` are the known tokens; the last must be recomputed to sample from it.
    """
    return joint_hit(scope, lambda key: cached_block(pool, key), tokens)


def joint_hit(scope: Scope, source: KeySource, tokens: str, limit: int | None = None) -> Hit:
    """Return the longest prefix of ``tokens``, within ``limit``, that every group supplies.

    The limit, in tokens, is one short of all unless given.
    Each set is asked in turn for no more than those before it supplied, until none shortens the
    hit. A set drops a unit once for each length that is not yet verified with it.
    """
    sets = boundaries.lookup_sets(scope)
    found: dict[LookupSet, tuple[Columns, int]] = {}
    verified: set[LookupSet] = set()
    hit, longest = len(tokens) - 1 if limit is None else limit, 0
    hashed = len(tokens) // scope.hash_unit * scope.hash_unit
    while True:
        current = hit
        for asked in sets:
            if asked in found and asked.kind is GroupKind.FULL_ATTENTION:
                current = min(current, found[asked][1])
                continue
            drop = asked.eagle and asked not in verified
            reach = min(current + asked.margin, hashed) if drop else current
            found[asked] = _find(scope, source, tokens, asked, reach, drop)
            length = found[asked][1]
            if drop:
                verified.add(asked)
            elif length < current:
                verified.clear()
            current = length
            longest = max(longest, current)
        if current >= hit:
            break
        hit = current
        if len(sets) == 2 and sets[0].kind is GroupKind.FULL_ATTENTION:
            break
    blocks: list[tuple[int, ...]] = [()] * len(scope.groups)
    for asked, (columns, _) in found.items():
        for group, column in zip(asked.groups, columns, strict=True):
            if asked.kind is GroupKind.FULL_ATTENTION:
                column = column[: math.ceil(hit / asked.block_size)]
            blocks[group] = column
    return Hit(hit, tuple(blocks), longest if longest > hit else 0)


def _find(
    scope: Scope, source: KeySource, tokens: str, asked: LookupSet, limit: int, drop: bool
) -> tuple[Columns, int]:
    if asked.kind is GroupKind.FULL_ATTENTION:
        return find_in_full_attention(scope, source, tokens, asked, limit, drop)
    if asked.kind is GroupKind.SLIDING_WINDOW:
        return find_in_sliding_window(scope, source, tokens, asked, limit, drop)
    return find_in_mamba(scope, source, tokens, asked, limit)


def _blocks_under(source: KeySource, asked: LookupSet, prefix: str) -> tuple[int, ...] | None:
    """Return the block of each group of a set under ``prefix``; None unless all have the key."""
    blocks = []
    for group in asked.groups:
        block = source(Key(group, prefix))
        if block is None:
            return None
        blocks.append(block)
    return tuple(blocks)


def find_in_full_attention(
    scope: Scope, source: KeySource, tokens: str, asked: LookupSet, limit: int, drop: bool
) -> tuple[Columns, int]:
    """Return the leading cached blocks within ``limit`` tokens, and how many tokens they supply.

    With ``drop`` one unit less; its block stays if the tokens below it are needed, so the last
    block may carry a key beyond the hit.
    """
    size = asked.block_size
    align = boundaries.hit_alignment(scope)
    found: list[tuple[int, ...]] = []
    while (len(found) + 1) * size <= limit:
        blocks = _blocks_under(source, asked, tokens[: (len(found) + 1) * size])
        if blocks is None:
            break
        found.append(blocks)
    full = length = len(found) * size
    if boundaries.partial_hits(scope) and align < size:
        for end in range(min(full + size - align, limit // align * align), full, -align):
            blocks = _blocks_under(source, asked, tokens[:end])
            if blocks is not None:
                found.append(blocks)
                length = end
                break
    if drop and length:
        length -= min(align, size)
    length -= length % align
    return _by_group(asked, found[: math.ceil(length / size)]), length


def find_in_sliding_window(
    scope: Scope, source: KeySource, tokens: str, asked: LookupSet, limit: int, drop: bool
) -> tuple[Columns, int]:
    """Return the last run of cached blocks that fills a window, nulls before it, and its end.

    With ``drop`` the run is one block longer, and its last block is dropped. Where no run is
    long enough, one that begins at the first token will do.
    """
    size = asked.block_size
    align = boundaries.hit_alignment(scope)
    needed = math.ceil((asked.window - 1) / size) + drop
    run: list[tuple[int, ...]] = []
    first = 0
    for column in range(limit // size - 1, -1, -1):
        blocks = _blocks_under(source, asked, tokens[: (column + 1) * size])
        ends_aligned = (column if drop else column + 1) * size % align == 0
        if blocks is None:
            run = []
        elif run or size == align or ends_aligned:
            run.insert(0, blocks)
            if len(run) == needed:
                first = column
                break
    found = [(NULL_BLOCK,) * len(asked.groups)] * first + run
    found = _cut_to_alignment(found, size, align) if len(run) < needed else found
    if drop and found:
        found = _cut_to_alignment(found[:-1], size, align)
    return _by_group(asked, found), len(found) * size


def _cut_to_alignment(found: list[tuple[int, ...]], size: int, align: int) -> list[tuple[int, ...]]:
    """Drop blocks from the end until what is left covers a multiple of ``align`` tokens."""
    columns = len(found)
    while columns * size % align:
        columns -= 1
    return found[:columns]


def find_in_mamba(
    scope: Scope, source: KeySource, tokens: str, asked: LookupSet, limit: int
) -> tuple[Columns, int]:
    """Return the longest cached state within ``limit`` tokens, at its column, nulls before it."""
    size = asked.block_size
    align = boundaries.hit_alignment(scope)
    unit = scope.hash_unit if boundaries.partial_hits(scope) else size
    for end in range(limit // unit * unit, 0, -unit):
        if end % align:
            continue
        blocks = _blocks_under(source, asked, tokens[:end])
        if blocks is not None:
            nulls = [(NULL_BLOCK,) * len(asked.groups)] * ((end - 1) // size)
            return _by_group(asked, [*nulls, blocks]), end
    return _by_group(asked, []), 0


def _by_group(asked: LookupSet, columns: list[tuple[int, ...]]) -> Columns:
    """Return blocks listed by column as blocks listed by group."""
    if not columns:
        return ((),) * len(asked.groups)
    return tuple(zip(*columns, strict=True))
