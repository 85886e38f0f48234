"""How many tokens a pass schedules for a request (domain.md d, chunk stops)."""

from __future__ import annotations

from cowtail.models import boundaries
from cowtail.models.observations import Status
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import Request, known_tokens


def has_tokens_to_schedule(spec: RequestSpec, request: Request) -> bool:
    """Whether a running request still has something to compute in this or a later pass."""
    if request.status is not Status.RUNNING:
        return False
    known = known_tokens(spec, request)
    if request.computed >= known + request.placeholders:
        return False
    due = request.outputs + request.placeholders
    return due < spec.max_tokens or request.computed < known


def chunk_end(scope: Scope, spec: RequestSpec, request: Request, start: int) -> int:
    """Return where a chunk that starts at ``start`` ends; ``start`` if none can be scheduled.

    A recurrent state is written where a chunk ends, so during prefill chunks end where a
    state must be cached: at block boundaries, and at the prompt's replay boundary.
    """
    known = known_tokens(spec, request)
    end = min(known + request.placeholders, start + scope.token_budget)
    block = boundaries.chunk_block_size(scope)
    prefill_end = max(len(spec.prompt), known - 1)
    if block is None or start >= prefill_end:
        return end
    if end < prefill_end:
        aligned = end // block * block
        if aligned > start or block <= scope.token_budget:
            end = max(aligned, start)
    last_block_boundary = (known - 1) // block * block
    tail_boundary = boundaries.replay_boundary(scope, spec) if boundaries.partial_hits(scope) else 0
    stops = [last_block_boundary]
    if start % block:
        stops.append((start // block + 1) * block)
    if last_block_boundary < tail_boundary < len(spec.prompt):
        stops.append(tail_boundary)
    return min((stop for stop in stops if start < stop < end), default=end)
