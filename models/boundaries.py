"""Boundary arithmetic: where hits, chunks, saves and tails may end (domain.md b, h).

Rules, not vocabulary: an implementation computes its own, or lockstep could not tell a wrong one.

>>> from cowtail.models.scope import RequestSpec, Scope, full_attention, mamba
>>> scope = Scope(name="worked", groups=(full_attention(8), mamba(8)), hash_unit=2,
...               num_blocks=20, requests=(RequestSpec("a", "abcdefghijklm"),))
>>> replay_boundary(scope, scope.requests[0]), hit_alignment(scope), lcm_block_size(scope)
(12, 2, 8)
"""

from __future__ import annotations

import math

from cowtail.models.scope import RequestSpec, Role, Scope


def saves(role: Role) -> bool:
    """Whether an engine of this role hands blocks to the store (R3)."""
    return role in (Role.PRODUCER, Role.BOTH)


def lcm_block_size(scope: Scope) -> int:
    """Return the unit of normal saves: the least common multiple of all block sizes, in tokens."""
    return math.lcm(*(group.block_size for group in scope.groups))


def chunk_block_size(scope: Scope) -> int | None:
    """Return the block size that prefill chunks align to, in tokens; None without Mamba groups."""
    return next((group.block_size for group in scope.groups if group.is_mamba), None)


def partial_hits(scope: Scope) -> bool:
    """Whether prefix hits may end inside a block."""
    return any(group.is_mamba and group.block_size > scope.hash_unit for group in scope.groups)


def hit_alignment(scope: Scope) -> int:
    """Return what hit lengths are multiples of: H with partial hits, else the LCM (R21)."""
    return scope.hash_unit if partial_hits(scope) else lcm_block_size(scope)


def replay_boundary(scope: Scope, spec: RequestSpec) -> int:
    """Return ck(P): the last hash-unit boundary strictly below the prompt's length."""
    return (len(spec.prompt) - 1) // scope.hash_unit * scope.hash_unit
