"""Expected hits (R31): published lengths, worked examples, and why; from arithmetic alone."""

from __future__ import annotations

import pytest

from cowtail.models.scope import Group, full_attention, mamba, sliding_window
from cowtail.spec.expected_hit import Continuation, Resend, Sibling, expected_hit
from cowtail.spec.hits.layout import Layout
from cowtail.spec.hits.left_behind import left_behind
from cowtail.spec.hits.search import search

PUBLISHED = {7449: 7296, 23196: 23040, 41300: 41088}


def _eagle(size: int, **settings: bool | int) -> Layout:
    groups = (full_attention(size, eagle=True), mamba(size))
    return Layout(groups, 128, **settings)  # type: ignore[arg-type]


def _chunk_ends(layout: Layout, prompt: int) -> list[int]:
    return [chunk.end for chunk in left_behind(layout, prompt).chunks]


@pytest.mark.parametrize("size", [1024, 1792, 4352, 30464])
@pytest.mark.parametrize("prompt", PUBLISHED)
def test_r28_resends_find_the_published_lengths_at_every_block_size(size: int, prompt: int) -> None:
    hit = expected_hit(_eagle(size), prompt, Resend())
    assert hit.length == PUBLISHED[prompt]
    attention, state = hit.proofs
    assert (attention.key, state.key) == (hit.length + 128, hit.length)


@pytest.mark.parametrize(
    ("size", "settings"),
    [(30464, {}), (4352, {"token_budget": 32768, "internal_checkpoints": True})],
    ids=["one block of 30464", "blocks of 4352, chunks of seven"],
)
def test_r28_attention_at_the_boundary_only_loses_all_but_a_block(
    size: int, settings: dict[str, int]
) -> None:
    layout = _eagle(size, companions=False, **settings)
    hits = [expected_hit(layout, prompt, Resend()) for prompt in PUBLISHED]
    assert [hit.length for hit in hits] == [0, 0, 30464]
    for hit, found in zip(hits, PUBLISHED.values(), strict=True):
        missing = hit.missing[-1]
        assert missing.length == found
        (demand,) = missing.demands
        assert demand.lengths[0] == found + 128


def test_r28_what_is_left_of_the_third_depends_on_the_block_size() -> None:
    found = {
        size: expected_hit(_eagle(size, companions=False), 41300, Resend()).length
        for size in (1024, 1792, 4352, 15232)
    }
    # 41216, the proof of 41088, happens to be 23 blocks of 1792: a normal save puts it.
    assert found == {1024: 39936, 1792: 41088, 4352: 34816, 15232: 30464}


@pytest.mark.parametrize("unit", [16, 8, 4])
def test_r29_a_block_aligned_prompt_finds_the_state_below_its_last_block(unit: int) -> None:
    layout = Layout((full_attention(16), mamba(16)), unit)
    expected = 16 if unit == 16 else 32 - unit
    assert expected_hit(layout, 32, Resend()).length == expected


@pytest.mark.parametrize(
    ("prompt", "eagle", "unit", "block", "ends"),
    [
        (13, False, 2, 8, [8, 12, 13]),
        (17, True, 2, 8, [8, 14, 16, 17]),
        (7449, True, 128, 1024, [6144, 7296, 7449]),
        (2500, False, 128, 1024, [2048, 2432, 2500]),
        (2500, True, 128, 1024, [1024, 2304, 2500]),
    ],
)
def test_chunks_end_where_a_state_must_be_kept(
    prompt: int, eagle: bool, unit: int, block: int, ends: list[int]
) -> None:
    layout = Layout((full_attention(block, eagle=eagle), mamba(block)), unit)
    assert _chunk_ends(layout, prompt) == ends


def test_chunks_of_a_long_prompt_stop_at_the_last_block_and_both_boundaries() -> None:
    assert _chunk_ends(_eagle(1792), 41300)[-4:] == [39424, 41088, 41216, 41300]


def test_an_internal_checkpoint_makes_one_chunk_of_the_last_three() -> None:
    layout = _eagle(1024, internal_checkpoints=True)
    left = left_behind(layout, 7449)
    assert [(chunk.end, chunk.checkpoint) for chunk in left.chunks] == [(7449, 7296)]
    assert left.store[1] == {7296}
    assert expected_hit(layout, 7449, Resend()).length == 7296


def test_r26_the_three_cases_of_attention_beside_a_state() -> None:
    layout = Layout((full_attention(8, eagle=True), mamba(8)), 2)
    inside, aligned, earlier = (left_behind(layout, prompt).store for prompt in (13, 18, 30))
    assert [sorted(keys) for keys in inside] == [[8, 12], [10]]
    assert [sorted(keys) for keys in aligned] == [[8, 16, 18], [8, 16]]
    assert [sorted(keys) for keys in earlier] == [[8, 16, 24, 30], [16, 28]]
    assert expected_hit(layout, 18, Resend()).length == 16


def test_a_sibling_finds_a_boundary_within_what_it_shares() -> None:
    layout = Layout((full_attention(8), mamba(8)), 2)
    found = [expected_hit(layout, 13, Sibling(20, shared)).length for shared in range(14)]
    assert found == [0] * 8 + [8] * 4 + [12] * 2


def test_a_continuation_finds_what_was_decoded_only_in_the_local_cache() -> None:
    layout = Layout((full_attention(2), mamba(2)), 1)
    lengths = [
        expected_hit(layout, 5, Continuation(2), local=local, max_tokens=4).length
        for local in (False, True)
    ]
    assert lengths == [4, 8]


def test_a_prompt_that_ends_on_a_hash_unit_missed_one_before_0_32() -> None:
    for capped, found in ((True, 12), (False, 8)):
        layout = Layout((full_attention(8), mamba(8)), 2, capped=capped)
        assert expected_hit(layout, 14, Resend()).length == found
        assert expected_hit(layout, 14, Sibling(20, 14)).length == (14 if not capped else 12)


def test_a_retention_interval_of_0_keeps_the_replay_boundary_only() -> None:
    layout = Layout((full_attention(8), mamba(8)), 8, retention_interval=0)
    assert left_behind(layout, 33).store[1] == {32}
    assert expected_hit(layout, 33, Sibling(40, 24)).length == 0
    assert expected_hit(layout, 33, Resend()).length == 32


def test_a_window_needs_its_blocks_and_one_more_to_drop() -> None:
    for eagle, keys, found in ((False, {12, 16}, 16), (True, {12, 16}, 0), (True, {8, 12, 16}, 12)):
        layout = Layout((sliding_window(4, 6, eagle=eagle), full_attention(4)), 4)
        full = frozenset({4, 8, 12, 16})
        assert search(layout, (frozenset(keys), full), 18).length == found


def test_twins_of_which_one_is_a_drafters_drop_together() -> None:
    layout = Layout((full_attention(4), full_attention(4, eagle=True), mamba(4)), 4)
    assert [(each.members, each.eagle) for each in layout.sets] == [((0, 1), True), ((2,), False)]
    everything = frozenset({4, 8, 12})
    assert search(layout, (everything,) * 3, 13).length == 8
    assert search(layout, (frozenset({4}), everything, everything), 13).length == 0


@pytest.mark.parametrize("place", [True, False])
def test_why_names_the_boundary_each_proof_and_what_a_longer_hit_lacked(place: bool) -> None:
    hit = expected_hit(_eagle(1792), 7449, Resend(), local=place)
    assert hit.why == (
        "7296 is the replay boundary of 7449 tokens: floor(7449/128)*128 - 128",
        "full:1792:eagle: the key at 7424 = 7296 + 128, and drops 128 (and 4 before it)",
        "mamba:1792: the state after exactly 7296 tokens",
        "7424 lacks, of full:1792:eagle, the key at 7552: beyond the last whole hash unit of "
        "7449 tokens",
        "7424 lacks, of mamba:1792, the state at 7424, which was not "
        + ("cached" if place else "stored"),
    )


@pytest.mark.parametrize(
    ("groups", "unit", "complaint"),
    [
        ((), 1, "groups is empty"),
        ((full_attention(6),), 4, "group full:6: its block size must be a multiple of the hash"),
        ((mamba(2), mamba(4)), 2, "mamba groups of different block sizes"),
        ((Group(full_attention(2).kind, 2, window=5),), 2, "group full:2:window=5: a window"),
        ((full_attention(2),), 0, "hash_unit=0: must be 1 or more"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    groups: tuple[Group, ...], unit: int, complaint: str
) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}"):
        Layout(groups, unit)


def test_lengths_that_cannot_be_are_refused() -> None:
    layout = Layout((full_attention(2), mamba(2)), 1)
    with pytest.raises(ValueError, match=r"^prompt=0: must be 1 or more"):
        expected_hit(layout, 0, Resend())
    with pytest.raises(ValueError, match=r"^sibling of 5 tokens that shares 6: "):
        expected_hit(layout, 9, Sibling(5, 6))
    with pytest.raises(ValueError, match=r"^continuation=-1: must not be negative"):
        expected_hit(layout, 9, Continuation(-1))
