"""The life of a partial tail on the torch engine, by the worked example of a 13-token prompt."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import EngineError, TorchEngine
from cowtail.models.observations import (
    Copy,
    Effects,
    Handoff,
    Key,
    Marker,
    Observation,
    Pin,
    Put,
    StoreJob,
)
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba

PROMPT = "abcdefghijklm"
SCOPE = Scope(
    name="worked_life",
    groups=(full_attention(8), mamba(8)),
    hash_unit=2,
    num_blocks=16,
    requests=(RequestSpec("a", PROMPT, max_tokens=3), RequestSpec("b", PROMPT)),
    role=Role.BOTH,
)
STEP = "end_pass() execute() update_from_output()"
TO_THE_BOUNDARY = f"submit(a) begin_pass() admit(a) {STEP} begin_pass() extend(a) {STEP}"


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def test_prefill_stops_at_the_block_and_at_the_replay_boundary() -> None:
    engine = TorchEngine(SCOPE)
    chunks = [play(engine, "submit(a) begin_pass() admit(a)").effects.chunk]
    for _ in range(2):
        chunks.append(play(engine, f"{STEP} begin_pass() extend(a)").effects.chunk)
    ends = [(chunk.start, chunk.end) for chunk in chunks if chunk]
    assert ends == [(0, 8), (8, 12), (12, 13)]


def test_the_tail_is_registered_in_the_running_block() -> None:
    view = play(TorchEngine(SCOPE), TO_THE_BOUNDARY).requests[0]
    assert view.tables == ((1, 3), (2, 4))
    assert view.markers == (None, Marker(block=4, boundary=12))


def test_copy_on_write_moves_key_and_bytes_to_the_durable_block() -> None:
    engine = TorchEngine(SCOPE)
    play(engine, f"{TO_THE_BOUNDARY} begin_pass() extend(a)")
    before = engine.observe()
    assert before.requests[0].tables == ((1, 3), (0, 4))
    effects = play(engine, "end_pass()").effects
    tail = Key(1, PROMPT[:12])
    (copy,) = effects.copies
    assert copy == Copy(group=1, source=4, destination=5)
    assert effects.handoffs == (Handoff("a", 1, 5, 12),)
    after = play(engine, "execute()")
    assert after.keys[4] == ()
    assert after.keys[5] == (tail,)
    assert after.memory[5][0] == PROMPT[:12]
    assert after.memory[4][0] == PROMPT
    assert after.requests[0].markers == (None, None)
    assert after.ref_counts[5] == 1, "the job's pin alone keeps the durable block"


def test_a_sibling_hits_the_tail_and_copies_both_of_its_blocks() -> None:
    engine = TorchEngine(SCOPE)
    play(engine, f"{TO_THE_BOUNDARY} begin_pass() extend(a) {STEP}")
    observed = play(engine, "submit(b) begin_pass() admit(b)")
    assert observed.effects.hit == 12
    attention, state = observed.requests[1].tables
    effects = play(engine, "end_pass()").effects
    assert effects.copies == (Copy(0, 3, attention[1]), Copy(1, 5, state[1]))
    memory = play(engine, "execute()").memory
    assert memory[attention[1]][:5] == tuple(PROMPT[:end] for end in range(9, 14))
    assert memory[state[1]][0] == PROMPT
    assert memory[5][0] == PROMPT[:12], "the durable block keeps its state"


def test_a_tail_at_finish_is_pinned_until_both_ranks_have_reported() -> None:
    engine = TorchEngine(SCOPE)
    effects = play(engine, f"{TO_THE_BOUNDARY} abort(a)").effects
    assert effects.handoffs == (Handoff("a", 1, 4, 12),)
    (job,) = effects.jobs
    assert job == StoreJob(1, "a", (Put(0, 3, 12), Put(1, 4, 12)), save_to=0, blocks=(3, 4))
    observed = engine.observe()
    assert observed.queued_tails == (1,)
    assert observed.requests[0].tables == ((), ())
    assert observed.pins[-1] == Pin(1, (3, 4), (0, 1))
    effects = play(engine, "begin_pass() end_pass()").effects
    assert effects.jobs == (job,)
    play(engine, "execute() run_job(0)")
    first = play(engine, "run_job(0) report(0, 1) update_connector_output()")
    assert first.pins[-1] == Pin(1, (3, 4), (1,))
    assert first.ref_counts[4] == 1
    last = play(engine, "run_job(1) run_job(1) report(1, 1) update_connector_output()")
    assert last.effects.released == (1,)
    assert last.ref_counts[3] == last.ref_counts[4] == 0
    stored = {(entry.rank, entry.group, entry.prefix): entry.content for entry in last.store}
    for rank in (0, 1):
        assert stored[rank, 1, PROMPT[:12]] == (PROMPT[:12],)
        assert stored[rank, 0, PROMPT[:12]] == tuple(PROMPT[:end] for end in range(9, 13))


def test_tails_that_disagree_on_the_boundary_are_an_error() -> None:
    scope = Scope(
        name="two_states",
        groups=(full_attention(8), mamba(8), mamba(8)),
        hash_unit=2,
        num_blocks=20,
        requests=SCOPE.requests,
    )
    engine = TorchEngine(scope)
    play(engine, TO_THE_BOUNDARY)
    scheduler = engine.scheduler
    tables = scheduler.cache.tables("a")
    tails = [Handoff("a", 1, tables[1][1], 12), Handoff("a", 2, tables[2][1], 8)]
    with pytest.raises(ValueError, match=r"boundaries \[12, 8\] must be one"):
        scheduler.connector.register_finished_partial_tail(scheduler.requests["a"], tables, tails)


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(Handoff("a", 1, 0, 12), id="null block"),
        pytest.param(Handoff("a", 0, 3, 12), id="group that keeps no state"),
        pytest.param(Handoff("a", 1, 4, 14), id="beyond the end of prefill"),
        pytest.param(Handoff("b", 1, 4, 12), id="unknown request"),
    ],
)
def test_a_tail_that_is_refused_pins_nothing(tail: Handoff) -> None:
    engine = TorchEngine(SCOPE)
    before = play(engine, TO_THE_BOUNDARY)
    scheduler = engine.scheduler
    request = scheduler.requests[tail.request]
    tables = scheduler.cache.tables("a")
    assert scheduler.connector.register_finished_partial_tail(request, tables, [tail]) is False
    assert engine.observe().pins == before.pins
    assert engine.observe().ref_counts == before.ref_counts


@pytest.mark.parametrize("role", list(Role))
def test_workers_are_told_once_of_a_request_aborted_before_admission(role: Role) -> None:
    engine = TorchEngine(attrs.evolve(SCOPE, role=role))
    assert play(engine, "submit(a) abort(a)").effects == Effects()
    told = []
    for _ in range(2):
        engine.scheduler.begin_pass()
        output, effects = engine.scheduler.end_pass()
        assert effects == Effects()
        told.append(output.metadata.finished)
    assert told == [("a",), ()]


@pytest.mark.parametrize("role", [Role.CONSUMER, Role.NONE])
def test_who_does_not_save_hands_nothing_over(role: Role) -> None:
    scope = Scope(
        name="silent",
        groups=SCOPE.groups,
        hash_unit=2,
        num_blocks=16,
        requests=SCOPE.requests,
        role=role,
    )
    engine = TorchEngine(scope)
    play(engine, TO_THE_BOUNDARY)
    assert play(engine, "abort(a)").effects == Effects()
    effects = play(engine, "begin_pass() end_pass()").effects
    assert effects == Effects()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("submit(c)", "'c': not in scope"),
        ("submit(a) submit(a)", "was submitted already"),
        ("admit(a)", "no pass is open"),
        ("begin_pass() begin_pass()", "a pass is open"),
        ("begin_pass() admit(a)", "is new, not waiting"),
        ("submit(a) begin_pass() extend(a)", "is waiting, not running"),
        ("submit(a) begin_pass() admit(a) extend(a)", "is scheduled in this pass already"),
        ("submit(a) begin_pass() admit(a) preempt(a)", "is scheduled in this pass already"),
        ("submit(a) begin_pass() abort(a)", "a pass is open"),
        ("submit(a) begin_pass() admit(a) end_pass() begin_pass()", "1 steps are in flight"),
        ("submit(a) begin_pass() admit(a) end_pass() update_from_output()", "no step has run"),
        ("execute()", "every step has run"),
        ("abort(a)", "is new: nothing to abort"),
        ("run_job(0)", "no job queued"),
        ("run_job(2)", "rank 2: must be below 2"),
        ("report(0, 0)", "no report of job 0"),
        ("update_connector_output()", "nothing was reported"),
        ("schedule_pass()", "does not choose what to schedule"),
    ],
)
def test_an_impossible_action_says_why(text: str, reason: str) -> None:
    *before, last = parse_actions(text)
    engine = TorchEngine(SCOPE)
    for action in before:
        engine.perform(action)
    with pytest.raises(EngineError, match=reason):
        engine.perform(last)
