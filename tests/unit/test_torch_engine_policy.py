"""Policies on the torch engine: whose turn it is, who gives way, and chunks that are withdrawn."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import EngineError, TorchEngine
from cowtail.models.observations import Observation, Status
from cowtail.models.scope import Policy, RequestSpec, Role, Scope, full_attention, mamba

SCOPE = Scope(
    name="policies",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=40,
    requests=(
        RequestSpec("a", "abcdef", priority=1),
        RequestSpec("b", "bcdefg", priority=2),
        RequestSpec("c", "cdefgh", priority=2),
    ),
    role=Role.BOTH,
    num_ranks=1,
    policy=Policy.PRIORITY,
)
STEP = "end_pass() execute() update_from_output()"
ALL = f"submit(a) submit(b) submit(c) begin_pass() admit(c) admit(a) admit(b) {STEP}"


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def engine_with(policy: Policy) -> TorchEngine:
    engine = TorchEngine(attrs.evolve(SCOPE, policy=policy))
    play(engine, ALL)
    return engine


def test_requests_are_extended_in_the_order_of_admission() -> None:
    for policy in (Policy.FCFS, Policy.PRIORITY):
        engine = engine_with(policy)
        play(engine, "begin_pass() extend(c) extend(b)")
        with pytest.raises(EngineError, match="before those"):
            play(engine, "extend(a)")
    play(engine_with(Policy.ANY), "begin_pass() extend(b) extend(a) extend(c)")


@pytest.mark.parametrize(("policy", "victim"), [(Policy.FCFS, "b"), (Policy.PRIORITY, "c")])
def test_who_gives_way(policy: Policy, victim: str) -> None:
    for name in "abc":
        engine = engine_with(policy)
        if name == victim:
            observed = play(engine, f"begin_pass() preempt({name})")
            assert observed.requests["abc".index(name)].status is Status.PREEMPTED
        else:
            with pytest.raises(EngineError, match="preempts another first"):
                play(engine, f"begin_pass() preempt({name})")


def test_a_scheduled_request_is_withdrawn_under_priority_only() -> None:
    play(engine_with(Policy.PRIORITY), "begin_pass() extend(c) preempt(c)")
    with pytest.raises(EngineError, match="scheduled in this pass already"):
        play(engine_with(Policy.FCFS), "begin_pass() extend(c) extend(a) extend(b) preempt(b)")


def test_a_withdrawn_chunk_leaves_no_key_no_offer_and_no_tokens() -> None:
    engine = engine_with(Policy.PRIORITY)
    before = play(engine, "begin_pass()")
    scheduled = play(engine, "extend(c)")
    assert scheduled.keys != before.keys
    after = play(engine, "preempt(c)")
    assert after.keys == before.keys
    assert after.requests[2].computed == 0
    dispatched = play(engine, "end_pass()")
    assert dispatched.effects.handoffs == ()
    assert play(engine, "execute() update_from_output()").steps_in_flight == 0


def test_a_withdrawn_copy_stays() -> None:
    engine = engine_with(Policy.PRIORITY)
    play(engine, f"begin_pass() extend(c) extend(a) extend(b) {STEP}")
    assert play(engine, "begin_pass()").requests[2].markers[1] is not None
    play(engine, "extend(c) preempt(c)")
    dispatched = play(engine, "end_pass()")
    (copy,) = dispatched.effects.copies
    assert dispatched.effects.handoffs == ()
    assert dispatched.keys[copy.destination], "its key moved, and its bytes are true"
    assert play(engine, "execute()").memory[copy.destination][0] == "cdefg"


def test_the_budget_of_a_withdrawn_chunk_comes_back() -> None:
    engine = TorchEngine(attrs.evolve(SCOPE, token_budget=6))
    play(engine, f"submit(b) submit(c) begin_pass() admit(c) {STEP}")
    play(engine, f"begin_pass() admit(b) {STEP}")
    chunk = play(engine, "begin_pass() extend(c) preempt(c) extend(b)").effects.chunk
    assert chunk is not None
    assert chunk.end > chunk.start


def test_an_admission_that_does_not_fit_changes_nothing() -> None:
    engine = TorchEngine(attrs.evolve(SCOPE, num_blocks=8))
    before = play(engine, "submit(a) submit(b) submit(c) begin_pass() admit(a) admit(b)")
    with pytest.raises(EngineError, match="are free"):
        play(engine, "admit(c)")
    assert attrs.evolve(engine.observe(), effects=before.effects) == before
