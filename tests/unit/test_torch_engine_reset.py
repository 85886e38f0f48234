"""Resets of the torch engine: when the prefix cache can be emptied, and what goes with it."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import EngineError, TorchEngine
from cowtail.models.observations import Observation, Status
from cowtail.models.scope import Lookup, RequestSpec, Role, Scope, full_attention, mamba

SCOPE = Scope(
    name="reset",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=12,
    requests=(RequestSpec("a", "abc", 2), RequestSpec("b", "wxyz", 2)),
    lookup=Lookup.ASYNC,
    foreign=("a",),
    role=Role.CONSUMER,
    max_resets=3,
)
STEP = "end_pass() execute() update_from_output()"
BOTH = f"submit(b) submit(a) look_up(a) look_up(b) begin_pass() admit(b) admit(a) {STEP}"


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def test_a_cache_in_use_is_not_reset() -> None:
    engine = TorchEngine(SCOPE)
    before = play(engine, BOTH)
    after = play(engine, "reset()")
    assert after.effects.reset is False
    assert after.keys == before.keys


def test_running_requests_lose_their_blocks_the_last_admitted_first() -> None:
    engine = TorchEngine(SCOPE)
    running = play(engine, BOTH)
    after = play(engine, "reset(True)")
    assert after.effects.reset is True
    assert not any(after.keys)
    assert [view.status for view in after.requests] == [Status.PREEMPTED] * 2
    assert not any(after.ref_counts)
    a, b = ([block for table in view.tables for block in table[::-1]] for view in running.requests)
    keyed = [block for block in (*a, *b) if running.keys[block]]
    assert list(after.free[-len(keyed) :]) == keyed
    told = engine.scheduler
    told.begin_pass()
    output, _ = told.end_pass()
    assert output.metadata.preempted == ("a", "b")


def test_pinned_blocks_keep_the_cache() -> None:
    engine = TorchEngine(attrs.evolve(SCOPE, role=Role.BOTH))
    pinned = play(engine, f"{BOTH} reset(True)")
    assert pinned.effects.reset is False
    assert any(pinned.keys)
    assert pinned.requests[0].status is Status.PREEMPTED


def test_deferred_frees_keep_the_cache() -> None:
    scope = attrs.evolve(SCOPE, defer_frees=True)
    text = "submit(b) look_up(b) begin_pass() admit(b) end_pass() reset(True)"
    engine = TorchEngine(scope)
    waiting = play(engine, text)
    assert waiting.deferred
    assert waiting.effects.reset is False
    after = play(engine, "execute() update_from_output() reset()")
    assert after.effects.reset is True


def test_the_store_is_emptied_and_answers_about_it_are_dropped() -> None:
    engine = TorchEngine(SCOPE)
    before = play(engine, "foreign_put(a) submit(a) look_up(a)")
    assert before.store
    assert before.requests[0].found == 2
    after = play(engine, "reset(False, True)")
    assert after.effects.reset is True
    assert after.store == ()
    assert (after.requests[0].found, after.requests[0].leased) == (None, False)


def test_a_reset_waits_for_the_end_of_a_pass() -> None:
    engine = TorchEngine(SCOPE)
    with pytest.raises(EngineError, match="a pass is open"):
        play(engine, "begin_pass() reset()")
