"""Registering keys: what a chunk fills becomes reachable under the hash of its prefix.

Keys are registered when the step that computes them is scheduled; their bytes are true once it
has run. Full Mamba blocks are offered to the connector with their exact token count (R30); a
registered sub-block tail waits for its copy or for the finish (R1, R9).
"""

from __future__ import annotations

import math

import attrs

from cowtail.models import block_pool, boundaries, retention
from cowtail.models.observations import NULL_BLOCK, Handoff, Key, Marker
from cowtail.models.scope import GroupKind, RequestSpec, Scope
from cowtail.models.state import BlockTable, CopyDue
from cowtail.models.tables import Allocation


def register_keys(
    scope: Scope,
    spec: RequestSpec,
    allocation: Allocation,
    computed: int,
    covered: int,
    junction: int = 0,
) -> Allocation:
    """Key what ``covered`` known tokens fill: full blocks, the attention tail, the Mamba tail.

    ``computed``: how many of them were there before, computed or loaded. ``junction``: where a
    sibling's hit ended, in tokens, or 0.
    """
    stop = junction if computed < junction else 0
    result = attrs.evolve(allocation, tables=())
    for index, (group, table) in enumerate(zip(scope.groups, allocation.tables, strict=True)):
        became_full = range(table.num_cached, covered // group.block_size)
        result, table = _register_full_blocks(scope, result, spec, index, table, covered, junction)
        if group.is_mamba:
            export = result.exports[index] if result.exports else None
            if export is not None:
                result = _register_export(scope, result, spec, index, table, export, junction)
            elif boundaries.partial_hits(scope):
                result, table = _register_tail(scope, result, spec, index, table, covered, stop)
            result = _offer(result, spec, index, table, became_full)
        elif group.kind is GroupKind.FULL_ATTENTION and boundaries.partial_hits(scope):
            result = _register_attention_tail(scope, result, spec, index, table, covered)
        result = attrs.evolve(result, tables=(*result.tables, table))
    return result


def _register_full_blocks(
    scope: Scope,
    result: Allocation,
    spec: RequestSpec,
    group: int,
    table: BlockTable,
    covered: int,
    junction: int,
) -> tuple[Allocation, BlockTable]:
    """Key the retained real blocks that became full."""
    size = scope.groups[group].block_size
    for column in range(table.num_cached, covered // size):
        block = table.blocks[column]
        if block == NULL_BLOCK or not retention.is_retained(scope, spec, group, column, junction):
            continue
        key = Key(group, spec.tokens[: (column + 1) * size])
        result = attrs.evolve(
            result,
            pool=block_pool.promote_to_full(result.pool, block, key),
            keyed=(*result.keyed, (block, key)),
        )
        if scope.groups[group].is_mamba:
            result = attrs.evolve(result, registered=(*result.registered, key))
    return result, attrs.evolve(table, num_cached=max(table.num_cached, covered // size))


def _register_attention_tail(
    scope: Scope, result: Allocation, spec: RequestSpec, group: int, table: BlockTable, covered: int
) -> Allocation:
    """Key the block inside which the replay boundary's proof ends: the boundary plus the margin.

    A prompt shorter than a hash unit has none.
    """
    size = scope.groups[group].block_size
    end = boundaries.replay_boundary(scope, spec) + boundaries.margins(scope)[group]
    if not 0 < end <= min(covered, len(spec.prompt)) or end % size == 0:
        return result
    block = table.blocks[end // size]
    key = Key(group, spec.tokens[:end])
    return _with_partial_key(result, block, key)


def _with_partial_key(result: Allocation, block: int, key: Key) -> Allocation:
    """Add a key to a block; if it is new, remember that this chunk registered it."""
    if key in result.pool.keys[block]:
        return result
    return attrs.evolve(
        result,
        pool=block_pool.add_partial_key(result.pool, block, key),
        keyed=(*result.keyed, (block, key)),
    )


def _register_tail(
    scope: Scope,
    result: Allocation,
    spec: RequestSpec,
    group: int,
    table: BlockTable,
    covered: int,
    stop: int,
) -> tuple[Allocation, BlockTable]:
    """Register the state at the replay boundary, or at a junction that a chunk may have stopped at.

    Inside a block, a copy is due and a marker set.
    """
    exact = boundaries.exact_junctions(scope)
    at_junction = exact and covered == stop and covered <= len(spec.prompt)
    at_boundary = covered == boundaries.replay_boundary(scope, spec)
    if not covered or covered % scope.hash_unit or not (at_boundary or at_junction):
        return result, table
    size = scope.groups[group].block_size
    column = math.ceil(covered / size) - 1
    if column >= len(table.blocks) or table.blocks[column] == NULL_BLOCK:
        return result, table
    block = table.blocks[column]
    key = Key(group, spec.tokens[:covered])
    if key in result.pool.keys[block]:
        return result, table
    result = _with_partial_key(result, block, key)
    result = attrs.evolve(result, registered=(*result.registered, key))
    if covered % size == 0:
        return result, table
    table = attrs.evolve(
        table,
        copy_due=CopyDue(column, block),
        num_cached=column,
        marker=Marker(block, covered),
    )
    events = ("tail registered",) if at_boundary else ("tail registered", "junction registered")
    return attrs.evolve(result, events=result.events + events), table


def _register_export(
    scope: Scope,
    result: Allocation,
    spec: RequestSpec,
    group: int,
    table: BlockTable,
    column: int,
    junction: int,
) -> Allocation:
    """Key the block that a state is exported into at the boundary whose state it will hold.

    It may have been keyed as a full block just now; it never holds that state.
    """
    block = table.blocks[column]
    size = scope.groups[group].block_size
    exported = result.checkpoint
    held = result.pool.keys[block]
    kept = (
        exported == _export_of_a_resend(scope, spec)
        or exported == junction
        or (
            exported % size == 0
            and retention.is_retained(scope, spec, group, exported // size - 1, junction)
        )
    )
    key = Key(group, spec.tokens[:exported])
    result = attrs.evolve(result, events=(*result.events, "state exported from within a chunk"))
    if not kept:
        pool = block_pool.drop_keys(result.pool, block)
        result = attrs.evolve(result, pool=pool)
    elif not held or held[0] != key:
        pool = block_pool.add_key(block_pool.drop_keys(result.pool, block), block, key)
        result = attrs.evolve(
            result,
            pool=pool,
            registered=(*result.registered, key),
            keyed=(*result.keyed, (block, key)),
        )
    return result


def _offer(
    result: Allocation, spec: RequestSpec, group: int, table: BlockTable, columns: range
) -> Allocation:
    """Offer the blocks that became full and have a key, each at its primary key's boundary.

    Keyed as a full block, as the replay boundary that is one, or as an exported state.
    """
    offers = tuple(
        Handoff(spec.name, group, block, len(keys[0].prefix))
        for block in (table.blocks[column] for column in columns)
        if block != NULL_BLOCK and (keys := result.pool.keys[block])
    )
    return attrs.evolve(result, offers=result.offers + offers)


def _export_of_a_resend(scope: Scope, spec: RequestSpec) -> int:
    """Return ck(P) in units of what hits are multiples of."""
    return boundaries.checkpoint(scope, len(spec.prompt), boundaries.hit_alignment(scope))
