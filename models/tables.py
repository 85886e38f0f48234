"""Block tables per group: retiring, adopting a hit, allocating, copying on write.

Order of an allocation (domain.md d): retire what processed tokens no longer need, check the
need, touch hits, allocate per group, register keys per group. A partially hit block is never
written by who hit it: the *consumer* gets a private copy in its table. A registered tail is
about to be overwritten by its own request: the *producer* keeps its block, and the copy, in
no table, is the durable one (R9, R15).

A Mamba table ends with the running state's column and one scratch column for each speculative
token. Scratch blocks that the running column has passed are moved to the end again.
"""

from __future__ import annotations

import math

import attrs

from cowtail.models import block_pool, state_columns
from cowtail.models.block_pool import Pool
from cowtail.models.errors import LifecycleError
from cowtail.models.lookup import Hit
from cowtail.models.observations import NULL_BLOCK, Copy, Handoff, Key
from cowtail.models.scope import Group, GroupKind, Scope
from cowtail.models.state import BlockTable, CopyDue, Request, ScheduledChunk


@attrs.frozen
class Allocation:
    """What allocating for one chunk did: the pool, the tables, and what the pass must carry.

    ``checkpoint`` is the boundary whose state is exported from within the chunk, ``exports``
    the column for it in each Mamba group. ``keyed`` are the (block, key) pairs registered.
    """

    pool: Pool
    tables: tuple[BlockTable, ...]
    copies: tuple[Copy, ...] = ()
    offers: tuple[Handoff, ...] = ()
    registered: tuple[Key, ...] = ()
    new_blocks: tuple[int, ...] = ()
    checkpoint: int = 0
    exports: tuple[int | None, ...] = ()
    keyed: tuple[tuple[int, Key], ...] = ()
    events: tuple[str, ...] = ()


def remove_skipped(
    scope: Scope, pool: Pool, tables: tuple[BlockTable, ...], processed: int
) -> tuple[Pool, tuple[BlockTable, ...]]:
    """Free what ``processed`` tokens have left behind: states passed, blocks out of a window.

    Counted on processed tokens, so that blocks which steps in flight read survive.
    """
    kept = []
    for group, table in zip(scope.groups, tables, strict=True):
        if group.is_mamba:
            pool, table = _retire_states(group.block_size, pool, table, processed)
        elif group.kind is GroupKind.SLIDING_WINDOW:
            pool, table = _leave_window(group, pool, table, processed)
        kept.append(table)
    return pool, tuple(kept)


def first_column_in_window(group: Group, computed: int) -> int:
    """Return the first column of a window's table that the token after ``computed`` attends to."""
    return max(computed - group.window + 1, 0) // group.block_size


def _leave_window(
    group: Group, pool: Pool, table: BlockTable, processed: int
) -> tuple[Pool, BlockTable]:
    """Null the columns before the window, from its edge down to what has been nulled already."""
    edge = min(first_column_in_window(group, processed), len(table.blocks))
    first = edge
    while first and table.blocks[first - 1] != NULL_BLOCK:
        first -= 1
    if first == edge:
        return pool, table
    pool = block_pool.free(pool, table.blocks[first:edge][::-1])
    nulls = (NULL_BLOCK,) * (edge - first)
    blocks = table.blocks[:first] + nulls + table.blocks[edge:]
    return pool, attrs.evolve(table, blocks=blocks)


def _retire_states(
    size: int, pool: Pool, table: BlockTable, processed: int
) -> tuple[Pool, BlockTable]:
    """Null the columns below the state of ``processed`` tokens, then the remembered last state."""
    blocks = list(table.blocks)
    upper = min(max(processed - 1, 0) // size, len(blocks))
    retired = table.retired
    if table.retired < upper:
        columns = [c for c in range(upper - 1, table.retired - 1, -1) if blocks[c] != NULL_BLOCK]
        pool = block_pool.free(pool, [blocks[c] for c in columns])
        for column in columns:
            blocks[column] = NULL_BLOCK
        retired = upper
    last = table.last_state
    if last is not None and last < math.ceil(processed / size) - 1 and blocks[last] != NULL_BLOCK:
        pool = block_pool.free(pool, [blocks[last]])
        blocks[last] = NULL_BLOCK
    return pool, attrs.evolve(table, blocks=tuple(blocks), retired=retired)


def blocks_written(scope: Scope, group: int, chunk: ScheduledChunk) -> tuple[int, ...]:
    """Return the blocks of one group that computing a chunk writes.

    Of a Mamba group: the running column, the scratch column of each draft, the column of an
    exported state, and the one that a boundary passed by drafts is copied to.
    """
    size = scope.groups[group].block_size
    table = chunk.tables[group]
    if not scope.groups[group].is_mamba:
        return table[chunk.start // size : math.ceil(chunk.end / size)]
    running = state_columns.running_column(scope, chunk, group)
    written = table[running : running + chunk.drafts + 1]
    export = chunk.exports[group] if chunk.exports else None
    if export is not None:
        written += (table[export],)
    boundary = state_columns.boundary_passed(scope, chunk, group)
    if boundary is not None:
        written += (table[boundary // size - 1],)
    return written


def adopt_hit(scope: Scope, tables: tuple[BlockTable, ...], hit: Hit) -> tuple[BlockTable, ...]:
    """Return the tables of a request admitted with ``hit``; references are not taken yet.

    What the lookup of a window found before the window is not adopted.
    """
    adopted = []
    for group, table, blocks in zip(scope.groups, tables, hit.blocks, strict=True):
        if group.kind is GroupKind.SLIDING_WINDOW:
            skipped = min(first_column_in_window(group, hit.length), len(blocks))
            blocks = (NULL_BLOCK,) * skipped + blocks[skipped:]
        table = attrs.evolve(table, blocks=blocks, num_cached=len(blocks))
        if blocks and hit.length % group.block_size:
            column = hit.length // group.block_size
            table = attrs.evolve(table, num_cached=column, copy_due=CopyDue(column, blocks[column]))
        adopted.append(table)
    return tuple(adopted)


def touch_adopted(pool: Pool, adopted: tuple[BlockTable, ...]) -> Pool:
    """Take one reference on every block of a hit, before any group allocates."""
    for table in adopted:
        pool = block_pool.touch(pool, table.blocks)
    return pool


def blocks_needed(
    scope: Scope, tables: tuple[BlockTable, ...], end: int, checkpoint: int = 0
) -> int:
    """Return how many blocks a chunk that ends at ``end`` takes from the free list.

    ``checkpoint``: the boundary whose state is exported from within the chunk, or 0.
    """
    total = 0
    for group, table in zip(scope.groups, tables, strict=True):
        if group.is_mamba:
            total += _plan_columns(scope, group, table, end, checkpoint).new_blocks
        else:
            total += _missing(scope, group, table, end)
        total += table.copy_due is not None
    return total


def _missing(scope: Scope, group: Group, table: BlockTable, end: int) -> int:
    """Return how many blocks an attention table lacks for a chunk that ends at ``end``."""
    ahead = 0 if scope.behaviours.exact_allocation else scope.speculative_tokens
    return max(math.ceil((end + ahead) / group.block_size) - len(table.blocks), 0)


@attrs.frozen
class _Columns:
    """How a Mamba table grows: nulls first, then relocated columns, then blocks of its own.

    ``idle``: it does not, and is left as it is. ``export``: the column kept for a state that is
    exported from within the chunk.
    """

    idle: bool
    nulls: int
    relocated: tuple[int, ...]
    new_blocks: int
    export: int | None


def _plan_columns(
    scope: Scope, group: Group, table: BlockTable, end: int, checkpoint: int
) -> _Columns:
    scratch = scope.speculative_tokens
    length = len(table.blocks)
    running = math.ceil(end / group.block_size) - 1
    required = running + 1 + scratch
    oldest_scratch = max(length - scratch, 0) if table.allocated else length
    export = None
    if checkpoint:
        column = running - 1
        if column >= oldest_scratch or table.blocks[column] == NULL_BLOCK:
            export = column
    if required <= length and table.copy_due is None and export is None:
        return _Columns(True, 0, (), 0, None)
    passed = running if export is None else export
    nulls = max(passed - length, 0)
    relocated = tuple(column for column in range(oldest_scratch, length) if column < passed)
    new_blocks = max(required - length - nulls - len(relocated), 0)
    return _Columns(False, nulls, relocated, new_blocks, export)


def allocate(
    scope: Scope, begun: Allocation, name: str, end: int, checkpoint: int = 0
) -> Allocation:
    """Perform the copies that are due and extend every table to cover ``end`` tokens.

    ``begun`` holds the tables to extend. Raises LifecycleError if a scratch block to relocate is
    shared or keyed.
    """
    result = attrs.evolve(begun, tables=(), checkpoint=checkpoint)
    for index, (group, table) in enumerate(zip(scope.groups, begun.tables, strict=True)):
        if group.is_mamba:
            result, table = _allocate_states(scope, result, name, index, table, end)
        else:
            if table.copy_due is not None:
                result, table = _copy_on_write(result, name, index, table, group.is_mamba)
            missing = _missing(scope, group, table, end)
            result, table = _with_new_blocks(result, table, missing)
            result = attrs.evolve(result, exports=(*result.exports, None))
        result = attrs.evolve(result, tables=(*result.tables, table))
    return result


def _allocate_states(
    scope: Scope, result: Allocation, name: str, index: int, table: BlockTable, end: int
) -> tuple[Allocation, BlockTable]:
    """Extend a Mamba table to its running column and the scratch columns after it."""
    grown = _plan_columns(scope, scope.groups[index], table, end, result.checkpoint)
    result = attrs.evolve(result, exports=(*result.exports, grown.export))
    if grown.idle:
        return result, attrs.evolve(table, allocated=True)
    length = len(table.blocks)
    last_state = table.last_state
    if table.allocated:
        last_state = length - 1 - scope.speculative_tokens
    elif length:
        last_state = length - 1
    if table.copy_due is not None:
        result, table = _copy_on_write(result, name, index, table, True)
    blocks = [*table.blocks, *(NULL_BLOCK,) * grown.nulls]
    for column in grown.relocated:
        block = blocks[column]
        if result.pool.ref_counts[block] != 1 or result.pool.keys[block]:
            raise LifecycleError(
                f"scratch block {block} of {name!r} in column {column} is relocated, but has "
                f"{result.pool.ref_counts[block]} references and keys {result.pool.keys[block]}"
            )
        blocks[column] = NULL_BLOCK
        blocks.append(block)
    if grown.relocated:
        result = attrs.evolve(result, events=(*result.events, "scratch block relocated"))
    table = attrs.evolve(table, blocks=tuple(blocks), last_state=last_state)
    return _with_new_blocks(result, table, grown.new_blocks)


def _with_new_blocks(
    result: Allocation, table: BlockTable, count: int
) -> tuple[Allocation, BlockTable]:
    """Append ``count`` blocks from the head of the free list to a table."""
    pool, taken = block_pool.allocate(result.pool, count)
    result = attrs.evolve(result, pool=pool, new_blocks=result.new_blocks + taken)
    return result, attrs.evolve(table, blocks=table.blocks + taken, allocated=True)


def _copy_on_write(
    result: Allocation, name: str, group: int, table: BlockTable, is_mamba: bool
) -> tuple[Allocation, BlockTable]:
    """Give the due copy its destination, by the producer's rule or by the consumer's."""
    due = table.copy_due
    assert due is not None
    if due.source == NULL_BLOCK or table.blocks[due.index] != due.source:
        raise LifecycleError(
            f"copy-on-write of {name!r} expects block {due.source} in column {due.index}, "
            f"the table has {table.blocks}"
        )
    pool, (destination,) = block_pool.allocate(result.pool, 1)
    result = attrs.evolve(
        result,
        pool=pool,
        copies=(*result.copies, Copy(group, due.source, destination)),
        new_blocks=(*result.new_blocks, destination),
    )
    table = attrs.evolve(table, copy_due=None)
    if is_mamba and table.allocated:
        return _producer_copy(result, name, group, table, due, destination)
    return _consumer_copy(result, table, due, destination)


def _producer_copy(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    """Move the keys to the durable block, in no table, and offer it if the tail is marked."""
    pool = block_pool.move_keys(result.pool, due.source, destination)
    pool = block_pool.touch(pool, [due.source])
    events = ("producer copy-on-write",)
    offers: tuple[Handoff, ...] = ()
    if table.marker is not None:
        if table.marker.block != due.source:
            raise LifecycleError(
                f"the tail of {name!r} is block {table.marker.block}, its copy reads {due.source}"
            )
        offers = (Handoff(name, group, destination, table.marker.boundary),)
    result = attrs.evolve(
        result,
        pool=pool,
        offers=result.offers + offers,
        registered=result.registered + pool.keys[destination],
        events=result.events + events,
    )
    return result, attrs.evolve(table, marker=None)


def _consumer_copy(
    result: Allocation, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    """Put the private copy into the table; the hit's reference on the source now is the copy's."""
    blocks = (*table.blocks[: due.index], destination, *table.blocks[due.index + 1 :])
    result = attrs.evolve(
        result,
        pool=block_pool.touch(result.pool, [destination]),
        events=(*result.events, "consumer copy-on-write"),
    )
    return result, attrs.evolve(table, blocks=blocks)


def blocks_to_free(freed: tuple[BlockTable, ...]) -> tuple[tuple[int, ...], ...]:
    """Return every block of a request as it is given back: by group, from each table's last."""
    return tuple(table.blocks[::-1] for table in freed)


def workers_tables(
    request: Request, allocated: tuple[BlockTable, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the workers' tables of a request once they know of what was allocated.

    They are replaced at an admission; afterwards they get what was appended to the tables. A
    block is never replaced in them, so they still name what has been retired or relocated.
    """
    if not request.worker_tables:
        return tuple(table.blocks for table in allocated)
    return tuple(
        known + table.blocks[len(known) :]
        for known, table in zip(request.worker_tables, allocated, strict=True)
    )


def tables_of_step(
    scope: Scope,
    mirror: tuple[tuple[int, ...], ...],
    tables: tuple[BlockTable, ...],
    start: int,
) -> tuple[tuple[int, ...], ...]:
    """Return the workers' tables as a chunk that begins at ``start`` uses them.

    They are cleared of what the scheduler has let go of in columns that no such chunk touches,
    so that nothing is remembered of a block that can make no difference.
    """
    used = []
    for group, known, table in zip(scope.groups, mirror, tables, strict=True):
        first = first_column_touched(group, start)
        used.append(table.blocks[:first] + known[first:])
    return tuple(used)


def first_column_touched(group: Group, start: int) -> int:
    """Return the first column that a step reads or writes which computes from ``start`` on."""
    if group.is_mamba:
        return max(start - 1, 0) // group.block_size
    if group.kind is GroupKind.SLIDING_WINDOW:
        return first_column_in_window(group, start)
    return 0
