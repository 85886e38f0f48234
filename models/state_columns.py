"""Where a request's recurrent state is: the columns of a Mamba table that a step reads and writes.

A step writes the running column, that of its last token, and one scratch column after it for
each draft. If drafts are accepted, the state that counts is in a scratch column, until the next
step copies it to its own running column. A state belongs into the column of its block boundary,
so one that drafts have passed is copied there at the end of the step.
"""

from __future__ import annotations

import math

from cowtail.models.scope import Scope
from cowtail.models.state import RunningState, ScheduledChunk


def running_column(scope: Scope, chunk: ScheduledChunk, group: int) -> int:
    """Return the column of a chunk's last token, drafts included."""
    return math.ceil(chunk.end / scope.groups[group].block_size) - 1


def before_chunk(scope: Scope, chunk: ScheduledChunk, group: int) -> RunningState:
    """Return where the state is before a chunk that does not begin at token 0."""
    known = chunk.running[group] if chunk.running else None
    return known or _in_the_column_of(chunk.start, scope.groups[group].block_size)


def after_chunk(scope: Scope, chunk: ScheduledChunk, group: int) -> RunningState | None:
    """Return where a chunk leaves the state; None if in the column of its last settled token."""
    size = scope.groups[group].block_size
    column = running_column(scope, chunk, group)
    state = column + chunk.accepted
    boundary = boundary_passed(scope, chunk, group)
    if boundary is not None and boundary // size - 1 == column:
        state = column
    left = RunningState(column, state)
    return None if left == _in_the_column_of(chunk.settled, size) else left


def boundary_passed(scope: Scope, chunk: ScheduledChunk, group: int) -> int | None:
    """Return the last block boundary among the tokens that a chunk with drafts has settled."""
    size = scope.groups[group].block_size
    boundary = chunk.settled // size * size
    return boundary if chunk.drafts and boundary > chunk.start else None


def column_read(scope: Scope, chunk: ScheduledChunk, group: int) -> int:
    """Return the column that the forward pass reads the state from.

    Where the last chunk left it, if this one has the same running column; else that column, to
    which the state has been copied.
    """
    before = before_chunk(scope, chunk, group)
    running = running_column(scope, chunk, group)
    return before.state if before.column == running else running


def _in_the_column_of(tokens: int, size: int) -> RunningState:
    column = (tokens - 1) // size
    return RunningState(column, column)
