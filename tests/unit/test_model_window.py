"""Sliding windows in the model: what a lookup needs, what a table keeps, what a step reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from cowtail.models import lookup, tables
from cowtail.models.actions import Abort, Admit, BeginPass, Extend, Submit
from cowtail.models.block_pool import allocate, initial_pool
from cowtail.models.observations import GARBAGE, Key
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba, sliding_window
from cowtail.models.state import BlockTable

Start = Callable[[Scope], Any]
TOKENS = "abcdefghijklmnop"

WINDOWED = Scope(
    name="windowed",
    groups=(full_attention(2), sliding_window(2, 4)),
    hash_unit=2,
    num_blocks=40,
    requests=(
        RequestSpec("a", "abcdefghi", max_tokens=3),
        RequestSpec("b", "abcdefghxyz"),
    ),
    role=Role.NONE,
    token_budget=4,
)


def window_hit(size: int, window: int, ends: set[int], *, other: int = 2) -> lookup.Hit:
    """Return the joint hit with everything cached in full attention, and ``ends`` in the window."""
    groups = (full_attention(other), sliding_window(size, window))
    scope = Scope("lookup", groups, 2, 99, (RequestSpec("a", TOKENS),))
    present = {Key(0, TOKENS[:end]): end for end in range(other, 17, other)}
    present |= {Key(1, TOKENS[:end]): 100 + end for end in ends}
    return lookup.joint_hit(scope, present.get, TOKENS)


@pytest.mark.parametrize(
    ("ends", "length", "blocks"),
    [
        ({10, 12, 14}, 14, (0, 0, 0, 0, 0, 112, 114)),
        ({10, 12}, 12, (0, 0, 0, 0, 110, 112)),
        ({2, 6, 8, 12}, 8, (0, 0, 106, 108)),
        ({2, 14}, 2, (102,)),
        ({6, 14}, 0, ()),
    ],
)
def test_a_hit_ends_where_the_window_before_it_is_cached_or_begins_at_the_first_token(
    ends: set[int], length: int, blocks: tuple[int, ...]
) -> None:
    hit = window_hit(2, 5, ends)
    assert (hit.length, hit.blocks[1]) == (length, blocks)


def test_a_run_begins_only_where_every_other_group_can_end_too() -> None:
    assert window_hit(2, 5, {8, 10, 12, 14}, other=4).length == 12
    assert window_hit(2, 5, {8, 10, 14}, other=4).length == 0
    assert window_hit(2, 5, {2, 4, 6}, other=4).length == 4
    assert window_hit(2, 5, {2}, other=4).length == 0


def test_blocks_that_processed_tokens_have_left_are_freed_from_the_windows_edge_down() -> None:
    pool, blocks = allocate(initial_pool(12), 5)
    scope = attrs.evolve(WINDOWED, groups=(sliding_window(2, 4),))
    pool, (kept,) = tables.remove_skipped(scope, pool, (BlockTable(blocks=blocks),), 7)
    assert kept.blocks == (0, 0, 3, 4, 5)
    assert pool.free[:2] == (2, 1), "the last one first"
    pool, (kept,) = tables.remove_skipped(scope, pool, (kept,), 10)
    assert kept.blocks == (0, 0, 0, 4, 5)
    assert pool.ref_counts[3] == 0


def test_a_table_is_no_longer_than_its_window_and_still_computes_true_kv(start: Start) -> None:
    run = start(WINDOWED).do(Submit("a")).one_pass(Admit("a")).device()
    for _ in range(3):
        run.one_pass(Extend("a")).device()
    full, window = run.request().tables
    assert (len(full.blocks), window.blocks[:3]) == (5, (0, 0, 0))
    assert all(window.blocks[3:])
    newest = run.state.memory[full.blocks[4]]
    assert newest == ("abcdefghi", "abcdefghiz")
    assert not any(GARBAGE in page for page in run.state.memory)


def test_a_step_depends_on_the_window_and_on_nothing_before_it(start: Start) -> None:
    run = start(WINDOWED).do(Submit("a")).one_pass(Admit("a")).device()
    run.one_pass(Extend("a")).device()
    table = run.request().tables[1].blocks

    def spoilt(column: int) -> bool:
        memory = [list(page) for page in run.state.memory]
        memory[table[column]] = [GARBAGE, GARBAGE]
        frozen = tuple(tuple(page) for page in memory)
        after = start(WINDOWED)
        after.state = attrs.evolve(run.state, memory=frozen)
        after.one_pass(Extend("a")).device()
        return bool(after.state.memory[after.request().tables[0].blocks[4]][0] == GARBAGE)

    assert not spoilt(1)
    assert spoilt(2)
    assert spoilt(3)


def test_a_hit_adopts_only_the_blocks_inside_the_window(start: Start) -> None:
    run = start(attrs.evolve(WINDOWED, token_budget=64))
    run.do(Submit("a")).one_pass(Admit("a")).device()
    cached = run.request().tables[1].blocks
    run.do(Abort("a"), Submit("b"), BeginPass(), Admit("b"))
    assert run.effects.hit == 8
    table = run.request("b").tables[1].blocks
    assert table[:4] == (0, 0, *cached[2:4])
    assert [run.state.pool.ref_counts[block] for block in cached[:4]] == [0, 0, 1, 1]


def test_workers_keep_naming_blocks_that_left_the_window(start: Start) -> None:
    run = start(WINDOWED).do(Submit("a")).one_pass(Admit("a")).device()
    first = run.request().tables[1].blocks
    run.one_pass(Extend("a")).device().one_pass(Extend("a"))
    request = run.request()
    assert request.tables[1].blocks[:2] == (0, 0)
    assert request.worker_tables[1][:2] == first
    assert request.worker_tables[1][2:] == request.tables[1].blocks[2:]
    run.do(Abort("a"))
    assert run.request().worker_tables == ()


def test_without_partial_hits_the_lcm_is_the_unit_of_a_hit_with_a_state(start: Start) -> None:
    groups = (sliding_window(4, 5), mamba(8))
    scope = attrs.evolve(
        WINDOWED,
        groups=groups,
        token_budget=64,
        requests=(RequestSpec("a", TOKENS), RequestSpec("b", TOKENS)),
    )
    run = start(scope).do(Submit("a")).one_pass(Admit("a")).device()
    run.do(Abort("a"), Submit("b"), BeginPass(), Admit("b"))
    assert run.effects.hit == 8
