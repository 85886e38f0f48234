"""Which columns of its tables a chunk uses on the device: to write, and to read."""

from __future__ import annotations

from cowtail.models import state_columns
from cowtail.models.scope import Group, Scope
from cowtail.models.state import ScheduledChunk
from cowtail.spec import supply


def columns_written(group: Group, chunk: ScheduledChunk) -> range:
    """Return the columns that a chunk writes: of a Mamba group, those of its final states."""
    last = -(-chunk.end // group.block_size)
    if group.is_mamba:
        return range(last - 1, last + chunk.drafts)
    return range(chunk.start // group.block_size, last)


def columns_read(scope: Scope, index: int, chunk: ScheduledChunk) -> tuple[int, ...]:
    """Return the columns of group ``index`` that a chunk needs from before it."""
    if not chunk.start:
        return ()
    group = scope.groups[index]
    if group.is_mamba:
        return (state_columns.before_chunk(scope, chunk, index).state,)
    first = supply.first_needed_column(scope, index, chunk.start)
    return tuple(range(first, -(-chunk.start // group.block_size)))


def blocks_used(scope: Scope, chunk: ScheduledChunk) -> set[int]:
    """Return the blocks of the workers' tables that a chunk reads or may write.

    Those tables only grow: in columns before these they still name blocks long given back.
    """
    used = set()
    for index, (group, table) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
        written = range(chunk.start // group.block_size, columns_written(group, chunk).stop)
        used |= {table[column] for column in (*columns_read(scope, index, chunk), *written)}
    return used
