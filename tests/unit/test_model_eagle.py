"""EAGLE and MTP drafters in the model: a lookup drops a unit, so a hit needs proof beyond it."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from cowtail.models import lookup
from cowtail.models.actions import Abort, Admit, BeginPass, Extend, Submit
from cowtail.models.observations import Key
from cowtail.models.scope import (
    Group,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    sliding_window,
)

Start = Callable[[Scope], Any]
ALPHABET = string.ascii_letters

DRAFTED = Scope(
    name="drafted",
    groups=(full_attention(8, eagle=True), mamba(8)),
    hash_unit=2,
    num_blocks=20,
    requests=(RequestSpec("a", "abcdefghijklm"), RequestSpec("b", "abcdefghijklm")),
    role=Role.NONE,
)


def resend_hit(start: Start, scope: Scope) -> int:
    """Return what 'b' hits after 'a' has computed its whole prompt and let go of it."""
    run = start(attrs.evolve(scope, max_steps_in_flight=64))
    run.do(Submit("a")).one_pass(Admit("a"))
    while run.request("a").computed < len(scope.requests[0].prompt):
        run.one_pass(Extend("a"))
    run.do(Abort("a"), Submit("b"), BeginPass(), Admit("b"))
    hit = run.effects.hit
    assert isinstance(hit, int)
    return hit


def long_scope(length: int, block: int) -> Scope:
    prompt = (ALPHABET * (length // len(ALPHABET) + 1))[:length]
    return Scope(
        name="long",
        groups=(full_attention(block, eagle=True), mamba(block)),
        hash_unit=128,
        num_blocks=3 * (length // block) + 20,
        requests=(RequestSpec("a", prompt), RequestSpec("b", prompt)),
        role=Role.NONE,
        token_budget=8192,
    )


@pytest.mark.parametrize(
    ("length", "block", "hit"),
    [(7449, 1024, 7296), (23196, 1024, 23040), (41300, 1792, 41088)],
)
def test_r28_a_resend_finds_the_lengths_of_the_worked_prompts(
    start: Start, length: int, block: int, hit: int
) -> None:
    assert resend_hit(start, long_scope(length, block)) == hit


def test_r29_a_resend_of_two_whole_blocks_finds_the_first(start: Start) -> None:
    prompt = "abcdefghijklmnopqrstuvwxyzABCDEF"
    scope = attrs.evolve(
        DRAFTED,
        groups=(full_attention(16), mamba(16)),
        hash_unit=16,
        requests=(RequestSpec("a", prompt), RequestSpec("b", prompt)),
    )
    assert resend_hit(start, scope) == 16


def test_r23_attention_is_keyed_one_margin_past_the_state(start: Start) -> None:
    run = start(DRAFTED).do(Submit("a")).one_pass(Admit("a"))
    assert run.request().tables[1].marker.boundary == 10
    assert Key(0, "abcdefghijkl") not in keys_of(run), "not computed that far"
    run.device().one_pass(Extend("a"))
    assert Key(0, "abcdefghijkl") in keys_of(run)
    assert Key(1, "abcdefghij") in keys_of(run)


def keys_of(run: Any) -> set[Key]:
    return {key for keys in run.state.pool.keys for key in keys}


@pytest.mark.parametrize("length", range(1, 30))
@pytest.mark.parametrize("attention", [2, 4, 8])
def test_an_identical_resend_hits_at_the_replay_boundary(
    start: Start, length: int, attention: int
) -> None:
    prompt = ALPHABET[:length]
    scope = attrs.evolve(
        DRAFTED,
        groups=(full_attention(attention, eagle=True), mamba(8)),
        num_blocks=60,
        requests=(RequestSpec("a", prompt), RequestSpec("b", prompt)),
    )
    assert resend_hit(start, scope) == max(length // 2 * 2 - 2, 0)


def hit_of(
    groups: tuple[Group, ...], hash_unit: int, tokens: str, ends: dict[int, set[int]]
) -> Any:
    """Return the joint hit where each group has keys at the given ends, each its own block."""
    present = {
        Key(group, tokens[:end]): 100 * group + end
        for group, lengths in ends.items()
        for end in lengths
    }
    scope = Scope("lookup", groups, hash_unit, 99, (RequestSpec("a", tokens),))
    return lookup.joint_hit(scope, present.get, tokens)


def test_the_proof_is_looked_up_one_unit_past_what_other_groups_supply() -> None:
    groups = (full_attention(8, eagle=True), mamba(8))
    whole = {0: {8, 12}, 1: {10}}
    assert hit_of(groups, 2, ALPHABET[:13], whole).length == 10
    assert hit_of(groups, 2, ALPHABET[:13], {0: {8, 10}, 1: {10}}).length == 0
    assert hit_of(groups, 2, ALPHABET[:13], {0: {8, 10}, 1: {8}}).length == 8


def test_a_block_of_the_hit_may_be_keyed_beyond_it() -> None:
    hit = hit_of((full_attention(8, eagle=True), mamba(8)), 2, ALPHABET[:13], {0: {8, 12}, 1: {10}})
    assert hit.blocks == ((8, 12), (0, 110))


def test_all_groups_of_a_set_drop_if_one_has_a_drafter_and_all_need_the_key() -> None:
    groups = (full_attention(4), full_attention(4, eagle=True), mamba(8))
    tokens = ALPHABET[:14]
    hit = hit_of(groups, 2, tokens, {0: {4, 8, 10}, 1: {4, 8, 10}, 2: {8}})
    assert (hit.length, hit.blocks) == (8, ((4, 8), (104, 108), (0 + 208,)))
    assert hit_of(groups, 2, tokens, {0: {4, 8, 10}, 1: {4, 8}, 2: {8}}).length == 0


def test_a_drafters_window_drops_a_block_and_is_verified_once() -> None:
    groups = (full_attention(4), sliding_window(4, 5, eagle=True), mamba(4))
    tokens = ALPHABET[:17]
    ends = {0: {4, 8, 12, 16}, 1: {4, 8, 12, 16}, 2: {4, 8, 12, 16}}
    hit = hit_of(groups, 4, tokens, ends)
    assert hit.length == 12
    assert hit.blocks[1] == (0, 0, 112)
    assert hit.junction == 16


def test_the_junction_is_the_longest_that_some_set_supplies() -> None:
    groups = (full_attention(2), mamba(4))
    hit = hit_of(groups, 1, "abcdefgh", {0: {2, 4, 6}, 1: {4}})
    assert (hit.length, hit.junction) == (4, 6)
    assert hit_of(groups, 1, "abcdefgh", {0: {2, 4}, 1: {4}}).junction == 0
