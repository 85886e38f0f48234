"""Where the model's chunks end: block boundaries, replay boundary, junctions, budget."""

from __future__ import annotations

import string

import attrs
import pytest

from cowtail.models import boundaries, chunking, retention
from cowtail.models.scope import (
    Group,
    RequestSpec,
    Scope,
    full_attention,
    mamba,
    sliding_window,
)
from cowtail.models.state import initial_state

LETTERS = string.ascii_letters


def scope_of(
    prompt_length: int,
    block: int,
    hash_unit: int,
    *,
    eagle: bool = False,
    token_budget: int = 8192,
    internal: bool = False,
) -> Scope:
    prompt = (LETTERS * (prompt_length // len(LETTERS) + 1))[:prompt_length]
    return Scope(
        name="lengths",
        groups=(full_attention(block, eagle=eagle), mamba(block)),
        hash_unit=hash_unit,
        num_blocks=2 * prompt_length // block + 20,
        requests=(RequestSpec("a", prompt), RequestSpec("b", prompt)),
        token_budget=token_budget,
        internal_checkpoints=internal,
    )


def chunk_ends(scope: Scope, junction: int = 0) -> list[int]:
    """Return where the chunks of a prefill without hits end, one a pass."""
    spec, request = scope.requests[0], initial_state(scope).requests[0]
    ends = [0]
    while ends[-1] < len(spec.prompt):
        end = chunking.chunk_end(scope, spec, request, ends[-1], scope.token_budget, junction)
        assert end > ends[-1]
        ends.append(end)
    return ends[1:]


@pytest.mark.parametrize(
    ("scope", "ends"),
    [
        (scope_of(13, 8, 2), [8, 12, 13]),
        (scope_of(13, 8, 2, eagle=True), [10, 13]),
        (scope_of(18, 8, 2, eagle=True), [8, 16, 18]),
        (scope_of(17, 8, 2, eagle=True), [8, 14, 16, 17]),
        (scope_of(32, 16, 16), [16, 32]),
        (scope_of(7449, 1024, 128, eagle=True), [6144, 7296, 7449]),
        (scope_of(2500, 1024, 128), [2048, 2432, 2500]),
        (scope_of(2500, 1024, 128, eagle=True), [1024, 2304, 2500]),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(len(value.requests[0].prompt)),
)
def test_prefill_stops_where_a_state_has_to_be_cached(scope: Scope, ends: list[int]) -> None:
    assert chunk_ends(scope) == ends


def test_a_long_prefill_goes_by_whole_blocks_and_stops_twice_more_at_its_end() -> None:
    """41300 tokens in blocks of 1792: 41216 is a block boundary that a chunk would pass."""
    ends = chunk_ends(scope_of(41300, 1792, 128, eagle=True))
    assert ends[-4:] == [39424, 41088, 41216, 41300]
    assert all(end % 1792 == 0 for end in ends[:-3])


def test_a_block_wider_than_the_budget_is_filled_in_several_chunks() -> None:
    assert chunk_ends(scope_of(13, 8, 2, token_budget=6)) == [6, 8, 12, 13]


def test_no_chunk_is_scheduled_if_the_rest_of_the_budget_reaches_no_block_boundary() -> None:
    scope = scope_of(30, 8, 2, token_budget=20)
    spec, request = scope.requests[0], initial_state(scope).requests[0]
    assert chunking.chunk_end(scope, spec, request, 0, 7, 0) == 0
    assert chunking.chunk_end(scope, spec, request, 0, 9, 0) == 8


def test_a_junction_is_a_stop_exactly_with_shared_prefix_checkpoints_else_its_block() -> None:
    scope = scope_of(30, 8, 2)
    assert chunk_ends(scope, junction=12) == [8, 24, 28, 30]
    exact = attrs.evolve(scope, shared_prefix_checkpoints=True)
    assert chunk_ends(exact, junction=12) == [12, 16, 24, 28, 30]


def test_a_state_that_is_exported_from_within_a_chunk_needs_no_stop() -> None:
    scope = scope_of(21, 8, 2, internal=True)
    spec = scope.requests[0]
    assert chunk_ends(scope) == [21]
    assert chunking.internal_checkpoint(scope, spec, 21, 0, 21) == 20
    assert chunking.internal_checkpoint(scope, spec, 21, 0, 20) == 0
    assert chunking.internal_checkpoint(scope, spec, 21, 16, 21) == 0, "no column is left for it"
    assert chunking.internal_checkpoint(scope, spec, 21, 1, 21) == 0, "not on a hash unit"


@pytest.mark.parametrize(
    ("groups", "margins"),
    [
        ((full_attention(8, eagle=True), mamba(8)), (2, 0)),
        ((full_attention(2, eagle=True), mamba(8)), (2, 0)),
        ((full_attention(8, eagle=True), sliding_window(8, 9, eagle=True)), (8, 8)),
        ((full_attention(8, eagle=True), full_attention(8), mamba(8)), (2, 2, 0)),
        ((full_attention(8), mamba(8)), (0, 0)),
    ],
)
def test_r24_the_margin_is_the_unit_that_a_lookup_drops(
    groups: tuple[Group, ...], margins: tuple[int, ...]
) -> None:
    scope = Scope("margins", groups, 2, 40, (RequestSpec("a", "abcdefghi"),))
    assert boundaries.margins(scope) == margins


def test_a_window_wider_than_the_hash_unit_forbids_hits_inside_blocks() -> None:
    narrow = Scope(
        "narrow", (sliding_window(2, 4), mamba(8)), 2, 40, (RequestSpec("a", "abcdefghi"),)
    )
    wide = attrs.evolve(narrow, groups=(sliding_window(4, 4), mamba(8)))
    assert boundaries.partial_hits(narrow)
    assert boundaries.hit_alignment(narrow) == 2
    assert not boundaries.partial_hits(wide)
    assert boundaries.hit_alignment(wide) == 8


def retained(scope: Scope, group: int, columns: int, junction: int = 0) -> list[int]:
    spec = scope.requests[0]
    return [c for c in range(columns) if retention.is_retained(scope, spec, group, c, junction)]


def test_states_are_retained_by_interval_and_where_a_resend_or_a_sibling_hits() -> None:
    scope = scope_of(41, 4, 4)
    assert retained(scope, 1, 10) == list(range(10))
    assert retained(attrs.evolve(scope, retention_interval=0), 1, 10) == [9]
    assert retained(attrs.evolve(scope, retention_interval=0), 1, 10, junction=14) == [2, 9]
    assert retained(attrs.evolve(scope, retention_interval=12), 1, 10) == [2, 5, 8, 9]
    assert retained(attrs.evolve(scope, retention_interval=0), 0, 10) == list(range(10))


def test_a_window_keeps_as_many_blocks_before_a_boundary_as_its_lookup_needs() -> None:
    groups = (full_attention(8), sliding_window(2, 4))
    scope = attrs.evolve(scope_of(34, 8, 2), groups=groups)
    assert retained(scope, 1, 12) == [2, 3, 6, 7, 10, 11]
    assert retained(attrs.evolve(scope, retention_interval=16), 1, 16) == [6, 7, 14, 15]
    assert retained(attrs.evolve(scope, retention_interval=0), 1, 16) == [14, 15]
    drafting = attrs.evolve(scope, groups=(full_attention(8), sliding_window(2, 4, eagle=True)))
    assert retained(drafting, 1, 13) == [2, 3, 4, 6, 7, 8, 10, 11, 12]
