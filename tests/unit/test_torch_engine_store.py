"""Saves into the store on the torch engine: ways to fail, eviction, and a store that is shared."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import TorchEngine
from cowtail.impl.torch_engine.store import InMemoryStore, StoreKey
from cowtail.models.observations import Observation
from cowtail.models.scope import (
    Lookup,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
)

PROMPT = "abcdefghijk"
SCOPE = Scope(
    name="store",
    groups=(full_attention(2), mamba(4)),
    hash_unit=2,
    num_blocks=20,
    requests=(RequestSpec("a", PROMPT), RequestSpec("b", PROMPT), RequestSpec("c", "vwxyz")),
    lookup=Lookup.SYNC,
    foreign=("a",),
    token_budget=4,
)
STEP = "end_pass() execute() update_from_output()"
FIRST_JOB = f"submit(a) begin_pass() admit(a) {STEP}"
NEXT_JOB = f"begin_pass() extend(a) {STEP}"


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def keys(observed: Observation, rank: int = 0) -> set[tuple[int, int]]:
    """Return (group, length) of what a rank has in the store."""
    return {(e.group, len(e.prefix)) for e in observed.store if e.rank == rank}


@pytest.mark.parametrize("outcome", ["failed", "check_failed"])
def test_a_failure_writes_nothing_and_the_next_job_saves_it_all(outcome: str) -> None:
    engine = TorchEngine(SCOPE)
    failed = play(engine, f"{FIRST_JOB} run_job(0, {outcome})")
    assert failed.store == failed.effects.puts == ()
    assert failed.ranks[0].saved[0] == 0
    assert failed.ranks[0].outbox == (0,)
    saved = play(engine, f"{NEXT_JOB} run_job(0)")
    assert saved.ranks[0].saved[0] == 8
    assert keys(saved) >= {(0, 2), (0, 4), (0, 6), (0, 8)}


def test_of_a_batch_that_fails_in_part_the_first_is_there() -> None:
    engine = TorchEngine(attrs.evolve(SCOPE, groups=(full_attention(2),)))
    observed = play(engine, f"{FIRST_JOB} run_job(0, partial)")
    assert keys(observed) == {(0, 2)}
    assert [put.prefix for put in observed.effects.puts] == ["ab"]
    assert observed.ranks[0].saved[0] == 0


def test_a_full_store_skips_the_request_until_another_one_is_saved() -> None:
    engine = TorchEngine(SCOPE)
    full = play(engine, f"{FIRST_JOB} {NEXT_JOB} run_job(0, no_space)")
    assert full.ranks[0].skipping == ("a",)
    skipped = play(engine, "run_job(0)")
    assert skipped.store == ()
    assert skipped.ranks[0].outbox == (0, 1)
    other = play(engine, f"submit(c) begin_pass() admit(c) {STEP} run_job(0)")
    assert other.ranks[0].skipping == ()
    assert other.ranks[0].saved[2] == 4


def test_what_the_store_lost_is_stored_again() -> None:
    engine = TorchEngine(SCOPE)
    play(engine, f"{FIRST_JOB} run_job(0) evict(0, 0, abcd) {NEXT_JOB}")
    observed = play(engine, "run_job(0)")
    assert "abcd" in [put.prefix for put in observed.effects.puts]
    assert keys(observed) >= {(0, 2), (0, 4), (0, 6), (0, 8)}
    assert observed.ranks[0].saved[0] == 8


def test_the_durable_offset_falls_even_if_storing_again_fails() -> None:
    engine = TorchEngine(SCOPE)
    play(engine, f"{FIRST_JOB} run_job(0) evict(0, 0, abcd) {NEXT_JOB}")
    boundary_first = play(engine, "run_job(0, failed)")
    assert boundary_first.ranks[0].saved[0] == 4, "the failed boundary ended the job"
    attention = TorchEngine(attrs.evolve(SCOPE, groups=(full_attention(2),), token_budget=4))
    play(attention, f"{FIRST_JOB} run_job(0) evict(0, 0, abcd) {NEXT_JOB}")
    assert play(attention, "run_job(0, failed)").ranks[0].saved[0] == 2


def test_foreign_entries_are_what_an_engine_of_ours_would_put() -> None:
    foreign = play(TorchEngine(SCOPE), "foreign_put(a)")
    engine = TorchEngine(attrs.evolve(SCOPE, role=Role.PRODUCER, lookup=Lookup.OFF))
    jobs = "run_job(0) run_job(1) " * 2
    own = play(engine, f"{FIRST_JOB} {NEXT_JOB} {NEXT_JOB} {NEXT_JOB} {jobs}")
    while own.ranks[0].queue:
        own = play(engine, "run_job(0) run_job(1)")
    assert foreign.store == own.store


def test_two_engines_share_a_store() -> None:
    store = InMemoryStore()
    producer = TorchEngine(attrs.evolve(SCOPE, role=Role.PRODUCER), store=store)
    consumer = TorchEngine(attrs.evolve(SCOPE, role=Role.CONSUMER), store=store)
    before = play(consumer, "submit(c) begin_pass() admit(c) end_pass() execute()")
    assert before.store == ()
    play(producer, f"{FIRST_JOB} {NEXT_JOB} run_job(0) run_job(1) run_job(0) run_job(1)")
    assert consumer.observe().store == producer.observe().store
    loading = play(consumer, "update_from_output() submit(b) begin_pass() admit(b)")
    assert loading.effects.external == 8
    loaded = play(consumer, "end_pass() run_load(0) run_load(1)")
    assert loaded.memory[loaded.requests[1].tables[1][-1]][0] == PROMPT[:8]


def test_the_observer_sees_an_entry_that_was_replaced() -> None:
    store = InMemoryStore()
    engine = TorchEngine(SCOPE, store=store)
    play(engine, "foreign_put(a)")
    before = engine.observe().store
    key = StoreKey(0, 0, "ab")
    value = store.values[key].clone()
    value.payload[0, 0] += 1
    store.evict(key)
    assert store.batch_put_from([key], [value]) == [0]
    after = engine.observe().store
    assert len(after) == len(before)
    assert [e.content for e in after if e.prefix == "ab" and e.rank == 0] == [("?", "ab")]


def test_skipped_requests_are_a_set_whoever_met_the_full_store_first() -> None:
    scope = Scope(
        name="pressure",
        groups=(mamba(1),),
        hash_unit=1,
        num_blocks=3,
        requests=(RequestSpec("a", "a"), RequestSpec("b", "a")),
        num_ranks=1,
    )
    text = "submit(a) submit(b) begin_pass() admit(b) admit(a) end_pass() execute()"
    seen = play(TorchEngine(scope), f"{text} run_job(0, no_space) run_job(0, no_space)")
    assert seen.ranks[0].skipping == ("a", "b")
