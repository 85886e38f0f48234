"""Drafts on the torch engine: scheduling, scratch blocks, output, and states on the device."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import TorchEngine
from cowtail.models.observations import GARBAGE, Observation
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba

PROMPT = "abcde"
SCOPE = Scope(
    name="speculation",
    groups=(full_attention(4), mamba(4)),
    hash_unit=4,
    num_blocks=24,
    requests=(RequestSpec("a", PROMPT, max_tokens=9, output="123456789"),),
    role=Role.NONE,
    num_ranks=2,
    speculative_tokens=2,
)
STEP = "end_pass() execute() update_from_output()"
PREFILL = f"submit(a) begin_pass() admit(a) {STEP} begin_pass() extend(a) {STEP}"
DECODE = f"begin_pass() extend(a) {STEP}"


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def accepting(script: str, **changes: object) -> TorchEngine:
    (spec,) = SCOPE.requests
    requests = (attrs.evolve(spec, accepts=script),)
    return TorchEngine(attrs.evolve(SCOPE, requests=requests, **changes))  # type: ignore[arg-type]


def test_scratch_blocks_stand_behind_the_running_state() -> None:
    view = play(accepting("2"), "submit(a) begin_pass() admit(a)").requests[0]
    assert view.tables == ((1,), (2, 3, 4))


def test_scratch_blocks_move_along_and_the_workers_keep_their_old_columns() -> None:
    engine = accepting("2")
    view = play(engine, f"{PREFILL.rsplit(' end_pass()', 1)[0]}").requests[0]
    assert view.computed == 5
    assert view.tables[1] == (2, 3, 4, 6), "the second scratch block is no column below the running"
    engine = accepting("1", groups=(full_attention(8), mamba(2)), hash_unit=2, speculative_tokens=1)
    moved = play(engine, f"submit(a) begin_pass() admit(a) {STEP} begin_pass() extend(a)")
    assert moved.requests[0].tables[1] == (0, 2, 3, 4)


@pytest.mark.parametrize(("accepted", "known"), [("0", 7), ("1", 8), ("2", 9)])
def test_a_decode_step_yields_one_token_and_the_accepted_drafts(accepted: str, known: int) -> None:
    engine = accepting(accepted)
    chunk = play(engine, f"{PREFILL} begin_pass() extend(a)").effects.chunk
    assert chunk is not None
    assert (chunk.start, chunk.end) == (5, 8)
    view = play(engine, STEP).requests[0]
    assert (view.known, view.computed) == (known, known - 1)


def test_nothing_is_scheduled_while_drafts_are_being_verified() -> None:
    engine = accepting("2", max_steps_in_flight=2)
    play(engine, f"{PREFILL} begin_pass() extend(a) end_pass()")
    with pytest.raises(Exception, match="no tokens to schedule"):
        play(engine, "begin_pass() extend(a)")


@pytest.mark.parametrize("script", ["0", "1", "2", "012", "210", "1201"])
def test_decoding_ends_with_true_bytes_whatever_is_accepted(script: str) -> None:
    engine = accepting(script)
    tokens = SCOPE.requests[0].tokens
    observed = play(engine, PREFILL)
    while observed.requests[0].known < len(tokens):
        view = play(engine, "begin_pass() extend(a)").requests[0]
        full, states = view.worker_tables
        observed = play(engine, "end_pass() execute()")
        chunk_start, memory = observed.requests[0].known - 1, observed.memory
        slots = [memory[full[t // 4]][t % 4] for t in range(chunk_start + 1)]
        assert slots == [tokens[: t + 1] for t in range(chunk_start + 1)]
        running = -(-view.computed // 4) - 1
        assert memory[states[running]][0] in (tokens[: chunk_start + 1], tokens[:8], tokens[:12])
        observed = play(engine, "update_from_output()")
    assert observed.requests[0].known == len(tokens)


def test_rejected_drafts_leave_garbage_behind_what_counts() -> None:
    engine = accepting("1")
    memory = play(engine, f"{PREFILL} begin_pass() extend(a) end_pass() execute()").memory
    full, states = engine.observe().requests[0].worker_tables
    assert memory[full[1]] == ("abcde", "abcde1", "abcde12", GARBAGE)
    running = 1
    assert [memory[states[running + n]][0] for n in range(3)] == ["abcde1", "abcde12", GARBAGE]


def test_a_state_on_a_block_boundary_moves_to_the_column_of_its_block() -> None:
    engine = accepting("2")
    play(engine, f"{PREFILL} begin_pass() extend(a) end_pass()")
    states = engine.observe().requests[0].worker_tables[1]
    memory = play(engine, "execute()").memory
    assert memory[states[1]][0] == "abcde123", "it is the running one, and its state counts now"
    play(engine, "update_from_output()")
    after = play(engine, "begin_pass() extend(a)")
    assert states[1] in (block for block, keys in enumerate(after.keys) if keys)


def test_drafts_do_not_go_past_the_last_token_nor_the_budget() -> None:
    engine = accepting("2", token_budget=2)
    play(engine, f"submit(a) begin_pass() admit(a) {STEP}")
    for _ in range(2):
        play(engine, f"begin_pass() extend(a) {STEP}")
    chunk = play(engine, "begin_pass() extend(a)").effects.chunk
    assert chunk is not None
    assert chunk.end - chunk.start == 2
    (spec,) = SCOPE.requests
    short = TorchEngine(attrs.evolve(SCOPE, requests=(attrs.evolve(spec, max_tokens=2),)))
    chunk = play(short, f"{PREFILL} begin_pass() extend(a)").effects.chunk
    assert chunk is not None
    assert (chunk.start, chunk.end) == (5, 6)
