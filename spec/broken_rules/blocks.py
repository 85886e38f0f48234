"""Mistakes about blocks: references, keys, copies, hits."""

from __future__ import annotations

import attrs

from cowtail.models import (
    admission,
    block_pool,
    boundaries,
    lookup,
    tables,
)
from cowtail.models.block_pool import Pool
from cowtail.models.scope import Scope
from cowtail.models.state import (
    BlockTable,
    CopyDue,
    OpenPass,
)
from cowtail.models.tables import Allocation
from cowtail.spec.broken_rules.rule import BrokenRule, broken

_producer_copy = tables._producer_copy
_consumer_copy = tables._consumer_copy
_find_hit = lookup.find_hit
_allocate_blocks = block_pool.allocate


def _copy_forgets_the_source(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _producer_copy(result, name, group, table, due, destination)
    counts = list(done.pool.ref_counts)
    counts[due.source] -= 1
    return attrs.evolve(done, pool=attrs.evolve(done.pool, ref_counts=tuple(counts))), table


def _copy_leaves_the_keys(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _producer_copy(result, name, group, table, due, destination)
    return attrs.evolve(done, pool=block_pool.move_keys(done.pool, destination, due.source)), table


def _copy_zeroes_its_source(
    result: Allocation, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _consumer_copy(result, table, due, destination)
    return attrs.evolve(done, new_blocks=(*done.new_blocks, due.source)), table


def _hit_blocks_are_shared(
    scope: Scope, adopted: tuple[BlockTable, ...], hit: lookup.Hit
) -> tuple[BlockTable, ...]:
    return tuple(
        attrs.evolve(table, blocks=blocks, num_cached=len(blocks))
        for table, blocks in zip(adopted, hit.blocks, strict=True)
    )


def _copies_are_never_checked(
    scope: Scope, opened: OpenPass, adopted: tuple[BlockTable, ...]
) -> bool:
    return False


def _hit_takes_the_longest(scope: Scope, pool: Pool, tokens: str) -> lookup.Hit:
    hit = _find_hit(scope, pool, tokens)
    (blocks,), length = lookup.find_in_full_attention(
        scope,
        lambda key: block_pool.cached_block(pool, key),
        tokens,
        boundaries.lookup_sets(scope)[0],
        len(tokens) - 1,
        False,
    )
    return lookup.Hit(length, (blocks, *hit.blocks[1:])) if length > hit.length else hit


def _allocation_keeps_keys(pool: Pool, count: int) -> tuple[Pool, tuple[int, ...]]:
    allocated, taken = _allocate_blocks(pool, count)
    for block in taken:
        for key in pool.keys[block]:
            allocated = block_pool.add_key(allocated, block, key)
    return allocated, taken


def _drop_keys_but_not_from_the_index(pool: Pool, block: int) -> Pool:
    keys = (*pool.keys[:block], (), *pool.keys[block + 1 :])
    return attrs.evolve(pool, keys=keys)


def _freeing_skips_the_last_block(freed: tuple[BlockTable, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(table.blocks[-2::-1] for table in freed)


RULES: tuple[BrokenRule, ...] = (
    broken(
        "reference_forgotten_by_copy",
        "",
        "The producer's copy takes no reference on its source.",
        "lone_producer",
        "S1",
        (tables, "_producer_copy", _copy_forgets_the_source),
    ),
    broken(
        "keys_left_on_the_source",
        "",
        "After copy-on-write the cache still finds the block that is being overwritten.",
        "unequal_blocks",
        "S3",
        (tables, "_producer_copy", _copy_leaves_the_keys),
    ),
    broken(
        "copy_source_zeroed",
        "",
        "The source of a consumer's copy is listed among the blocks to zero.",
        "shared_prefix",
        "S6",
        (tables, "_consumer_copy", _copy_zeroes_its_source),
    ),
    broken(
        "copy_chained_in_one_step",
        "",
        "A hit is copied from a block that another copy or chunk of the same step fills.",
        "same_pass",
        "S6",
        (admission, "copies_what_this_pass_writes", _copies_are_never_checked),
    ),
    broken(
        "partial_hit_shared",
        "",
        "Who hits inside a block writes into it instead of a copy.",
        "shared_prefix",
        "S5",
        (tables, "adopt_hit", _hit_blocks_are_shared),
    ),
    broken(
        "longest_group_wins",
        "K35",
        "Where the groups' hits differ, the longer one is committed.",
        "continuation",
        "S4",
        (lookup, "find_hit", _hit_takes_the_longest),
    ),
    broken(
        "recycled_block_keeps_its_keys",
        "",
        "An allocated block can still be hit under its old prefix.",
        "preempt_under_pressure",
        "S0",
        (block_pool, "allocate", _allocation_keeps_keys),
    ),
    broken(
        "index_keeps_dropped_keys",
        "",
        "Keys are taken off the block and stay in the index.",
        "lone_producer",
        "S2",
        (block_pool, "drop_keys", _drop_keys_but_not_from_the_index),
    ),
    broken(
        "last_block_not_freed",
        "",
        "Freeing a request forgets the last block of each table.",
        "lone_producer",
        "S1",
        (tables, "blocks_to_free", _freeing_skips_the_last_block),
    ),
)
"""Every broken rule of this theme."""
