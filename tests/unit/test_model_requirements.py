"""The model against the numbered requirements: each test names the one that it proves."""

from __future__ import annotations

from unittest import mock

import attrs
import pytest

from cowtail.models import connector, lifecycle, requests, tables
from cowtail.models.actions import (
    Abort,
    Action,
    Admit,
    BeginPass,
    EndPass,
    Execute,
    Extend,
    JobOutcome,
    Preempt,
    Report,
    RunJob,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.errors import LifecycleError, NotEnabled
from cowtail.models.observations import (
    Copy,
    Effects,
    Handoff,
    Key,
    Marker,
    Put,
    Status,
    StoreEntry,
)
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba
from cowtail.models.state import State

WORKED = Scope(
    name="worked",
    groups=(full_attention(8), mamba(8)),
    hash_unit=2,
    num_blocks=20,
    requests=(RequestSpec("a", "abcdefghijklm"), RequestSpec("b", "abcdefghijklm")),
    role=Role.BOTH,
)
"""The worked life of the domain description: H = 2, B = 8, P = 13."""


class Run:
    """A run of the model: the state, and the effects and events of the last action."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.state: State = lifecycle.initial(scope)
        self.effects = Effects()
        self.events: tuple[str, ...] = ()

    def do(self, *actions: Action) -> Run:
        for action in actions:
            transition = lifecycle.step(self.scope, self.state, action)
            self.state, self.effects = transition.state, transition.effects
            self.events = transition.events
        return self

    def one_pass(self, *inner: Action) -> Run:
        self.do(BeginPass(), *inner, EndPass())
        return self

    def device(self) -> Run:
        return self.do(Execute(), UpdateFromOutput())

    def refs(self) -> tuple[int, ...]:
        return self.state.pool.ref_counts


def at_the_boundary(role: Role = Role.BOTH, scope: Scope = WORKED) -> Run:
    """Return a run in which 'a' has computed exactly 12 of 13 tokens: its tail is registered."""
    run = Run(attrs.evolve(scope, role=role)).do(Submit("a"))
    run.one_pass(Admit("a")).device()
    return run.one_pass(Extend("a")).device()


def test_the_worked_life_of_a_tail_by_copy_on_write() -> None:
    run = Run(WORKED).do(Submit("a")).one_pass(Admit("a"))
    assert [chunk.end for step in run.state.steps for chunk in step.chunks] == [8]
    assert run.effects.handoffs == (Handoff("a", 1, 2, 8),)
    run.device().one_pass(Extend("a"))
    table = run.state.requests[0].tables[1]
    assert table.blocks == (2, 4)
    assert table.marker == Marker(4, 12)
    run.device().one_pass(Extend("a"))
    assert run.effects.copies == (Copy(1, 4, 5),)
    assert run.effects.handoffs == (Handoff("a", 1, 5, 12),)
    assert run.state.requests[0].tables[1].blocks == (0, 4)
    assert run.state.pool.keys[5] == (Key(1, "abcdefghijkl"),)
    assert run.state.pool.keys[4] == ()
    run.device().do(Submit("b"), BeginPass(), Admit("b"))
    assert run.effects.hit == 12
    assert [copy.source for copy in run.state.open_pass.copies] == [3, 5]


def test_r1_a_tail_is_handed_off_at_finish_from_its_own_block() -> None:
    run = at_the_boundary().do(Abort("a"))
    assert run.effects.handoffs == (Handoff("a", 1, 4, 12),)
    assert "tail handed off at finish" in run.events


def test_r2_tokens_in_flight_drop_the_marker_and_keep_the_cache_entry() -> None:
    run = Run(WORKED).do(Submit("a")).one_pass(Admit("a")).device()
    run.one_pass(Extend("a")).do(Abort("a"))
    assert run.effects.handoffs == ()
    assert run.events[1] == "tail dropped: tokens in flight"
    assert any(Key(1, "abcdefghijkl") in keys for keys in run.state.pool.keys)


def test_r2_a_marker_whose_boundary_is_passed_is_consumed_and_not_emitted() -> None:
    run = at_the_boundary()
    passed = attrs.evolve(run.state.requests[0], computed=13)
    run.state = attrs.evolve(run.state, requests=(passed, run.state.requests[1]))
    state, tails, events = requests.finalize_tails(run.scope, run.state, 0)
    assert tails == ()
    assert events == ("tail dropped: boundary passed",)
    assert state.requests[0].tables[1].marker is None


def test_r7_a_tail_without_a_tracker_is_refused_and_the_request_just_finishes() -> None:
    run = at_the_boundary()
    run.state = attrs.evolve(run.state, trackers=(None, None))
    pins = run.state.pins
    run.do(Abort("a"))
    assert run.effects == Effects()
    assert "tail refused by the connector" in run.events
    assert run.state.pins == pins


@pytest.mark.parametrize("role", [Role.CONSUMER, Role.NONE])
def test_r3_and_r17_only_producers_hand_off(role: Role) -> None:
    run = at_the_boundary(role).do(Abort("a"))
    assert run.effects == Effects()
    assert run.state.pins == ()


def test_r3_tails_are_finalized_before_blocks_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state shows the order, because no window ends where a tail does: so it is called for."""
    run, calls = at_the_boundary(), mock.Mock()
    for module, name in ((requests, "finalize_tails"), (tables, "remove_skipped")):
        calls.attach_mock(mock.Mock(wraps=getattr(module, name)), name)
        monkeypatch.setattr(module, name, getattr(calls, name))
    run.do(Abort("a"))
    assert [call[0] for call in calls.mock_calls] == ["finalize_tails", "remove_skipped"]


def test_r5_and_r6_pinned_at_once_and_released_by_the_last_rank() -> None:
    run = at_the_boundary().do(Abort("a"))
    (job,) = run.effects.jobs
    assert job.blocks == (3, 4)
    assert run.state.requests[0].status is Status.FINISHED
    assert run.refs()[3] == run.refs()[4] == 1
    run.one_pass().do(Execute())
    for rank in (0, 1):
        while run.state.ranks[rank].queue:
            run.do(RunJob(rank))
    run.do(Report(1, job.job), UpdateConnectorOutput())
    assert run.refs()[4] == 1
    run.do(Report(0, job.job), UpdateConnectorOutput())
    assert run.effects.released == (job.job,)
    assert run.refs()[3] == run.refs()[4] == 0


def test_r7_tails_that_disagree_on_the_boundary_are_an_error() -> None:
    run = at_the_boundary()
    tails = (Handoff("a", 1, 4, 12), Handoff("a", 1, 4, 8))
    with pytest.raises(ValueError, match="share one boundary"):
        connector.register_finished_tail(run.scope, run.state, 0, tails)


@pytest.mark.parametrize(
    "tail",
    [Handoff("a", 1, 4, 14), Handoff("a", 0, 3, 12), Handoff("a", 1, 0, 12)],
    ids=["past the end of prefill", "no boundary state", "null block"],
)
def test_r7_what_is_not_accepted_pins_nothing(tail: Handoff) -> None:
    run = at_the_boundary()
    state, job = connector.register_finished_tail(run.scope, run.state, 0, (tail,))
    assert job is None
    assert state == run.state


def test_r8_a_job_takes_one_reference_per_block() -> None:
    run = at_the_boundary().one_pass(Extend("a"))
    (job,) = run.effects.jobs
    assert [put.block for put in job.puts] == [3, 5]
    assert job.blocks == (3, 5, 1)  # block 3 is a tail put and in the saved table
    assert run.refs()[3] == 2


def test_r9_a_copy_of_another_block_than_the_marked_one_is_an_error() -> None:
    run = at_the_boundary()
    request = run.state.requests[0]
    wrong = attrs.evolve(request.tables[1], marker=Marker(2, 12))
    request = attrs.evolve(request, tables=(request.tables[0], wrong))
    run.state = attrs.evolve(run.state, requests=(request, run.state.requests[1]))
    run.do(BeginPass())
    with pytest.raises(LifecycleError, match="tail of 'a' is block 2"):
        run.do(Extend("a"))


def test_r10_a_handoff_only_job_saves_no_prefix() -> None:
    run = at_the_boundary().do(Abort("a"))
    (job,) = run.effects.jobs
    assert job.save_to == 0
    assert job.puts == (Put(0, 3, 12), Put(1, 4, 12))


def test_r14_a_handoff_is_flushed_with_the_next_metadata() -> None:
    run = at_the_boundary().do(Abort("a"))
    (job,) = run.effects.jobs
    assert [meta.job for meta in run.state.queued_tails] == [job.job]
    run.one_pass()
    assert run.effects.jobs == (job,)
    assert run.state.queued_tails == ()


def test_r14_a_handoff_does_not_wait_for_another_job() -> None:
    requests_ = (WORKED.requests[0], RequestSpec("b", "xy", max_tokens=9))
    run = at_the_boundary(scope=attrs.evolve(WORKED, requests=requests_))
    run.do(Submit("b")).one_pass(Admit("b")).device()
    run.one_pass(Extend("b")).device().one_pass(Extend("b")).device().do(Abort("a"))
    (job,) = run.effects.jobs
    run.one_pass(Extend("b"))
    assert run.effects.jobs == (job,)
    assert run.state.queued_tails == ()


def test_r15_the_copy_in_no_table_stays_pinned_until_its_job_is_complete() -> None:
    run = at_the_boundary().one_pass(Extend("a"))
    assert all(5 not in table.blocks for r in run.state.requests for table in r.tables)
    assert run.refs()[5] == 1
    assert 5 not in run.state.pool.free


def test_r19_a_failed_save_moves_no_offset() -> None:
    scope = attrs.evolve(WORKED, max_failed_jobs=1)
    run = Run(scope).do(Submit("a")).one_pass(Admit("a")).device()
    run.do(RunJob(0, JobOutcome.FAILED), RunJob(1))
    assert [rank.saved[0] for rank in run.state.ranks] == [0, 8]
    assert {entry.rank for entry in run.state.store} == {1}


@pytest.mark.parametrize("outcome", [JobOutcome.OK, JobOutcome.FAILED])
def test_r19_a_tail_moves_no_offset_whether_it_is_put_or_fails(outcome: JobOutcome) -> None:
    run = at_the_boundary(scope=attrs.evolve(WORKED, max_failed_jobs=1))
    run.do(RunJob(0), RunJob(1), Abort("a"))
    (tail,) = run.effects.jobs
    run.one_pass().do(Execute())
    assert [meta.job for meta in run.state.ranks[0].queue] == [tail.job]
    before = run.state.ranks[0].saved
    run.do(RunJob(0, outcome))
    assert run.state.ranks[0].saved == before == (8, 0)
    stored = {len(entry.prefix) for entry in run.state.store if entry.rank == 0}
    assert stored == ({8, 12} if outcome is JobOutcome.OK else {8})


def test_r22_all_of_it_holds_with_max_tokens_1() -> None:
    run = at_the_boundary().one_pass(Extend("a")).device()
    assert run.state.requests[0].status is Status.FINISHED
    assert run.state.requests[0].outputs == 1
    for rank in (0, 1):
        while run.state.ranks[rank].queue:
            run.do(RunJob(rank))
    stored = {(entry.group, len(entry.prefix)) for entry in run.state.store}
    assert stored == {(0, 8), (0, 12), (1, 8), (1, 12)}
    assert StoreEntry(0, 1, "abcdefghijkl", ("abcdefghijkl",)) in run.state.store


def test_r30_a_state_is_stored_from_the_block_that_was_handed_over() -> None:
    run = at_the_boundary().one_pass(Extend("a")).device()
    (tail,) = [
        put
        for meta in run.state.ranks[0].queue
        for put in meta.puts
        if (put.group, put.boundary) == (1, 12)
    ]
    assert run.state.memory[tail.block][0] == "abcdefghijkl"
    assert run.state.memory[4][0] == "abcdefghijklm"


def test_a_preempted_generation_is_retired_on_the_ranks() -> None:
    scope = attrs.evolve(WORKED, max_preemptions=1)
    run = Run(scope).do(Submit("a")).one_pass(Admit("a")).device()
    run.one_pass(Preempt("a")).do(Execute())
    assert [meta.live for meta in run.state.ranks[0].queue] == [False]
    run.do(RunJob(0))
    assert run.effects.puts == ()
    assert run.state.ranks[0].outbox == (0,)


def test_a_repeated_report_is_counted_once() -> None:
    scope = attrs.evolve(WORKED, max_repeated_reports=1)
    run = Run(scope).do(Submit("a")).one_pass(Admit("a")).device()
    run.do(RunJob(0), Report(0, 0, again=True), Report(0, 0), UpdateConnectorOutput())
    assert run.events == ("repeated report ignored",)
    assert run.state.pins[0].ranks_owed == (1,)


def test_the_hit_of_a_state_that_this_pass_computes_is_refused() -> None:
    run = Run(WORKED).do(Submit("a"), Submit("b"), BeginPass(), Admit("a"))
    with pytest.raises(NotEnabled, match="this very pass computes"):
        run.do(Admit("b"))


@pytest.mark.parametrize(
    ("action", "guard"),
    [
        (Submit("a"), "each is submitted once"),
        (Abort("b"), "'b' is new"),
        (EndPass(), "no pass is open"),
        (Execute(), "no step is waiting to run"),
        (RunJob(7), "there is no rank 7"),
        (Report(0, 99), "job 99 is not in the outbox"),
        (UpdateConnectorOutput(), "no report has arrived"),
    ],
)
def test_a_refusal_names_the_guard(action: Action, guard: str) -> None:
    run = at_the_boundary()
    with pytest.raises(NotEnabled, match=guard):
        run.do(action)


def test_a_step_never_changes_the_state_it_starts_from() -> None:
    run = at_the_boundary()
    before, shown = run.state, repr(run.state)
    run.do(Abort("a"))
    assert run.state != before
    assert repr(before) == shown
