"""The explorer on the block pool that other checkers are measured on: the known counts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cowtail.spec.explorer import Verdict, explore


def load_block_pool() -> ModuleType:
    """Load the benchmark's machine, which no installed package contains."""
    path = Path(__file__).parents[2] / "benchmarks" / "block_pool.py"
    spec = importlib.util.spec_from_file_location("benchmarks_block_pool", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


block_pool = load_block_pool()


@pytest.mark.parametrize(
    ("sizes", "symmetry", "states"),
    [
        pytest.param((4, 2, 3), False, 58_833, id="4-2-3"),
        pytest.param((4, 2, 3), True, 1_493, id="4-2-3-orbits"),
        pytest.param((5, 2, 3), True, 3_967, id="5-2-3-orbits"),
        pytest.param((4, 3, 3), True, 5_283, id="4-3-3-orbits"),
    ],
)
def test_block_pool_has_exactly_the_known_states(
    sizes: tuple[int, int, int], symmetry: bool, states: int
) -> None:
    pool = block_pool.BlockPool(*sizes, symmetry=symmetry)
    found = explore(
        pool,
        invariants=pool.invariants(),
        required_actions=block_pool.ACTION_NAMES,
        max_seconds=None,
    )
    assert found.verdict is Verdict.HOLDS
    assert found.states == states


def successor(pool: object, state: int, action: str) -> int:
    """Return the state that an action leads to."""
    steps: dict[str, int] = {a: after for a, after, _ in pool.successors(state)}  # type: ignore[attr-defined]
    return steps[action]


def test_invariants_of_the_block_pool_can_fail() -> None:
    pool = block_pool.BlockPool(2, 2, 2)
    conservation, boundary = (invariant.check for invariant in pool.invariants())
    state = successor(pool, pool.initial(), "alloc r0 b1")
    assert (conservation(state), boundary(state)) == (None, None)
    assert conservation(state + 1) == (
        "the reference counts are not the occurrences: "
        "tables [1*] []; references 1 1; offloads none none"
    )
    pending_b1 = block_pool.PENDING << block_pool.BLOCK_BITS
    assert conservation(state + pending_b1) is None
    assert boundary(state + pending_b1) == (
        "a block that is still written is offloaded: "
        "tables [1*] []; references 0 1; offloads none pending"
    )


def test_copy_on_write_leaves_the_shared_block_to_the_other_request() -> None:
    pool = block_pool.BlockPool(2, 2, 2)
    state = pool.initial()
    for action in ("alloc r0 b0", "fork r0 r1", "cow r1 b1", "fill r0", "offload_start r0 0"):
        state = successor(pool, state, action)
    assert pool.describe(state) == "tables [0] [1*]; references 1 1; offloads pending none"


@pytest.mark.parametrize("sizes", [(8, 2, 3), (4, 4, 3), (4, 2, 0)])
def test_sizes_without_room_in_the_packed_state_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="the packed state has room for 1 to 7 blocks"):
        block_pool.BlockPool(*sizes)
