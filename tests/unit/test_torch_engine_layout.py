"""The engine's own layout rules, against what the words say, by brute force."""

from __future__ import annotations

import pytest

from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.models.scope import Group, RequestSpec, Scope, full_attention, mamba


def layout_of(hash_unit: int, *groups: Group) -> CacheLayout:
    request = RequestSpec("a", "abcd")
    return CacheLayout.of(
        Scope(name="layout", groups=groups, hash_unit=hash_unit, num_blocks=64, requests=(request,))
    )


@pytest.mark.parametrize(
    ("layout", "lcm", "partial_hits", "alignment", "chunk_block"),
    [
        pytest.param(layout_of(2, full_attention(8)), 8, False, 8, None, id="attention alone"),
        pytest.param(
            layout_of(2, full_attention(4), full_attention(6)), 12, False, 12, None, id="no state"
        ),
        pytest.param(
            layout_of(4, full_attention(8), mamba(4)), 8, False, 8, 4, id="states on the grid"
        ),
        pytest.param(
            layout_of(2, full_attention(6), mamba(4)), 12, True, 2, 4, id="states off the grid"
        ),
        pytest.param(
            layout_of(2, mamba(2), full_attention(2), mamba(6)), 6, True, 2, 2, id="second state"
        ),
    ],
)
def test_layout(
    layout: CacheLayout, lcm: int, partial_hits: bool, alignment: int, chunk_block: int | None
) -> None:
    assert layout.lcm == lcm
    assert layout.partial_hits is partial_hits
    assert layout.alignment == alignment
    assert layout.chunk_block == chunk_block


@pytest.mark.parametrize("unit", [1, 2, 3, 4])
def test_the_replay_boundary_is_the_last_grid_point_that_leaves_a_token(unit: int) -> None:
    layout = layout_of(unit, full_attention(12))
    for length in range(1, 30):
        expected = max(point for point in range(length) if point % unit == 0)
        assert layout.replay_boundary(length) == expected


@pytest.mark.parametrize(("length", "boundary"), [(7449, 7424), (23196, 23168), (256, 128)])
def test_replay_boundaries_of_long_prompts(length: int, boundary: int) -> None:
    assert layout_of(128, full_attention(128)).replay_boundary(length) == boundary


def test_a_normal_save_covers_whole_blocks_of_every_group() -> None:
    layout = layout_of(2, full_attention(4), mamba(6))
    assert [layout.saved_whole(length) for length in (0, 11, 12, 23, 24)] == [0, 0, 12, 12, 24]
