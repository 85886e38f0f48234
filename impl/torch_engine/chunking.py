"""How far a chunk goes: the boundaries that prefill must stop at.

A recurrent state is kept only where a chunk ends, so chunks end where a prefix may be found
again: on block boundaries of the Mamba group, and at the prompt's replay boundary.
"""

from __future__ import annotations

from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.request import Request
from cowtail.models.scope import Scope


class Chunking:
    """Chunk ends for the requests of one scope."""

    def __init__(self, scope: Scope) -> None:
        self.layout = CacheLayout.of(scope)
        self.token_budget = scope.token_budget

    def chunk_end(self, request: Request, start: int) -> int:
        """Return where the chunk from ``start`` ends; not above ``start``: not schedulable now."""
        budget = self.token_budget
        end = min(request.known + request.placeholders, start + budget)
        block = self.layout.chunk_block
        if block is None or start >= request.prefill_end:
            return end
        if end < request.prefill_end:
            aligned = end // block * block
            # A block above the budget could never be filled in one chunk: progress comes first.
            if aligned > start or block <= budget:
                end = aligned
        stops = self._mandatory_stops(request, start, block)
        inside = [stop for stop in stops if start < stop < end]
        return min(inside, default=end)

    def _mandatory_stops(self, request: Request, start: int, block: int) -> list[int]:
        """Return the positions that no prefill chunk may run over."""
        last = (request.known - 1) // block * block
        stops = [last]
        if start % block:
            stops.append((start // block + 1) * block)
        boundary = self.layout.replay_boundary(request.prompt_length)
        if self.layout.partial_hits and last < boundary < request.prompt_length:
            stops.append(boundary)
        return stops
