"""How many tokens a pass schedules for a request (domain.md d, chunk stops)."""

from __future__ import annotations

import math

from cowtail.models import boundaries
from cowtail.models.observations import Status
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import OpenPass, Request, known_tokens


def has_tokens_to_schedule(spec: RequestSpec, request: Request) -> bool:
    """Whether a running request still has something to compute in this or a later pass.

    While drafts are in flight it has not: where it goes on is not known before their verdict.
    """
    if request.status is not Status.RUNNING or request.drafted:
        return False
    known = known_tokens(spec, request)
    if request.computed >= known + request.placeholders:
        return False
    due = request.outputs + request.placeholders
    return due < spec.max_tokens or request.computed < known


def budget_left(scope: Scope, opened: OpenPass) -> int:
    """Return how many more tokens the open pass may schedule."""
    return scope.token_budget - sum(chunk.end - chunk.start for chunk in opened.scheduled)


def chunk_end(
    scope: Scope, spec: RequestSpec, request: Request, start: int, budget: int, junction: int
) -> int:
    """Return where a chunk that starts at ``start`` ends; ``start`` if none can be scheduled.

    A recurrent state is written where a chunk ends, so during prefill chunks end where a
    state must be cached: at block boundaries, at the prompt's replay boundary, and at the
    ``junction`` where a sibling's hit ended. Where the device exports the state at the replay
    boundary from within the chunk, only the junction is left. Drafts come on top.
    """
    known = known_tokens(spec, request)
    end = min(known + request.placeholders, start + budget)
    block = boundaries.chunk_block_size(scope)
    prefill_end = max(len(spec.prompt), known - 1)
    if block is None or start >= prefill_end:
        return end
    stops = []
    if not internal_checkpoint(scope, spec, known, start, end):
        if end < prefill_end:
            aligned = end // block * block
            if aligned > start or block <= scope.token_budget:
                end = max(aligned, start)
        stops = _block_stops(scope, spec, known, start, block)
    if junction:
        stops.append(_junction_stop(scope, spec, start, junction, block))
    return min((stop for stop in stops if start < stop < end), default=end)


def _block_stops(scope: Scope, spec: RequestSpec, known: int, start: int, block: int) -> list[int]:
    """Return where a prefill that starts at ``start`` has to stop for states to be cached."""
    last_block_boundary = boundaries.checkpoint(scope, known, block)
    tail_boundary = boundaries.replay_boundary(scope, spec) if boundaries.partial_hits(scope) else 0
    stops = [last_block_boundary]
    if start % block:
        stops.append((start // block + 1) * block)
    if last_block_boundary < tail_boundary < len(spec.prompt):
        stops.append(tail_boundary)
    return stops


def _junction_stop(scope: Scope, spec: RequestSpec, start: int, junction: int, block: int) -> int:
    """Return where a chunk stops for a junction: there, or at the last block boundary before it."""
    exact = boundaries.exact_junctions(scope) and boundaries.partial_hits(scope)
    if exact and junction <= len(spec.prompt):
        return junction
    return start + (junction - start) // block * block


def internal_checkpoint(scope: Scope, spec: RequestSpec, known: int, start: int, end: int) -> int:
    """Return the replay boundary, if the device exports its state from within [start, end).

    It goes into the column before the running one, which must be another than that of the state
    that the chunk begins with. A chunk that begins inside a state's block has to stop at the end
    of that block: the state there is nobody else's to write. 0 if the chunk has to stop at the
    boundary instead.
    """
    block = boundaries.chunk_block_size(scope)
    prefill_end = max(len(spec.prompt), known - 1)
    if not scope.internal_checkpoints or block is None or end < prefill_end:
        return 0
    unit = scope.hash_unit if boundaries.partial_hits(scope) else block
    exported = boundaries.checkpoint(scope, prefill_end, unit)
    whole = [group.block_size for group in scope.groups if group.is_mamba]
    fits = (
        all(start % size == 0 for size in whole)
        and start + scope.hash_unit <= exported < end
        and math.ceil(end / block) - 2 > (start - 1) // block
    )
    return exported if fits else 0


def drafts_to_schedule(
    scope: Scope,
    spec: RequestSpec,
    request: Request,
    start: int,
    end: int,
    budget: int,
    in_flight: int,
) -> int:
    """Return how many drafts a chunk [start, end) carries beside the one token it samples from.

    ``in_flight``: tokens of the request in steps that are not processed. Where a draft goes
    depends on the verdict on those before it, so there are none while anything is in flight.
    """
    known = known_tokens(spec, request)
    decodes = (start, end) == (known - 1, known) and request.outputs >= 1
    if not scope.behaviours.drafts_proposed or not scope.speculative_tokens:
        return 0
    if not decodes or in_flight or request.placeholders:
        return 0
    remaining = spec.max_tokens - request.outputs - 1
    return max(min(scope.speculative_tokens, remaining, budget - 1), 0)


def accepted_drafts(spec: RequestSpec, outputs: int, drafts: int) -> int:
    """Return how many of ``drafts`` the script accepts in a step scheduled with ``outputs``."""
    if not spec.accepts:
        return drafts
    return min(int(spec.accepts[outputs % len(spec.accepts)]), drafts)
