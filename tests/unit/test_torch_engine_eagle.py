"""EAGLE drops, junctions and checkpoints on the torch engine: chunks, keys and hits."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import TorchEngine
from cowtail.impl.torch_engine.chunking import Chunking, Extent
from cowtail.impl.torch_engine.request import Request
from cowtail.models.observations import Handoff, Key, Observation, Status
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba

TEXT = "abcdefghijklmnopqrstuvwxyz"
STEP = "end_pass() execute() update_from_output()"


def scope_of(prompt: str, *siblings: str, eagle: bool = True, **changes: object) -> Scope:
    specs = (RequestSpec("a", prompt), *map(RequestSpec, "bcd", siblings))
    scope = Scope(
        name="eagle",
        groups=(full_attention(8, eagle=eagle), mamba(8)),
        hash_unit=2,
        num_blocks=40,
        requests=specs,
        role=Role.BOTH,
        num_ranks=1,
    )
    return attrs.evolve(scope, **changes)  # type: ignore[arg-type]


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def finish(engine: TorchEngine, name: str) -> list[int]:
    """Run a request alone to its end; return where its chunks end."""
    ends = []
    observed = play(engine, f"submit({name}) begin_pass() admit({name})")
    while True:
        assert observed.effects.chunk is not None
        ends.append(observed.effects.chunk.end)
        observed = play(engine, STEP)
        (view,) = (each for each in observed.requests if each.name == name)
        if view.status is Status.FINISHED:
            return ends
        observed = play(engine, f"begin_pass() extend({name})")


def chunk_ends(
    length: int, block: int, budget: int, *, eagle: bool, **changes: object
) -> list[int]:
    """Return where the chunks of a prompt end, block and prompt of a real size."""
    scope = Scope(
        name="ends",
        groups=(full_attention(block, eagle=eagle), mamba(block)),
        hash_unit=128,
        num_blocks=200,
        requests=(RequestSpec("a", "x" * length),),
        token_budget=budget,
    )
    chunking = Chunking(attrs.evolve(scope, **changes))  # type: ignore[arg-type]
    request = Request(scope.requests[0])
    ends = [0]
    while ends[-1] < length:
        ends.append(chunking.extent(request, ends[-1], budget).end)
    return ends[1:]


@pytest.mark.parametrize(
    ("length", "block", "eagle", "ends"),
    [
        (7449, 1024, True, [6144, 7296, 7449]),
        (41300, 1792, True, [7168, 14336, 21504, 28672, 35840, 39424, 41088, 41216, 41300]),
        (2500, 1024, True, [1024, 2304, 2500]),
        (2500, 1024, False, [2048, 2432, 2500]),
    ],
)
def test_chunk_ends_of_prompts_of_a_real_size(
    length: int, block: int, eagle: bool, ends: list[int]
) -> None:
    assert chunk_ends(length, block, 8192, eagle=eagle) == ends


def test_with_an_internal_checkpoint_the_last_chunk_has_no_stops() -> None:
    assert chunk_ends(2500, 1024, 8192, eagle=True, internal_checkpoints=True) == [2500]


def test_attention_is_keyed_where_a_dropping_lookup_finds_the_proof() -> None:
    engine = TorchEngine(scope_of(TEXT[:13]))
    assert finish(engine, "a") == [10, 13]
    keys = {(key.group, len(key.prefix)) for each in engine.observe().keys for key in each}
    assert keys == {(0, 8), (0, 12), (1, 10)}


def test_a_resent_prompt_hits_one_unit_below_the_last() -> None:
    engine = TorchEngine(scope_of(TEXT[:13], TEXT[:13]))
    finish(engine, "a")
    observed = play(engine, "submit(b) begin_pass() admit(b)")
    assert observed.effects.hit == 10
    after = play(engine, "end_pass() execute()")
    full, states = after.requests[1].tables
    assert after.memory[full[1]][:5] == tuple(TEXT[:n] for n in range(9, 14))
    assert after.memory[states[1]][0] == TEXT[:13]


def test_a_boundary_that_is_a_block_boundary_is_handed_over_whatever_retention_keeps() -> None:
    engine = TorchEngine(scope_of(TEXT[:11], retention_interval=0))
    observed = play(engine, f"submit(a) begin_pass() admit(a) {STEP} begin_pass() extend(a)")
    assert observed.effects.chunk is not None
    assert observed.effects.chunk.start == 8
    jobs = play(engine, f"{STEP} run_job(0) run_job(0)").store
    assert [len(entry.prefix) for entry in jobs if entry.group == 1] == [8]


def test_a_request_that_shares_more_than_it_can_hit_stops_at_the_junction() -> None:
    scope = scope_of(
        TEXT[:26],
        f"{TEXT[:20]}ZZZZ",
        token_budget=16,
        eagle=False,
        groups=(full_attention(4), mamba(8)),
    )
    engine = TorchEngine(scope)
    finish(engine, "a")
    observed = play(engine, "submit(b) begin_pass() admit(b)")
    view, chunk = observed.requests[1], observed.effects.chunk
    assert (observed.effects.hit, view.junction) == (16, 20)
    assert chunk is not None
    assert chunk.end == 22, "the junction is inside a block: floored, it is where the chunk starts"


def test_a_shared_prefix_checkpoint_keys_the_junction_inside_a_block() -> None:
    scope = scope_of(
        TEXT[:26],
        f"{TEXT[:20]}ZZZZ",
        f"{TEXT[:20]}YYYY",
        token_budget=16,
        eagle=False,
        groups=(full_attention(4), mamba(8)),
        shared_prefix_checkpoints=True,
    )
    engine = TorchEngine(scope)
    finish(engine, "a")
    observed = play(engine, "submit(b) begin_pass() admit(b)")
    chunk = observed.effects.chunk
    assert chunk is not None
    assert (chunk.start, chunk.end) == (16, 20)
    observed = play(engine, f"{STEP} begin_pass() extend(b) {STEP} submit(c) begin_pass() admit(c)")
    assert observed.effects.hit == 20


def test_a_checkpoint_is_exported_from_within_the_last_chunk() -> None:
    scope = scope_of(TEXT[:21], TEXT[:21], eagle=False, internal_checkpoints=True)
    engine = TorchEngine(scope)
    observed = play(engine, "submit(a) begin_pass() admit(a)")
    assert observed.requests[0].tables[1] == (0, 4, 5)
    effects = play(engine, "end_pass()").effects
    assert effects.handoffs == (Handoff("a", 1, 4, 20),)
    observed = play(engine, "execute()")
    assert observed.memory[4][0] == TEXT[:20]
    assert observed.memory[5][0] == TEXT[:21]
    assert observed.keys[4] == (Key(1, TEXT[:20]),)
    play(engine, "update_from_output()")
    assert play(engine, "submit(b) begin_pass() admit(b)").effects.hit == 20


def test_a_checkpoint_is_given_up_where_the_junction_comes_first() -> None:
    scope = scope_of(TEXT[:24], eagle=False, internal_checkpoints=True)
    request = Request(scope.requests[0])
    assert Chunking(scope).extent(request, 0, 64) == Extent(24, checkpoint=22)
    request.junction = 16
    assert Chunking(scope).extent(request, 0, 64) == Extent(16)


def test_the_budget_of_a_pass_is_shared() -> None:
    scope = scope_of(
        TEXT[:6], TEXT[10:20], eagle=False, groups=(full_attention(2),), token_budget=8
    )
    observed = play(TorchEngine(scope), "submit(a) submit(b) begin_pass() admit(a) admit(b)")
    chunk = observed.effects.chunk
    assert chunk is not None
    assert (chunk.start, chunk.end) == (0, 2)
