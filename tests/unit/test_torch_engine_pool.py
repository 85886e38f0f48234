"""The torch engine's block pool: references, free list and keys."""

from __future__ import annotations

from collections import Counter

import hypothesis
import pytest
from hypothesis import strategies as st

from cowtail.impl.torch_engine import ConservationError, EngineError
from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.models.observations import Key

NUM_BLOCKS = 6
KEY = Key(0, "ab")


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=60, deadline=None)
def test_what_is_unreferenced_is_free_and_counts_are_what_was_taken(data: st.DataObject) -> None:
    pool = BlockPool(NUM_BLOCKS)
    owned: Counter[int] = Counter()
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["allocate", "touch", "free"])):
            case "allocate":
                taken = pool.allocate(data.draw(st.integers(0, pool.num_free)))
                assert not owned.keys() & set(taken)
                owned.update(taken)
            case "touch":
                blocks = data.draw(st.lists(st.integers(1, NUM_BLOCKS - 1), max_size=4))
                pool.touch(blocks)
                owned.update(blocks)
            case _:
                held = sorted(owned.elements())
                blocks = data.draw(st.permutations(held)) if held else []
                dropped = blocks[: data.draw(st.integers(0, len(blocks)))]
                pool.free([*dropped, 0])
                owned = owned - Counter(dropped)
        assert pool.ref_counts.tolist() == [owned[block] for block in range(NUM_BLOCKS)]
        assert sorted(pool.free_blocks()) == [b for b in range(1, NUM_BLOCKS) if not owned[b]]


def test_freed_blocks_without_keys_are_next_and_cached_ones_last() -> None:
    pool = BlockPool(NUM_BLOCKS)
    assert pool.allocate(4) == [1, 2, 3, 4]
    pool.add_key(2, KEY)
    pool.add_key(1, Key(0, "x"))
    pool.free([4, 2, 3, 1])
    assert pool.free_blocks() == (4, 3, 5, 2, 1)


def test_a_block_listed_twice_is_counted_twice_and_freed_once() -> None:
    pool = BlockPool(NUM_BLOCKS)
    (block,) = pool.allocate(1)
    pool.touch([block, block])
    assert pool.ref_counts[block] == 3
    pool.free([block, block, block])
    assert pool.free_blocks().count(block) == 1


@pytest.mark.parametrize("blocks", [[1], [2, 2]])
def test_freeing_below_zero_raises(blocks: list[int]) -> None:
    pool = BlockPool(NUM_BLOCKS)
    pool.touch([2])
    with pytest.raises(ConservationError, match="fall below zero"):
        pool.free(blocks)


def test_the_null_block_is_untouchable() -> None:
    pool = BlockPool(NUM_BLOCKS)
    with pytest.raises(ConservationError, match="null block"):
        pool.touch([1, 0])
    with pytest.raises(ConservationError, match="null block"):
        pool.add_key(0, KEY)
    pool.free([0])
    assert pool.ref_counts[0] == 0
    assert 0 not in pool.free_blocks()


def test_allocating_more_than_is_free_raises() -> None:
    with pytest.raises(EngineError, match="only 5 are free"):
        BlockPool(NUM_BLOCKS).allocate(NUM_BLOCKS)


def test_lookup_returns_the_block_that_got_the_key_first_and_still_has_it() -> None:
    pool = BlockPool(NUM_BLOCKS)
    first, second = pool.allocate(2)
    pool.add_key(first, KEY)
    pool.add_key(second, KEY)
    assert pool.lookup(KEY) == first
    pool.drop_keys(first)
    assert pool.lookup(KEY) == second


def test_moved_keys_keep_their_order() -> None:
    pool = BlockPool(NUM_BLOCKS)
    source, destination = pool.allocate(2)
    keys = [KEY, Key(0, "a")]
    for key in keys:
        pool.add_key(source, key)
    assert pool.move_keys(source, destination) == keys
    assert list(pool.keys(destination)) == keys
    assert not pool.keys(source)


def test_allocation_evicts_the_keys_of_a_cached_block() -> None:
    pool = BlockPool(2)
    pool.add_key(pool.allocate(1)[0], KEY)
    pool.free([1])
    assert pool.lookup(KEY) == 1
    pool.allocate(1)
    assert pool.lookup(KEY) is None
