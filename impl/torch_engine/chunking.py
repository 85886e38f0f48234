"""How far a chunk goes: the boundaries that prefill must stop at, and drafts beyond decode tokens.

A recurrent state is kept only where a chunk ends, so chunks end where a prefix may be found
again: on block boundaries of the Mamba group, and at the prompt's replay boundary. A device that
can export the state at that boundary from within a chunk saves the stop.
"""

from __future__ import annotations

import math

import attrs

from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.request import Request
from cowtail.models.scope import Scope


@attrs.frozen
class Extent:
    """How far a chunk goes: to ``end``, the last ``drafts`` tokens of it only guessed.

    ``checkpoint``: the token count whose state the device exports on the way, or None.
    """

    end: int
    drafts: int = 0
    checkpoint: int | None = None


class Chunking:
    """Chunk ends for the requests of one scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.layout = CacheLayout.of(scope)

    def extent(self, request: Request, start: int, budget: int) -> Extent:
        """Return how far the chunk from ``start`` goes; not above ``start``: not schedulable now.

        ``budget``: the tokens that the pass has left.
        """
        end = min(request.known + request.placeholders, start + budget)
        block = self.layout.chunk_block
        if block is not None and start < request.prefill_end:
            return self._prefill(request, start, end, block)
        drafts = self.drafts(request, start, end, budget)
        return Extent(end + drafts, drafts)

    def drafts(self, request: Request, start: int, end: int, budget: int) -> int:
        """Return how many tokens are guessed behind a decode token that nothing is ahead of."""
        decodes = request.outputs >= 1 and start == request.known - 1 and end == request.known
        if not decodes or request.in_flight or request.placeholders:
            return 0
        wanted = request.spec.max_tokens - request.outputs - 1
        return max(0, min(self.scope.speculative_tokens, wanted, budget - 1))

    def _prefill(self, request: Request, start: int, end: int, block: int) -> Extent:
        checkpoint = self.checkpoint(request, start, end, block)
        if end < request.prefill_end:
            aligned = end // block * block
            # A block above the budget could never be filled in one chunk: progress comes first.
            if aligned > start or block <= self.scope.token_budget:
                end = aligned
        stops = [] if checkpoint is not None else self.mandatory_stops(request, start, block)
        if request.junction:
            stops.append(self._junction_stop(request, start, block))
        end = min([stop for stop in stops if start < stop < end], default=end)
        return Extent(end, checkpoint=self.checkpoint(request, start, end, block))

    def checkpoint(self, request: Request, start: int, end: int, block: int) -> int | None:
        """Return the boundary whose state a chunk to ``end`` exports on its way, or None.

        Its block is the one before the running state's: that must not be the one it starts from.
        A chunk that starts inside a state's block stops at the end of that block instead, or the
        state there would never exist.
        """
        if not self.scope.internal_checkpoints or end < request.prefill_end:
            return None
        unit = self.layout.hash_unit
        grid = unit if self.layout.partial_hits else block
        at = self.layout.replay_boundary(request.prefill_end, grid)
        sizes = [group.block_size for group in self.scope.groups if group.is_mamba]
        on_blocks = start % math.lcm(*sizes) == 0
        reachable = on_blocks and start + unit <= at < end
        has_column = math.ceil(end / block) - 2 > (start - 1) // block
        return at if reachable and has_column else None

    def mandatory_stops(self, request: Request, start: int, block: int) -> list[int]:
        """Return the positions that no prefill chunk may run over."""
        last = self.layout.replay_boundary(request.known, block)
        stops = [last]
        if start % block:
            stops.append((start // block + 1) * block)
        boundary = self.layout.replay_boundary(request.prompt_length)
        if self.layout.partial_hits and last < boundary < request.prompt_length:
            stops.append(boundary)
        return stops

    def _junction_stop(self, request: Request, start: int, block: int) -> int:
        """Return where to stop for a sibling's sake: at the junction, or a whole block earlier."""
        junction = request.junction
        exact = self.scope.shared_prefix_checkpoints and self.layout.partial_hits
        if exact and junction <= request.prompt_length:
            return junction
        return start + (junction - start) // block * block
