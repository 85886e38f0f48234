"""Boundary arithmetic: where hits, chunks, saves and tails may end (domain.md b, h).

Rules, not vocabulary: an implementation computes its own, or lockstep could not tell a wrong one.
What depends on the scope alone is computed once for each scope.

>>> from cowtail.models.scope import RequestSpec, Scope, full_attention, mamba
>>> scope = Scope(name="worked", groups=(full_attention(8), mamba(8)), hash_unit=2,
...               num_blocks=20, requests=(RequestSpec("a", "abcdefghijklm"),))
>>> replay_boundary(scope, scope.requests[0]), hit_alignment(scope), lcm_block_size(scope)
(12, 2, 8)
"""

from __future__ import annotations

import math
from functools import lru_cache

import attrs

from cowtail.models.scope import GroupKind, RequestSpec, Role, Scope

_LOOKUP_ORDER = (GroupKind.FULL_ATTENTION, GroupKind.SLIDING_WINDOW, GroupKind.MAMBA)
_SCOPES_REMEMBERED = 128


@attrs.frozen
class LookupSet:
    """Groups that are looked up together: of one kind, block size and window.

    A key counts if all of them have it. ``margin``: how many tokens past a boundary the set has
    to be cached for a hit at the boundary; 0 unless one of its groups is a drafter's (R24).
    """

    groups: tuple[int, ...]
    kind: GroupKind
    block_size: int
    window: int
    eagle: bool
    margin: int


def saves(role: Role) -> bool:
    """Whether an engine of this role hands blocks to the store (R3)."""
    return role in (Role.PRODUCER, Role.BOTH)


@lru_cache(_SCOPES_REMEMBERED)
def lcm_block_size(scope: Scope) -> int:
    """Return the unit of normal saves: the least common multiple of all block sizes, in tokens."""
    return math.lcm(*(group.block_size for group in scope.groups))


@lru_cache(_SCOPES_REMEMBERED)
def chunk_block_size(scope: Scope) -> int | None:
    """Return the block size that prefill chunks align to, in tokens; None without Mamba groups."""
    return next((group.block_size for group in scope.groups if group.is_mamba), None)


@lru_cache(_SCOPES_REMEMBERED)
def exact_junctions(scope: Scope) -> bool:
    """Whether chunks end, and states are kept, inside a block where a sibling's hit ended."""
    everywhere = scope.behaviours.junctions_without_eagle
    return scope.shared_prefix_checkpoints and (
        everywhere or any(group.eagle for group in scope.groups)
    )


def partial_hits(scope: Scope) -> bool:
    """Whether prefix hits may end inside a block.

    Sliding windows are looked up by whole blocks, so one whose blocks are wider than the hash
    unit forbids them.
    """
    return any(
        group.is_mamba and group.block_size > scope.hash_unit for group in scope.groups
    ) and all(
        group.block_size == scope.hash_unit
        for group in scope.groups
        if group.kind is GroupKind.SLIDING_WINDOW
    )


@lru_cache(_SCOPES_REMEMBERED)
def hit_alignment(scope: Scope) -> int:
    """Return what hit lengths are multiples of: H with partial hits, else the LCM (R21)."""
    return scope.hash_unit if partial_hits(scope) else lcm_block_size(scope)


@lru_cache(_SCOPES_REMEMBERED)
def lookup_sets(scope: Scope) -> tuple[LookupSet, ...]:
    """Return the lookup sets, in the order in which a joint lookup asks them."""
    members: dict[tuple[GroupKind, int, int], list[int]] = {}
    for index, group in enumerate(scope.groups):
        members.setdefault((group.kind, group.block_size, group.window), []).append(index)
    sets = []
    for (kind, size, window), groups in members.items():
        eagle = any(scope.groups[index].eagle for index in groups)
        fine = partial_hits(scope) and size > scope.hash_unit
        margin = (scope.hash_unit if fine else size) if eagle else 0
        sets.append(LookupSet(tuple(groups), kind, size, window, eagle, margin))
    return tuple(sorted(sets, key=lambda found: _LOOKUP_ORDER.index(found.kind)))


@lru_cache(_SCOPES_REMEMBERED)
def margins(scope: Scope) -> tuple[int, ...]:
    """Return the margin of each group, that of its lookup set, in tokens (R24)."""
    by_group = {index: found.margin for found in lookup_sets(scope) for index in found.groups}
    return tuple(by_group[index] for index in range(len(scope.groups)))


@lru_cache(_SCOPES_REMEMBERED)
def drops(scope: Scope) -> bool:
    """Whether lookups of some set drop the last unit that they matched (EAGLE, MTP)."""
    return any(found.eagle for found in lookup_sets(scope))


def checkpoint(scope: Scope, tokens: int, unit: int) -> int:
    """Return ck(tokens, unit): the last multiple of ``unit`` at which a resend can hit.

    At least one token must be recomputed; where a lookup drops a unit, that token is in it.
    """
    if drops(scope):
        return max(tokens // unit * unit - unit, 0)
    return (tokens - 1) // unit * unit


def replay_boundary(scope: Scope, spec: RequestSpec) -> int:
    """Return ck(P): where an identical resend of the prompt hits, in tokens (R29)."""
    return checkpoint(scope, len(spec.prompt), scope.hash_unit)
