"""Prefix lookup: per group, and the joint fix-point over all groups (domain.md c).

Hits end on the hit alignment, which can be smaller than a block: a *partial hit*. A Mamba
state is valid at its exact token only, so a joint hit is one that every group can supply.
"""

from __future__ import annotations

import math

import attrs

from cowtail.models import boundaries
from cowtail.models.block_pool import Pool, cached_block
from cowtail.models.observations import NULL_BLOCK, Key
from cowtail.models.scope import Scope


@attrs.frozen
class Hit:
    """A joint hit: its length in tokens, and the blocks that supply it, per group by column."""

    length: int
    blocks: tuple[tuple[int, ...], ...]


def find_hit(scope: Scope, pool: Pool, tokens: str) -> Hit:
    """Return the longest prefix of ``tokens``, short of the last one, that every group supplies.

    ``tokens`` are the known tokens; the last must be recomputed to sample from it.
    """
    attention = [g for g, group in enumerate(scope.groups) if not group.is_mamba]
    recurrent = [g for g, group in enumerate(scope.groups) if group.is_mamba]
    blocks: list[tuple[int, ...]] = [()] * len(scope.groups)
    lengths: dict[int, int] = {}
    hit = len(tokens) - 1
    while True:
        current = hit
        for group in attention:
            if group not in lengths:
                blocks[group], lengths[group] = _attention_hit(scope, pool, tokens, group, current)
            current = min(current, lengths[group])
        for group in recurrent:
            blocks[group], current = _mamba_hit(scope, pool, tokens, group, current)
        if current >= hit:
            break
        hit = current
    for group in attention:
        blocks[group] = blocks[group][: math.ceil(hit / scope.groups[group].block_size)]
    return Hit(hit, tuple(blocks))


def _attention_hit(
    scope: Scope, pool: Pool, tokens: str, group: int, limit: int
) -> tuple[tuple[int, ...], int]:
    """Return the leading cached blocks within ``limit`` tokens, and how many tokens they supply."""
    size = scope.groups[group].block_size
    align = boundaries.hit_alignment(scope)
    found: list[int] = []
    while (len(found) + 1) * size <= limit:
        block = cached_block(pool, Key(group, tokens[: (len(found) + 1) * size]))
        if block is None:
            break
        found.append(block)
    full = length = len(found) * size
    if boundaries.partial_hits(scope) and align < size:
        for end in range(min(full + size - align, limit // align * align), full, -align):
            block = cached_block(pool, Key(group, tokens[:end]))
            if block is not None:
                found.append(block)
                length = end
                break
    length -= length % align
    return tuple(found[: math.ceil(length / size)]), length


def _mamba_hit(
    scope: Scope, pool: Pool, tokens: str, group: int, limit: int
) -> tuple[tuple[int, ...], int]:
    """Return the longest cached state within ``limit`` tokens, at its column, nulls before it."""
    size = scope.groups[group].block_size
    unit = scope.hash_unit if boundaries.partial_hits(scope) else size
    for end in range(limit // unit * unit, 0, -unit):
        if end % boundaries.hit_alignment(scope):
            continue
        block = cached_block(pool, Key(group, tokens[:end]))
        if block is not None:
            return (NULL_BLOCK,) * ((end - 1) // size) + (block,), end
    return (), 0
