"""Retention: which full blocks get keys (domain.md d).

Attention over the whole prefix needs every block. Of a Mamba group's states, and of a window's
blocks, only those are worth keeping at which a lookup can end: all of them, one an interval,
and in any case those that an identical resend or a sibling will ask for.
"""

from __future__ import annotations

import math

from cowtail.models import boundaries
from cowtail.models.boundaries import LookupSet
from cowtail.models.scope import GroupKind, RequestSpec, Scope


def is_retained(scope: Scope, spec: RequestSpec, group: int, column: int, junction: int) -> bool:
    """Whether the full block in a column gets a key.

    ``junction``: where a sibling's hit ended, in tokens; 0 if nowhere, or not known.
    """
    kind = scope.groups[group].kind
    if kind is GroupKind.FULL_ATTENTION:
        return True
    if kind is GroupKind.MAMBA:
        return _state_is_retained(scope, spec, scope.groups[group].block_size, column, junction)
    asked = next(found for found in boundaries.lookup_sets(scope) if group in found.groups)
    return _window_block_is_retained(scope, spec, asked, column, junction)


def _state_is_retained(
    scope: Scope, spec: RequestSpec, size: int, column: int, junction: int
) -> bool:
    interval = scope.retention_interval
    if interval is None:
        return True
    if interval:
        columns = interval // size
        if columns <= 1 or (column + 1) % columns == 0:
            return True
    return any(column == end // size - 1 for end in _reachable_boundaries(scope, spec, junction))


def _window_block_is_retained(
    scope: Scope, spec: RequestSpec, asked: LookupSet, column: int, junction: int
) -> bool:
    """Whether a block is among the last ones of a window that ends where a lookup can end.

    A drafter's window is looked up one block further than its hit.
    """
    size = asked.block_size
    align = boundaries.hit_alignment(scope)
    interval = scope.retention_interval
    if align % size:
        return True
    needed = math.ceil((asked.window - 1) / size) + asked.eagle
    shift = int(asked.eagle)
    segment = align if interval is None else interval
    if segment:
        columns = segment // size
        if needed >= columns:
            return True
        if column >= shift and (column - shift) % columns >= columns - needed:
            return True
    if interval is None:
        return False
    last_columns = (end // size + shift for end in _reachable_boundaries(scope, spec, junction))
    return any(last - needed <= column < last for last in last_columns)


def _reachable_boundaries(scope: Scope, spec: RequestSpec, junction: int) -> list[int]:
    """Return where a resend and a sibling can hit, rounded down to what hits are multiples of."""
    length = len(spec.prompt)
    lcm = boundaries.lcm_block_size(scope)
    if boundaries.drops(scope):
        reached = [max(end // lcm * lcm - lcm, 0) for end in (length - 1, length)]
    else:
        reached = [length - 1]
    if junction:
        reached.append(junction)
    align = boundaries.hit_alignment(scope)
    return [end // align * align for end in reached]
