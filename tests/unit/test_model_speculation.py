"""Speculative tokens in the model: drafts, their verdict, and where the state that counts is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from cowtail.models.actions import (
    Admit,
    BeginPass,
    EndPass,
    Execute,
    Extend,
    Submit,
    UpdateFromOutput,
)
from cowtail.models.errors import LifecycleError, NotEnabled
from cowtail.models.observations import GARBAGE, Chunk, Status
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba
from cowtail.models.state import RunningState

Start = Callable[[Scope], Any]

DRAFTING = Scope(
    name="drafting",
    groups=(full_attention(4), mamba(4)),
    hash_unit=1,
    num_blocks=24,
    requests=(RequestSpec("a", "abcde", max_tokens=9, output="123456789", accepts="3102"),),
    role=Role.NONE,
    speculative_tokens=3,
)


def decoding(start: Start, scope: Scope = DRAFTING) -> Any:
    """Return a run in which 'a' has its first output and can decode."""
    run = start(scope).do(Submit("a")).one_pass(Admit("a")).device()
    while run.request().outputs == 0:
        run.one_pass(Extend("a")).device()
    return run


def test_a_prefill_carries_no_drafts_and_reserves_their_scratch_blocks(start: Start) -> None:
    run = start(DRAFTING).do(Submit("a"), BeginPass(), Admit("a"))
    assert run.effects.chunk == Chunk("a", 0, 4)
    assert len(run.request().tables[1].blocks) == 1 + 3
    assert run.request().drafted == 0


def test_a_decode_carries_drafts_and_nothing_more_until_their_verdict(start: Start) -> None:
    run = decoding(start, attrs.evolve(DRAFTING, max_steps_in_flight=2))
    run.do(BeginPass(), Extend("a"))
    assert run.effects.chunk == Chunk("a", 5, 9)
    assert (run.request().computed, run.request().placeholders) == (9, 4)
    run.do(EndPass())
    with pytest.raises(NotEnabled, match="nothing to schedule"):
        run.do(BeginPass())


def test_accepted_drafts_are_outputs_and_rejected_ones_are_uncomputed(start: Start) -> None:
    run = decoding(start)
    run.one_pass(Extend("a")).device()
    assert "drafts rejected" in run.events, "with one output the script accepts one of three"
    assert (run.request().outputs, run.request().computed) == (3, 7)
    assert run.request().placeholders == run.request().drafted == 0


def test_drafts_go_no_further_than_the_last_token_to_sample(start: Start) -> None:
    run = decoding(start)
    chunks = []
    while run.request().status is Status.RUNNING:
        run.do(BeginPass(), Extend("a"))
        chunks.append((run.effects.chunk.start, run.effects.chunk.end))
        run.do(EndPass()).device()
    assert chunks == [(5, 9), (7, 11), (10, 13), (11, 13)]
    assert run.request().outputs == 9


def test_the_budget_of_the_pass_bounds_the_drafts(start: Start) -> None:
    run = decoding(start, attrs.evolve(DRAFTING, token_budget=4, speculative_tokens=3))
    run.do(BeginPass(), Extend("a"))
    assert run.effects.chunk == Chunk("a", 5, 9)
    run = decoding(start, attrs.evolve(DRAFTING, token_budget=2))
    run.do(BeginPass(), Extend("a"))
    assert run.effects.chunk == Chunk("a", 5, 7)


def test_contents_are_true_up_to_the_accepted_drafts_and_garbage_beyond(start: Start) -> None:
    run = decoding(start)
    attention = run.request().tables[0].blocks
    run.do(BeginPass(), Extend("a"), EndPass(), Execute())
    attention = run.request().tables[0].blocks
    page = run.state.memory[attention[1]]
    assert page == ("abcde", "abcde1", "abcde12", GARBAGE)
    states = [run.state.memory[block][0] for block in run.request().worker_tables[1][2:6]]
    assert states == ["abcde1", "abcde12", GARBAGE, GARBAGE]
    assert run.request().tables[1].running == RunningState(2, 3)
    run.do(UpdateFromOutput())


def test_the_next_step_reads_the_state_of_the_last_accepted_draft(start: Start) -> None:
    run = decoding(start)
    while run.request().status is Status.RUNNING:
        run.do(BeginPass(), Extend("a"), EndPass(), Execute())
        end = run.state.steps[-1].chunks[-1].settled
        table = run.request().worker_tables[1]
        left = run.request().tables[1].running
        column = (end - 1) // 4 if left is None else left.state
        assert run.state.memory[table[column]][0] == "abcde123456789"[:end]
        run.do(UpdateFromOutput())


def test_a_boundary_that_drafts_pass_gets_its_state_in_its_column(start: Start) -> None:
    accepting = attrs.evolve(DRAFTING.requests[0], accepts="3")
    run = decoding(start, attrs.evolve(DRAFTING, requests=(accepting,)))
    run.do(BeginPass(), Extend("a"), EndPass(), Execute())
    table = run.request().worker_tables[1]
    assert run.state.memory[table[1]][0] == "abcde123", "the state at 8 of 9 settled tokens"


def test_scratch_blocks_that_the_running_column_passes_move_to_the_end(start: Start) -> None:
    scope = attrs.evolve(
        DRAFTING, requests=(RequestSpec("a", "abcdefghijkl", max_tokens=2),), hash_unit=4
    )
    run = start(scope).do(Submit("a"), BeginPass(), Admit("a"))
    before = run.request().tables[1].blocks
    run.do(EndPass()).device().do(BeginPass(), Extend("a"))
    after = run.request().tables[1].blocks
    assert (len(before), len(after)) == (5, 6)
    assert before[:2] == (0, before[1])
    assert after[2:5] == before[2:5], "the running column takes the first scratch block"
    assert run.request().worker_tables[1][:5] == before


def test_a_relocated_scratch_block_must_be_nobody_elses(start: Start) -> None:
    scope = attrs.evolve(
        DRAFTING,
        groups=(full_attention(2), mamba(2)),
        speculative_tokens=1,
        token_budget=3,
        requests=(RequestSpec("a", "abcdefgh"),),
        hash_unit=2,
    )
    run = start(attrs.evolve(scope, token_budget=2)).do(Submit("a")).one_pass(Admit("a")).device()
    run.scope = attrs.evolve(scope, token_budget=64)
    scratch = run.request().tables[1].blocks[-1]
    counts = list(run.state.pool.ref_counts)
    counts[scratch] += 1
    shared = attrs.evolve(run.state.pool, ref_counts=tuple(counts))
    moved = attrs.evolve(run.state)
    run.do(BeginPass(), Extend("a"))
    assert run.request().tables[1].blocks[1] == 0
    assert scratch in run.request().tables[1].blocks[2:]
    assert run.request().worker_tables[1][1] == scratch
    run.state = attrs.evolve(moved, pool=shared)
    with pytest.raises(LifecycleError, match="relocated"):
        run.do(BeginPass(), Extend("a"))
