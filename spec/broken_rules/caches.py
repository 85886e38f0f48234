"""Mistakes about windows, EAGLE, junctions, drafts, exports, withdrawal, workers' tables."""

from __future__ import annotations

import attrs

from cowtail.models import (
    block_pool,
    preemption,
    state_columns,
    tables,
)
from cowtail.models.scope import Group, Scope
from cowtail.models.state import BlockTable, CopyDue, OpenPass, ScheduledChunk, State
from cowtail.models.tables import Allocation
from cowtail.spec.broken_rules.rule import BrokenRule, broken

_producer_copy = tables._producer_copy
_withdraw = preemption.withdraw


def _copy_replaces_the_entry(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _producer_copy(result, name, group, table, due, destination)
    pool = block_pool.touch(done.pool, [destination])
    pool = block_pool.free(pool, [due.source])
    blocks = (*table.blocks[: due.index], destination, *table.blocks[due.index + 1 :])
    return attrs.evolve(done, pool=pool), attrs.evolve(table, blocks=blocks)


def _withdrawn_keys_stay(scope: Scope, state: State, index: int) -> State:
    withdrawn = _withdraw(scope, state, index)
    return attrs.evolve(withdrawn, pool=state.pool)


def _withdrawn_offers_stay(opened: OpenPass, name: str) -> OpenPass:
    return opened


def _window_is_one_short(group: Group, computed: int) -> int:
    return max(computed - group.window + 1 + group.block_size, 0) // group.block_size


def _drafts_are_computed(scope: Scope, chunk: ScheduledChunk, group: int) -> None:
    return None


RULES: tuple[BrokenRule, ...] = (
    broken(
        "copy_replaces_the_entry",
        "K09",
        "The producer's copy takes the place of its source in the table; workers write the source.",
        "cow_decode",
        "S21",
        (tables, "_producer_copy", _copy_replaces_the_entry),
    ),
    broken(
        "withdrawn_keys_stay",
        "",
        "A withdrawn chunk's keys stay, and nothing will compute their bytes.",
        "withdrawn_offers",
        "S3",
        (preemption, "withdraw", _withdrawn_keys_stay),
    ),
    broken(
        "withdrawn_offers_stay",
        "",
        "A withdrawn chunk's states are handed to the connector.",
        "withdrawn_offers",
        "T8",
        (preemption, "without_offers", _withdrawn_offers_stay),
    ),
    broken(
        "window_left_too_early",
        "",
        "A window frees a block that the next token still attends to.",
        "window",
        "S21",
        (tables, "first_column_in_window", _window_is_one_short),
    ),
    broken(
        "state_after_drafts_is_lost",
        "",
        "After accepted drafts the next step goes on from the running column.",
        "drafts",
        "S3",
        (state_columns, "after_chunk", _drafts_are_computed),
    ),
)
"""Every broken rule of this theme."""
