"""States that siblings resume at: junctions, and boundaries exported from within a chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from cowtail.models.actions import Abort, Admit, BeginPass, EndPass, Execute, Extend, Submit
from cowtail.models.observations import Handoff, Key, Marker
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba

Start = Callable[[Scope], Any]

SIBLINGS = Scope(
    name="siblings",
    groups=(full_attention(2), mamba(4)),
    hash_unit=1,
    num_blocks=40,
    requests=(
        RequestSpec("a", "abcdefghi"),
        RequestSpec("b", "abcdefxyzuvw"),
        RequestSpec("c", "abcdefqrst"),
    ),
    role=Role.PRODUCER,
    token_budget=4,
)
"""'a' leaves states at 4 and 8 tokens and attention at all; 'b' and 'c' share six of them."""


def second_request(start: Start, scope: Scope) -> Any:
    """Return a run in which 'a' is gone and 'b' has been admitted with what 'a' left."""
    run = start(attrs.evolve(scope, max_steps_in_flight=64)).do(Submit("a")).one_pass(Admit("a"))
    while run.request().computed < 9:
        run.one_pass(Extend("a"))
    for step in range(len(run.state.steps)):
        assert step < 64
        run.device()
    return run.do(Submit("b"), BeginPass(), Admit("b"))


def test_the_junction_is_kept_from_the_lookup_of_an_admission(start: Start) -> None:
    run = second_request(start, SIBLINGS)
    assert (run.effects.hit, run.request("b").junction) == (4, 6)
    assert run.observe().requests[1].junction == 6
    run.do(EndPass(), Abort("b"))
    assert run.request("b").junction == 0


def test_without_shared_prefix_checkpoints_chunks_pass_a_junction_inside_a_block(
    start: Start,
) -> None:
    run = second_request(start, SIBLINGS)
    assert (run.effects.chunk.start, run.effects.chunk.end) == (4, 8)


def test_with_them_the_state_at_the_junction_is_a_tail_that_a_sibling_hits(start: Start) -> None:
    run = second_request(start, attrs.evolve(SIBLINGS, shared_prefix_checkpoints=True))
    assert (run.effects.chunk.start, run.effects.chunk.end) == (4, 6)
    assert "junction registered" in run.events
    block = run.request("b").tables[1].blocks[1]
    assert run.request("b").tables[1].marker == Marker(block, 6)
    run.do(EndPass()).device().one_pass(Extend("b"))
    assert [(h.group, h.boundary) for h in run.effects.handoffs] == [(1, 6), (1, 8)]
    run.device().do(Submit("c"), BeginPass(), Admit("c"))
    assert run.effects.hit == 6


EXPORTING = Scope(
    name="exporting",
    groups=(full_attention(4), mamba(4)),
    hash_unit=2,
    num_blocks=40,
    requests=(RequestSpec("a", "abcdefghijk"), RequestSpec("b", "abcdefghijk")),
    role=Role.PRODUCER,
    internal_checkpoints=True,
)
"""The replay boundary, 10, is inside the third block; a chunk of 11 tokens ends in it as well."""


def test_one_chunk_computes_the_prompt_and_exports_the_state_at_its_boundary(start: Start) -> None:
    run = start(EXPORTING).do(Submit("a"), BeginPass(), Admit("a"))
    assert (run.effects.chunk.start, run.effects.chunk.end) == (0, 11)
    table = run.request().tables[1].blocks
    assert table[0] == 0
    assert all(table[1:])
    assert run.state.pool.keys[table[1]] == (Key(1, "abcdefghij"),), "not the block's own end"
    assert run.request().tables[1].marker is None, "nothing will overwrite it"
    run.do(EndPass())
    assert run.effects.handoffs == (Handoff("a", 1, table[1], 10),)
    run.do(Execute())
    assert [run.state.memory[block][0] for block in table[1:]] == ["abcdefghij", "abcdefghijk"]


def test_a_resend_hits_the_exported_state(start: Start) -> None:
    run = start(EXPORTING).do(Submit("a")).one_pass(Admit("a")).device()
    run.do(Submit("b"), BeginPass(), Admit("b"))
    assert run.effects.hit == 10


def test_a_boundary_in_the_column_of_the_state_before_it_is_a_stop_as_ever(start: Start) -> None:
    run = start(attrs.evolve(EXPORTING, token_budget=8)).do(Submit("a")).one_pass(Admit("a"))
    run.device().do(BeginPass(), Extend("a"))
    assert (run.effects.chunk.start, run.effects.chunk.end) == (8, 10)
