"""Block tables per group: retiring, allocating, copying on write, and registering keys.

Order of an allocation (domain.md d): retire what processed tokens no longer need, check the
need, touch hits, allocate per group, register keys per group. A partially hit block is never
written by who hit it: the *consumer* gets a private copy in its table. A registered tail is
about to be overwritten by its own request: the *producer* keeps its block, and the copy, in
no table, is the durable one (R9, R15).
"""

from __future__ import annotations

import math

import attrs

from cowtail.models import block_pool, boundaries
from cowtail.models.block_pool import Pool
from cowtail.models.errors import LifecycleError
from cowtail.models.lookup import Hit
from cowtail.models.observations import NULL_BLOCK, Copy, Handoff, Key, Marker
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import BlockTable, CopyDue


@attrs.frozen
class Allocation:
    """What allocating for one chunk did: the pool, the tables, and what the pass must carry."""

    pool: Pool
    tables: tuple[BlockTable, ...]
    copies: tuple[Copy, ...] = ()
    offers: tuple[Handoff, ...] = ()
    registered: tuple[Key, ...] = ()
    new_blocks: tuple[int, ...] = ()
    events: tuple[str, ...] = ()


def remove_skipped(
    scope: Scope, pool: Pool, tables: tuple[BlockTable, ...], processed: int
) -> tuple[Pool, tuple[BlockTable, ...]]:
    """Free the states that ``processed`` tokens have left behind, in every Mamba group.

    Counted on processed tokens, so that blocks which steps in flight read survive.
    """
    kept = []
    for group, table in zip(scope.groups, tables, strict=True):
        if group.is_mamba:
            pool, table = _retire_states(group.block_size, pool, table, processed)
        kept.append(table)
    return pool, tuple(kept)


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


def blocks_written(
    scope: Scope, group: int, table: tuple[int, ...], start: int, end: int
) -> tuple[int, ...]:
    """Return the blocks of one table that computing tokens [start, end) writes."""
    size = scope.groups[group].block_size
    columns = math.ceil(end / size)
    return (
        table[columns - 1 : columns]
        if scope.groups[group].is_mamba
        else table[start // size : columns]
    )


def adopt_hit(scope: Scope, tables: tuple[BlockTable, ...], hit: Hit) -> tuple[BlockTable, ...]:
    """Return the tables of a request admitted with ``hit``; references are not taken yet."""
    adopted = []
    for group, table, blocks in zip(scope.groups, tables, hit.blocks, strict=True):
        table = attrs.evolve(table, blocks=blocks, num_cached=len(blocks))
        if blocks and hit.length % group.block_size:
            column = hit.length // group.block_size
            table = attrs.evolve(table, num_cached=column, copy_due=CopyDue(column, blocks[column]))
        adopted.append(table)
    return tuple(adopted)


def blocks_needed(scope: Scope, tables: tuple[BlockTable, ...], end: int) -> int:
    """Return how many blocks a chunk that ends at ``end`` takes from the free list."""
    total = 0
    for group, table in zip(scope.groups, tables, strict=True):
        missing = max(math.ceil(end / group.block_size) - len(table.blocks), 0)
        total += min(missing, 1) if group.is_mamba else missing
        total += table.copy_due is not None
    return total


def hit_blocks_in_free_list(pool: Pool, hit: Hit) -> int:
    """Return how many blocks of a hit would leave the free list when touched."""
    return sum(pool.ref_counts[block] == 0 for blocks in hit.blocks for block in blocks if block)


def allocate(
    scope: Scope, pool: Pool, name: str, tables: tuple[BlockTable, ...], end: int
) -> Allocation:
    """Perform the copies that are due and extend every table to cover ``end`` tokens."""
    result = Allocation(pool, ())
    for index, (group, table) in enumerate(zip(scope.groups, tables, strict=True)):
        column_needed = math.ceil(end / group.block_size)
        idle = column_needed <= len(table.blocks) and table.copy_due is None
        length_before = len(table.blocks)
        if table.copy_due is not None:
            result, table = _copy_on_write(result, name, index, table, group.is_mamba)
        if group.is_mamba and not idle:
            padding = max(column_needed - 1 - length_before, 0)
            table = attrs.evolve(
                table,
                blocks=table.blocks + (NULL_BLOCK,) * padding,
                last_state=length_before - 1 if length_before else table.last_state,
            )
        missing = max(column_needed - len(table.blocks), 0)
        grown, taken = block_pool.allocate(result.pool, missing)
        table = attrs.evolve(table, blocks=table.blocks + taken, allocated=True)
        result = attrs.evolve(
            result,
            pool=grown,
            tables=(*result.tables, table),
            new_blocks=result.new_blocks + taken,
        )
    return result


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


def register_keys(
    scope: Scope, spec: RequestSpec, allocation: Allocation, covered: int
) -> Allocation:
    """Key what ``covered`` known tokens fill: full blocks, the attention tail, the Mamba tail.

    Keys are registered when the step that computes them is scheduled; their bytes are true
    once it has run. Full Mamba blocks are offered to the connector with their exact token
    count (R30); a registered sub-block tail waits for its copy or for the finish (R1, R9).
    """
    result = attrs.evolve(allocation, tables=())
    for index, (group, table) in enumerate(zip(scope.groups, allocation.tables, strict=True)):
        result, table = _register_full_blocks(
            result, spec, index, group.block_size, table, covered, group.is_mamba
        )
        boundary = boundaries.replay_boundary(scope, spec)
        if boundaries.partial_hits(scope) and boundary > 0:
            if group.is_mamba:
                if covered == boundary:
                    result, table = _register_tail(
                        result, spec, index, group.block_size, table, boundary
                    )
            elif boundary <= covered and boundary % group.block_size:
                block = table.blocks[boundary // group.block_size]
                key = Key(index, spec.tokens[:boundary])
                result = attrs.evolve(
                    result, pool=block_pool.add_partial_key(result.pool, block, key)
                )
        result = attrs.evolve(result, tables=(*result.tables, table))
    return result


def _register_full_blocks(
    result: Allocation,
    spec: RequestSpec,
    group: int,
    size: int,
    table: BlockTable,
    covered: int,
    is_mamba: bool,
) -> tuple[Allocation, BlockTable]:
    """Key the real blocks that became full; offer each one of a Mamba group."""
    pool = result.pool
    offers: tuple[Handoff, ...] = ()
    registered: tuple[Key, ...] = ()
    for column in range(table.num_cached, covered // size):
        block = table.blocks[column]
        if block == NULL_BLOCK:
            continue
        key = Key(group, spec.tokens[: (column + 1) * size])
        pool = block_pool.promote_to_full(pool, block, key)
        if is_mamba:
            registered += (key,)
            offers += (Handoff(spec.name, group, block, len(key.prefix)),)
    result = attrs.evolve(
        result,
        pool=pool,
        offers=result.offers + offers,
        registered=result.registered + registered,
    )
    return result, attrs.evolve(table, num_cached=max(table.num_cached, covered // size))


def _register_tail(
    result: Allocation, spec: RequestSpec, group: int, size: int, table: BlockTable, boundary: int
) -> tuple[Allocation, BlockTable]:
    """Register the state at the replay boundary; inside a block, a copy is due and a marker set."""
    column = math.ceil(boundary / size) - 1
    if column >= len(table.blocks) or table.blocks[column] == NULL_BLOCK:
        return result, table
    block = table.blocks[column]
    key = Key(group, spec.tokens[:boundary])
    result = attrs.evolve(
        result,
        pool=block_pool.add_partial_key(result.pool, block, key),
        registered=(*result.registered, key),
    )
    if boundary % size == 0:
        return result, table
    table = attrs.evolve(
        table,
        copy_due=CopyDue(column, block),
        num_cached=column,
        marker=Marker(block, boundary),
    )
    return attrs.evolve(result, events=(*result.events, "tail registered")), table


def blocks_to_free(freed: tuple[BlockTable, ...]) -> tuple[tuple[int, ...], ...]:
    """Return every block of a request as it is given back: by group, from each table's last."""
    return tuple(table.blocks[::-1] for table in freed)
