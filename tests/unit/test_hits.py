"""Stored where lookup looks (R31): runs find what was expected; a sample, `make hits` does all."""

from __future__ import annotations

import itertools

import pytest

from cowtail.harness import hits
from cowtail.harness.hit_cases import TRUE_SCALE, World, seconds, worlds
from cowtail.harness.target import TorchTarget
from cowtail.models.scope import GroupKind, full_attention, mamba, sliding_window
from cowtail.spec.broken_rules import broken_rule
from cowtail.spec.expected_hit import Layout, expected_hit
from cowtail.spec.hits.search import lacking

TAIL = World(Layout((full_attention(4), mamba(4)), 1), 7)
EAGLE = World(Layout((full_attention(4, eagle=True), mamba(4)), 1), 7)
UNEQUAL = World(Layout((full_attention(2), mamba(4)), 1), 7)
WINDOW = World(Layout((sliding_window(2, 3, eagle=True), full_attention(4)), 1), 12)


def test_the_model_finds_what_is_expected_in_a_sample_of_all_worlds() -> None:
    comparison = hits.compare(every=251)
    assert comparison.disagreements == ()
    assert (comparison.worlds, comparison.lookups) == (26, 580)


@pytest.mark.parametrize("world", [TAIL, EAGLE, WINDOW], ids=str)
def test_the_torch_engine_finds_what_is_expected(world: World) -> None:
    assert hits.compare_world(world, TorchTarget()) == (2 * len(seconds(world)) + 3, [])


def test_r28_is_found_at_true_scale() -> None:
    assert hits.compare_world(TRUE_SCALE[0]) == (9, [])
    assert hits.compare_world(TRUE_SCALE[0], TorchTarget(), at_most=1) == (3, [])


@pytest.mark.parametrize(
    ("rule", "world"),
    [("full_chunks_only", TAIL), ("save_one_lcm_late", UNEQUAL), ("longest_group_wins", UNEQUAL)],
)
def test_a_broken_rule_of_the_model_is_noticed(rule: str, world: World) -> None:
    with broken_rule(rule):
        _, differing = hits.compare_world(world)
    assert differing


@pytest.mark.parametrize("fault", ["K05", "K06"])
def test_a_fault_of_the_engine_is_noticed(fault: str) -> None:
    _, differing = hits.compare_world(EAGLE, TorchTarget(faults=(fault,)))
    assert any(difference.what.startswith("store Resend") for difference in differing)


@pytest.mark.parametrize("unproved", [TAIL, EAGLE])
def test_wrong_arithmetic_is_noticed(unproved: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layout, "checkpoint", lambda self, length, unit: length // unit * unit)
    _, differing = hits.compare_world(unproved)
    assert {"keys in the cache", "keys in the store"} <= {each.what for each in differing}


def test_the_worlds_have_every_kind_of_group_with_and_without_a_drafter() -> None:
    seen = {(group.kind, group.eagle) for world in worlds() for group in world.layout.groups}
    attention = set(itertools.product(list(GroupKind)[:2], (False, True)))
    assert seen == {*attention, (GroupKind.MAMBA, False)}


def test_a_hit_never_rests_on_a_key_that_is_not_there() -> None:
    found = 0
    for world in itertools.islice(worlds(), 0, None, 83):
        for second, local in itertools.product(seconds(world), (True, False)):
            hit = expected_hit(
                world.layout, world.prompt, second, local=local, max_tokens=world.max_tokens
            )
            assert not hit.length or not lacking(world.layout, hit.keys, hit.length, hit.known)
            found += hit.length > 0
    assert found > 500
