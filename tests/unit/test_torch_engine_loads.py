"""Loads on the torch engine: what a lookup finds, the blocks that it fills, and how it may fail."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import EngineError, StreamKind, TorchEngine
from cowtail.models.observations import Held, Load, Observation, Status
from cowtail.models.scope import (
    STORE,
    LoadPolicy,
    Lookup,
    RequestSpec,
    Scope,
    full_attention,
    mamba,
    peer,
    sliding_window,
)

PROMPT = "abcdefghijklm"
SCOPE = Scope(
    name="loads",
    groups=(full_attention(4), mamba(4)),
    hash_unit=2,
    num_blocks=16,
    requests=(RequestSpec("a", PROMPT, max_tokens=2), RequestSpec("b", PROMPT)),
    lookup=Lookup.ASYNC,
    foreign=("a",),
)
STEP = "end_pass() execute() update_from_output()"
LOADING = "foreign_put(a) submit(a) look_up(a) begin_pass() admit(a) end_pass()"
BOTH_RUN = "run_load(0) run_load(1) report_load(1, a) report_load(0, a)"
LOADED = f"{LOADING} {BOTH_RUN} execute() update_from_output() update_connector_output()"


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def test_an_answer_is_held_and_leased_until_it_is_used() -> None:
    engine = TorchEngine(SCOPE)
    held = play(engine, "foreign_put(a) submit(a) look_up(a)").requests[0]
    assert (held.found, held.leased) == (12, True)
    observed = play(engine, "begin_pass() admit(a)")
    used = observed.requests[0]
    assert (used.found, used.leased, used.status) == (None, True, Status.LOADING)
    assert (observed.effects.hit, observed.effects.external) == (0, 12)
    assert play(engine, "end_pass()").effects.loads == (Load("a", 0, 0, 12),)
    done = play(engine, f"{BOTH_RUN} update_connector_output()").requests[0]
    assert (done.status, done.leased) == (Status.LOADED, False)


def test_a_lookup_that_fails_finds_nothing() -> None:
    engine = TorchEngine(SCOPE)
    held = play(engine, "foreign_put(a) submit(a) look_up(a, True)").requests[0]
    assert (held.found, held.leased) == (0, False)
    observed = play(engine, "begin_pass() admit(a)")
    assert (observed.effects.hit, observed.effects.external) == (0, None)
    assert observed.requests[0].status is Status.RUNNING


@pytest.mark.parametrize("streams", [StreamKind.IMMEDIATE, StreamKind.DEFERRED])
def test_a_load_writes_true_bytes_and_the_request_goes_on_from_them(streams: StreamKind) -> None:
    engine = TorchEngine(SCOPE, streams=streams)
    view = play(engine, LOADED).requests[0]
    assert (view.status, view.computed) == (Status.LOADED, 12)
    attention, state = view.tables
    memory = engine.observe().memory
    slots = [slot for block in attention for slot in memory[block]]
    assert slots == [PROMPT[: end + 1] for end in range(12)]
    assert state[:2] == (0, 0)
    assert memory[state[2]][0] == PROMPT[:12]
    after = play(engine, f"begin_pass() admit(a) {STEP}")
    assert after.memory[after.requests[0].tables[1][-1]][0] == PROMPT


def test_loaded_blocks_are_keyed_when_the_request_is_scheduled_not_before() -> None:
    engine = TorchEngine(SCOPE)
    assert not any(play(engine, LOADED).keys)
    scheduled = play(engine, "begin_pass() admit(a)")
    assert scheduled.effects.chunk is not None
    keyed = {key.prefix for keys in scheduled.keys for key in keys}
    assert keyed >= {PROMPT[:4], PROMPT[:8], PROMPT[:12]}


def test_a_load_starts_behind_the_whole_blocks_of_a_local_hit() -> None:
    scope = attrs.evolve(SCOPE, requests=(RequestSpec("a", PROMPT), RequestSpec("b", PROMPT[:7])))
    engine = TorchEngine(scope)
    play(engine, f"submit(b) look_up(b) begin_pass() admit(b) {STEP}")
    observed = play(engine, "foreign_put(a) submit(a) look_up(a) begin_pass() admit(a)")
    assert (observed.effects.hit, observed.effects.external) == (4, 12)
    a, b = (view.tables[0] for view in observed.requests)
    assert a[0] == b[0]
    assert play(engine, "end_pass()").effects.loads == (Load("a", 0, 4, 12),)


def test_no_load_for_what_the_local_cache_has_too() -> None:
    scope = attrs.evolve(SCOPE, lookup=Lookup.SYNC, foreign=("b",))
    engine = TorchEngine(scope)
    play(engine, f"submit(a) begin_pass() admit(a) {STEP} begin_pass() extend(a) {STEP}")
    observed = play(engine, "foreign_put(b) submit(b) begin_pass() admit(b)")
    assert (observed.effects.hit, observed.effects.external) == (12, None)


def test_a_load_that_waits_leaves_blocks_for_those_that_load() -> None:
    scope = attrs.evolve(SCOPE, num_blocks=10, foreign=("a", "b"))
    engine = TorchEngine(scope)
    play(engine, f"foreign_put(b) submit(b) look_up(b) {LOADING}")
    with pytest.raises(EngineError, match="must stay free for what is loading"):
        play(engine, "execute() update_from_output() begin_pass() admit(b)")


def test_columns_that_a_window_has_passed_are_not_loaded() -> None:
    groups = (full_attention(2), sliding_window(2, 3), mamba(2))
    scope = attrs.evolve(SCOPE, groups=groups, num_blocks=24)
    engine = TorchEngine(scope)
    view = play(engine, LOADED).requests[0]
    assert view.computed == 12
    assert view.tables[1][:5] == (0, 0, 0, 0, 0)
    memory = engine.observe().memory
    assert memory[view.tables[1][5]] == (PROMPT[:11], PROMPT[:12])


def test_a_missing_key_fails_the_load_and_the_rest_is_written() -> None:
    engine = TorchEngine(SCOPE)
    play(engine, f"{LOADING} evict(0, 1, {PROMPT[:12]}) run_load(0) run_load(1)")
    observed = play(engine, "report_load(0, a) report_load(1, a)")
    assert observed.memory[observed.requests[0].tables[0][0]][0] == "a"
    waits = play(engine, "update_connector_output()")
    assert (waits.requests[0].status, waits.requests[0].computed) == (Status.WAITING, 0)
    assert waits.requests[0].tables == ((), ())
    assert len(waits.free) == SCOPE.num_blocks - 1
    computed = play(engine, "execute() update_from_output() begin_pass() admit(a)")
    assert computed.effects.external is None, "it asks no more"


def test_a_failed_load_may_end_the_request() -> None:
    engine = TorchEngine(attrs.evolve(SCOPE, load_policy=LoadPolicy.FAIL))
    play(engine, f"{LOADING} run_load(0, failed) run_load(1)")
    observed = play(engine, "report_load(0, a) report_load(1, a) update_connector_output()")
    assert observed.requests[0].status is Status.FINISHED
    assert observed.untold == ("a",)
    assert observed.held == ()
    assert not any(observed.ref_counts)


def test_an_aborted_load_keeps_its_blocks_until_every_rank_is_done() -> None:
    engine = TorchEngine(SCOPE)
    play(engine, f"{LOADING} run_load(0) report_load(0, a) update_connector_output() abort(a)")
    held = engine.observe()
    assert held.held == (Held("a", (1,)),)
    assert not held.requests[0].leased
    assert sum(held.ref_counts) == 4
    after = play(engine, "run_load(1) report_load(1, a) update_connector_output()")
    assert after.held == ()
    assert not any(after.ref_counts)


def test_a_lookup_counts_only_what_every_rank_has() -> None:
    engine = TorchEngine(SCOPE)
    play(engine, f"foreign_put(a) evict(1, 1, {PROMPT[:12]}) submit(a) look_up(a)")
    assert engine.observe().requests[0].found == 8


def test_an_answer_must_have_come() -> None:
    engine = TorchEngine(SCOPE)
    with pytest.raises(EngineError, match="holds no answer"):
        play(engine, "submit(a) begin_pass() admit(a)")


def test_a_loaded_request_that_does_not_fit_is_refused_and_keeps_everything_as_it_was() -> None:
    scope = Scope(
        name="loaded_beside_another",
        groups=(full_attention(1), mamba(3)),
        hash_unit=1,
        num_blocks=9,
        requests=(RequestSpec("b", "ab"), RequestSpec("d", "a")),
        num_ranks=1,
        speculative_tokens=2,
        lookup=Lookup.SYNC,
        children=(peer(serves=True),),
    )
    engine = TorchEngine(scope)
    before = play(
        engine,
        "submit(b) begin_pass() admit(b) end_pass() submit(d) execute() run_load(0) "
        "report_load(0, b) update_connector_output() update_from_output() begin_pass() admit(d)",
    )
    assert before.requests[0].status is Status.LOADED
    with pytest.raises(EngineError, match="needs 2 blocks to reach 2 tokens"):
        play(engine, "admit(b)")
    assert engine.observe() == before


def test_an_answer_that_is_due_is_waited_for_whoever_supplies_the_tokens() -> None:
    engine = TorchEngine(attrs.evolve(SCOPE, children=(peer(serves=True), STORE)))
    play(engine, "submit(a) begin_pass()")
    with pytest.raises(EngineError, match="holds no answer"):
        play(engine, "admit(a)")
