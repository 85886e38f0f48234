"""The torch engine's joint lookup, on keys alone, and its free fence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.fence import FreeFence
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.lookup import Hit, JointLookup
from cowtail.models.scope import (
    Group,
    RequestSpec,
    Scope,
    full_attention,
    mamba,
    sliding_window,
)

TOKENS = "abcdefghijklmnopqrstuvwxyz"


class Keys:
    """Keys that are there, as (group, length); block ids are 100 * group + length."""

    def __init__(self, *present: tuple[int, int]) -> None:
        self.present = set(present)

    def find(self, groups: Sequence[int], prefix: str) -> tuple[int, ...] | None:
        length = len(prefix)
        if any((group, length) not in self.present for group in groups):
            return None
        return tuple(100 * group + length for group in groups)


def layout(unit: int, *groups: Group) -> CacheLayout:
    request = RequestSpec("a", "a")
    return CacheLayout.of(
        Scope(name="l", groups=groups, hash_unit=unit, num_blocks=99, requests=(request,))
    )


def find(keys: Keys, known: int, unit: int, *groups: Group) -> Hit:
    return JointLookup(layout(unit, *groups)).find(keys, TOKENS[:known])


def test_equal_groups_are_one_set_and_drafters_make_all_of_it_eagle() -> None:
    sets = layout(2, mamba(4), full_attention(4), full_attention(4, eagle=True)).lookup_sets
    assert [(each.groups, each.eagle) for each in sets] == [((1, 2), True), ((0,), False)]


@pytest.mark.parametrize(
    ("groups", "margins"),
    [
        pytest.param((full_attention(8, eagle=True), mamba(8)), [2, 0], id="inside a block"),
        pytest.param((full_attention(2, eagle=True), mamba(8)), [2, 0], id="block of one unit"),
        pytest.param((full_attention(8, eagle=True),), [8], id="no partial hits"),
        pytest.param(
            (full_attention(8, eagle=True), sliding_window(4, 5, eagle=True), mamba(8)),
            [8, 4, 0],
            id="a window of larger blocks than the unit",
        ),
    ],
)
def test_margins(groups: tuple[Group, ...], margins: list[int]) -> None:
    where = layout(2, *groups)
    assert [where.margin(index) for index in range(len(groups))] == margins


def test_the_replay_boundary_with_a_drop_lies_a_unit_below_the_last_full_one() -> None:
    where = layout(128, full_attention(1024, eagle=True), mamba(1024))
    assert [where.replay_boundary(p) for p in (7449, 23196, 41300)] == [7296, 23040, 41088]
    assert where.replay_boundary(255) == 0


def test_an_eagle_hit_needs_the_proof_a_margin_beyond_it() -> None:
    groups = (full_attention(8, eagle=True), mamba(8))
    boundary, proof = 10, 12
    state = [(1, 8), (1, boundary)]
    assert find(Keys((0, 8), (0, proof), *state), 13, 2, *groups).length == boundary
    assert find(Keys((0, 8), (0, boundary), *state), 13, 2, *groups).length == 8


def test_a_window_needs_only_the_blocks_that_it_reaches() -> None:
    groups = (sliding_window(2, 4),)
    hit = find(Keys((0, 6), (0, 8), (0, 2)), 12, 2, *groups)
    assert hit.length == 8
    assert hit.tables == ([0, 0, 6, 8],)


def test_a_gap_in_the_window_moves_the_hit_back() -> None:
    hit = find(Keys((0, 2), (0, 4), (0, 8)), 12, 2, sliding_window(2, 4))
    assert (hit.length, hit.tables) == (4, ([2, 4],))


def test_a_prefix_shorter_than_the_window_is_a_hit_from_its_first_token_on() -> None:
    hit = find(Keys((0, 2), (0, 4)), 12, 2, sliding_window(2, 12))
    assert hit.length == 4


def test_an_eagle_window_needs_one_block_more_and_drops_it() -> None:
    groups = (sliding_window(2, 3, eagle=True),)
    assert find(Keys((0, 6), (0, 8)), 12, 2, *groups).tables == ([0, 0, 6],)
    assert find(Keys((0, 8)), 12, 2, *groups).length == 0


def test_a_longer_hit_that_the_state_lacks_is_the_junction() -> None:
    hit = find(Keys((0, 4), (0, 8), (1, 4)), 13, 2, full_attention(4), mamba(4))
    assert (hit.length, hit.junction) == (4, 8)
    assert find(Keys((0, 4), (1, 4)), 13, 2, full_attention(4), mamba(4)).junction == 0


def test_equal_groups_must_both_have_a_key() -> None:
    groups = (full_attention(4), full_attention(4))
    assert find(Keys((0, 4), (0, 8), (1, 4)), 13, 4, *groups).tables == ([4], [104])


def test_the_fence_waits_for_the_steps_in_flight_at_the_time() -> None:
    pool = BlockPool(6)
    fence = FreeFence(pool, defers=True)
    fence.step_dispatched()
    fence.give_back(pool.allocate(1), pool.allocate(1))
    fence.step_dispatched()
    fence.give_back([0])
    fence.give_back(pool.allocate(1))
    assert fence.waiting() == ((1, (1, 2)), (2, (3,)))
    fence.step_processed()
    assert pool.free_blocks() == (1, 2, 4, 5)
    assert fence.waiting() == ((1, (3,)),)
    fence.step_processed()
    fence.give_back(pool.allocate(2), pool.allocate(1))
    assert fence.waiting() == ()


def test_without_deferral_or_steps_blocks_go_sequence_by_sequence() -> None:
    pool = BlockPool(6)
    fence = FreeFence(pool, defers=False)
    fence.step_dispatched()
    first, second = pool.allocate(2), pool.allocate(1)
    fence.give_back(first, second)
    assert pool.free_blocks() == (3, 1, 2, 4, 5)
