"""What a load leaves free: blocks that others, and it, still need to be computed to their end.

A request that loads holds its blocks without getting on, and cannot be preempted to make room for
another. So a load begins only if enough is left (domain.md d).
"""

from __future__ import annotations

import math

from cowtail.models.observations import Status
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import BlockTable, Request, State, known_tokens

WAITING_FOR_BLOCKS = (Status.LOADING, Status.LOADED)


def of_load(scope: Scope, state: State, index: int, end: int) -> int:
    """Return how many blocks have to stay free when a request begins a load of ``end`` tokens."""
    requests = tuple(zip(scope.requests, state.requests, strict=True))
    if not scope.behaviours.loads_reserve_for_themselves:
        return _step_of_drafts(scope) + sum(
            _missing(scope, spec, request) for spec, request in requests if _is_prefilling(request)
        )
    return still_needed(scope, scope.requests[index], state.requests[index], end) + sum(
        still_needed(scope, spec, request, request.computed)
        for spec, request in requests
        if request.status in WAITING_FOR_BLOCKS
    )


def still_needed(scope: Scope, spec: RequestSpec, request: Request, loaded: int) -> int:
    """Return how many blocks a request needs to compute all it knows after a load."""
    known = known_tokens(spec, request)
    total = 0
    for group in scope.groups:
        missing = max(math.ceil(known / group.block_size) - math.ceil(loaded / group.block_size), 0)
        total += min(missing, 1) + 1 if group.is_mamba else missing
    return total


def _is_prefilling(request: Request) -> bool:
    """Whether a request loads, has loaded, failed to, or is in the midst of its prompt."""
    return (
        request.status in WAITING_FOR_BLOCKS
        or (request.status is Status.WAITING and request.load_failed)
        or (request.status is Status.RUNNING and request.prefilling)
    )


def _missing(scope: Scope, spec: RequestSpec, request: Request) -> int:
    """Return how many blocks a request's tables lack for all it knows, and for its drafts."""
    known = known_tokens(spec, request)
    drafts = scope.speculative_tokens
    total = 0
    for group, table in zip(scope.groups, request.tables, strict=True):
        if group.is_mamba:
            total += _missing_states(scope, table, math.ceil(known / group.block_size) + drafts)
            continue
        reach = known + (1 + 2 * drafts if drafts else 0)
        total += max(math.ceil(reach / group.block_size) - len(table.blocks), 0)
    return total


def _missing_states(scope: Scope, table: BlockTable, required: int) -> int:
    copy = int(table.copy_due is not None)
    missing = max(required - len(table.blocks), 0) + copy
    scratch = 0 if table.allocated else scope.speculative_tokens
    return min(missing, 1 + copy + scratch)


def _step_of_drafts(scope: Scope) -> int:
    """Return how many blocks one step of drafts may take, on top of what is computed."""
    drafts = scope.speculative_tokens
    if not drafts:
        return 0
    return sum(
        math.ceil((1 + 2 * drafts) / group.block_size)
        for group in scope.groups
        if not group.is_mamba
    )
