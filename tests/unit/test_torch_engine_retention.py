"""Which blocks of a prompt the torch engine keeps keys for."""

from __future__ import annotations

import pytest

from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.retention import Retention
from cowtail.models.scope import Group, RequestSpec, Scope, full_attention, mamba, sliding_window


def kept(
    unit: int,
    groups: tuple[Group, ...],
    *,
    interval: int | None,
    prompt: int,
    junction: int = 0,
    columns: int = 8,
) -> list[list[int]]:
    """Return the columns kept, group by group."""
    scope = Scope(
        name="r",
        groups=groups,
        hash_unit=unit,
        num_blocks=99,
        requests=(RequestSpec("a", "a"),),
        retention_interval=interval,
    )
    retention = Retention(CacheLayout.of(scope), interval)
    return [
        [column for column in range(columns) if retention.keeps(group, column, prompt, junction)]
        for group in range(len(groups))
    ]


PAIR = (full_attention(2), mamba(2))


@pytest.mark.parametrize(
    ("interval", "states"),
    [
        pytest.param(None, list(range(8)), id="all"),
        pytest.param(4, [1, 3, 5, 7], id="every second, the boundary among them"),
        pytest.param(6, [2, 3, 5], id="every third, and the boundary"),
        pytest.param(0, [3], id="the boundary alone"),
        pytest.param(1, list(range(8)), id="an interval below a block"),
    ],
)
def test_attention_is_always_kept_and_states_by_the_interval(
    interval: int | None, states: list[int]
) -> None:
    assert kept(1, PAIR, interval=interval, prompt=9) == [list(range(8)), states]


def test_a_junction_is_kept_too() -> None:
    assert kept(1, PAIR, interval=0, prompt=9, junction=4)[1] == [1, 3]


def test_with_a_drop_the_states_a_unit_earlier_are_kept() -> None:
    groups = (full_attention(2, eagle=True), mamba(2))
    assert kept(1, groups, interval=0, prompt=9)[1] == [2]
    assert kept(1, groups, interval=0, prompt=8)[1] == [1, 2]


def test_window_blocks_are_kept_below_every_alignment() -> None:
    groups = (full_attention(8), sliding_window(2, 4))
    assert kept(2, groups, interval=None, prompt=16)[1] == [2, 3, 6, 7]


def test_eagle_windows_are_kept_one_block_further() -> None:
    groups = (full_attention(16), sliding_window(2, 4, eagle=True))
    assert kept(2, groups, interval=None, prompt=16, columns=10)[1] == [6, 7, 8]


def test_a_window_with_an_interval_is_kept_where_the_prompt_resumes() -> None:
    groups = (full_attention(4), sliding_window(2, 4))
    assert kept(2, groups, interval=0, prompt=13)[1] == [4, 5]
