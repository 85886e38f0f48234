"""Exact digests of token prefixes, and a payload derived from them.

With ``A(0) = 0``, a prefix is chained token by token over the field of integers modulo ``PRIME``::

    D(t+1) = MIX * A(t) + c(t)          the KV of token t: what an attention slot holds
    A(t+1) = FOLD * A(t) + D(t+1)       the recurrent state: what a Mamba block holds

where ``c(t)`` is made of token, position and rank. ``A(t)`` is the fold of all attention slots
below ``t``, so attention that reads them all, in order, arrives at the same value as a recurrent
state does. One wrong slot, or a slot in the wrong place, changes all that is computed from it.

The payload of a slot is ``width`` float32 numbers, exact functions of its digest, so that bytes
can be of a realistic size and still be checked. Digest 0 is a slot never written.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from cowtail.models.observations import GARBAGE
from cowtail.models.scope import Scope

PRIME = 2**31 - 1
"""Modulus: products of two digests fit into int64, and sums of 2**31 digests do."""

FOLD = 1_103_515_245
MIX = 613_566_757
REJECTED = "\0"
"""The token of a draft that is not accepted: no request has it."""

CHAIN = (FOLD + MIX) % PRIME
"""``A(t+1) = CHAIN * A(t) + c(t)``: the two lines of the recurrence in one."""

_TOKEN, _POSITION, _RANK = 69_621, 40_692_347, 1_406_151_473
_PAYLOAD_PRIME = 65_521
"""Payload numbers are below this, so float32 holds them exactly."""


def token_terms(tokens: str, start: int = 0) -> list[int]:
    """Return the rank's share left out, ``c(t)`` of each token, the first at ``start``."""
    return [
        ((ord(token) + 1) * _TOKEN + (start + offset + 1) * _POSITION) % PRIME
        for offset, token in enumerate(tokens)
    ]


def prefix_states(tokens: str) -> list[tuple[int, int]]:
    """Return ``A(0) .. A(n)`` of n tokens, each as what no rank and what each rank's term adds.

    On a rank it is the first plus the second times ``rank_term``.
    """
    states = [(0, 0)]
    for term in token_terms(tokens):
        state, share = states[-1]
        states.append(((CHAIN * state + term) % PRIME, (CHAIN * share + 1) % PRIME))
    return states


def rank_term(rank: int) -> int:
    """Return a rank's share of every ``c(t)``: shards of the same prefix differ in every byte."""
    return (rank + 1) * _RANK % PRIME


def true_digests(tokens: str, rank: int) -> tuple[list[int], list[int]]:
    """Return ``D(1), D(2), ...`` and ``A(1), A(2), ...``: every token's KV, and the states."""
    kv, states = [], []
    state = 0
    for term in token_terms(tokens):
        term += rank_term(rank)
        kv.append((MIX * state + term) % PRIME)
        state = (CHAIN * state + term) % PRIME
        states.append(state)
    return kv, states


def payload_of(digests: torch.Tensor, width: int) -> torch.Tensor:
    """Return the payload of each digest: float32 [..., width] for int64 [...]."""
    factors = _payload_factors(width, digests.device)
    return (digests.unsqueeze(-1) * factors).remainder_(_PAYLOAD_PRIME).to(torch.float32)


@functools.cache
def _payload_factors(width: int, device: torch.device) -> torch.Tensor:
    # From the host, so that it is complete whichever stream uses it first.
    return torch.tensor(range(1, 2 * width, 2), device=device)


def group_weights(num_groups: int) -> list[int]:
    """Return how much each group's read counts towards ``A``: non-zero, with sum 1.

    All groups right gives ``A`` itself; any one of them wrong gives something else.
    """
    weights = [pow(CHAIN, 3 * index + 2, PRIME) for index in range(num_groups - 1)]
    return [*weights, (1 - sum(weights)) % PRIME]


class DigestTable:
    """Which prefix of a scope's requests a digest stands for, on one rank; to observe, only.

    Raises ValueError if two prefixes have the same digest.
    """

    def __init__(self, scope: Scope, rank: int, width: int) -> None:
        self._width = width
        self._prefixes = {0: ""}
        for request in scope.requests:
            pairs = zip(*true_digests(request.tokens, rank), strict=True)
            for end, (kv, state) in enumerate(pairs, start=1):
                self._enter(kv, request.tokens[:end])
                self._enter(state, request.tokens[:end])

    def _enter(self, digest: int, prefix: str) -> None:
        if self._prefixes.setdefault(digest, prefix) != prefix:
            raise ValueError(
                f"prefixes {prefix!r} and {self._prefixes[digest]!r}: both have digest {digest}; "
                "change a token of one"
            )

    def decode(self, digests: torch.Tensor, payload: torch.Tensor) -> list[list[str]]:
        """Return what each slot stands for: int64 [n, slots], float32 [n, slots, width].

        A digest that is no prefix's, or that its payload does not match, is garbage.
        """
        intact = (payload == payload_of(digests, self._width)).all(-1).tolist()
        prefixes = self._prefixes
        return [
            [
                prefixes.get(digest, GARBAGE) if right else GARBAGE
                for digest, right in zip(page, rights, strict=True)
            ]
            for page, rights in zip(digests.tolist(), intact, strict=True)
        ]


def powers(base: int, count: int) -> list[int]:
    """Return ``base**0 .. base**(count-1)`` modulo ``PRIME``."""
    values: list[int] = []
    value = 1
    for _ in range(count):
        values.append(value)
        value = value * base % PRIME
    return values


@functools.cache
def chain_matrix(length: int, device: torch.device) -> torch.Tensor:
    """Return int64 [length+1, length+1]: row j holds ``CHAIN**(j-i)`` for ``i <= j``, else 0.

    Applied to ``(A(s), c(s), c(s+1), ...)`` it unrolls the recurrence: row j gives ``A(s+j)``.
    """
    steps: Sequence[int] = powers(CHAIN, length + 1)
    rows = [[*reversed(steps[: j + 1]), *[0] * (length - j)] for j in range(length + 1)]
    return torch.tensor(rows, device=device)
