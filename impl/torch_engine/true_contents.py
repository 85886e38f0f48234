"""The bytes that a right engine computes, made without computing on blocks.

What another engine puts into a shared store, and what a peer's memory holds, comes from here.
"""

from __future__ import annotations

import torch

from cowtail.impl.torch_engine.digests import payload_of, true_digests
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.store_protocol import Value
from cowtail.models.scope import Scope


class TrueContents:
    """One rank's true slots: KV of every token, and the states between them."""

    def __init__(self, scope: Scope, rank: int, width: int) -> None:
        self.scope = scope
        self._rank = rank
        self._width = width
        self._known: dict[str, tuple[Value, Value]] = {}

    def value(self, request: Request, group: int, boundary: int) -> Value:
        """Return the block that ends at ``boundary`` tokens: its slots up to there, or a state."""
        tokens, states = self._slots(request)
        if self.scope.groups[group].is_mamba:
            first, whole = boundary - 1, states
        else:
            size = self.scope.groups[group].block_size
            first, whole = (boundary - 1) // size * size, tokens
        return Value(whole.digests[first:boundary], whole.payload[first:boundary])

    def _slots(self, request: Request) -> tuple[Value, Value]:
        if request.name not in self._known:
            tokens, states = true_digests(request.tokens, self._rank)
            self._known[request.name] = (self._value(tokens), self._value(states))
        return self._known[request.name]

    def _value(self, digests: list[int]) -> Value:
        tensor = torch.tensor(digests, dtype=torch.int64)
        return Value(tensor, payload_of(tensor, self._width))
