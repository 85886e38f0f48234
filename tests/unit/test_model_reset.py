"""Resets in the model: what they forget, and when they may not."""

from __future__ import annotations

import attrs
import pytest

from cowtail.models.actions import (
    Abort,
    Admit,
    BeginPass,
    EndPass,
    ForeignPut,
    LookUp,
    Reset,
    RunJob,
    RunLoad,
    Submit,
)
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Status
from cowtail.models.scope import Lookup, RequestSpec, Role, Scope, full_attention, mamba

CACHED = Scope(
    name="cached",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=12,
    requests=(RequestSpec("a", "abcd", max_tokens=3), RequestSpec("b", "wxyz", max_tokens=3)),
    role=Role.PRODUCER,
    num_ranks=2,
    max_resets=9,
)


def running(start, scope=CACHED):
    """Return a run in which 'a' and 'b' run, 'a' admitted first, their jobs queued."""
    run = start(scope).do(Submit("a"), Submit("b"))
    return run.one_pass(Admit("a"), Admit("b")).device()


def test_s13_a_reset_that_succeeds_leaves_no_key_and_no_reference(start) -> None:
    run = running(start).run_jobs().do(Abort("a"), Abort("b")).one_pass().device()
    free = run.state.pool.free
    assert any(run.state.pool.keys)
    run.do(Reset())
    assert run.effects.reset is True
    assert not any(run.state.pool.keys)
    assert run.state.pool.index == ()
    assert not any(run.state.pool.ref_counts)
    assert run.state.pool.free == free


def test_s13_a_reset_is_refused_while_a_job_pins_a_block(start) -> None:
    run = running(start).do(Abort("a"), Abort("b"))
    keys = run.state.pool.keys
    run.do(Reset())
    assert run.effects.reset is False
    assert run.state.pool.keys == keys
    run.run_jobs().do(Reset())
    assert run.effects.reset is True


def test_a_reset_of_running_requests_preempts_the_last_admitted_first(start) -> None:
    run = running(start).run_jobs().do(Reset(running=True))
    assert run.effects.reset is True
    assert [request.status for request in run.state.requests] == [Status.PREEMPTED] * 2
    assert run.state.untold_preempted == (1, 0)
    run.one_pass()
    assert run.state.steps[0].preempted == (1, 0)
    assert run.state.untold_preempted == ()
    run.device().do(BeginPass(), Admit("a"))
    assert run.effects.hit == 0


def test_a_preemption_by_reset_makes_output_in_flight_stale_and_retires_jobs(start) -> None:
    run = start(CACHED).do(Submit("a")).one_pass(Admit("a")).do(Reset(running=True))
    assert run.state.steps[0].chunks[0].stale
    assert run.effects.reset is False  # the job in flight pins its blocks
    run.device().one_pass().device()
    assert [job.live for job in run.state.ranks[0].queue] == [False]


def test_s14_a_reset_of_the_store_leaves_no_entry(start) -> None:
    run = running(start)
    with pytest.raises(NotEnabled, match="rank 0 has jobs queued"):
        run.do(Reset(store=True))
    run.do(RunJob(0), RunJob(0))
    assert run.state.ranks[1].queue
    saved = [rank.saved for rank in run.state.ranks]
    run.do(Reset(store=True))
    assert (run.effects.reset, run.state.store) == (False, ())
    assert [rank.saved for rank in run.state.ranks] == saved


LOADING = attrs.evolve(CACHED, role=Role.CONSUMER, lookup=Lookup.ASYNC, foreign=("a",), num_ranks=1)


def test_a_reset_of_the_store_drops_answers_and_leases(start) -> None:
    run = start(LOADING).do(Submit("a"), ForeignPut("a"), LookUp("a"), Reset(store=True))
    view = run.observe().requests[0]
    assert (view.found, view.leased, run.state.store) == (None, False, ())
    run.do(LookUp("a"))
    assert run.observe().requests[0].found == 0


def test_the_store_is_not_reset_while_a_load_is_under_way(start) -> None:
    run = start(LOADING).do(Submit("a"), ForeignPut("a"), LookUp("a")).one_pass(Admit("a"))
    with pytest.raises(NotEnabled, match="a load is under way"):
        run.do(Reset(store=True))
    run.do(RunLoad(0))
    with pytest.raises(NotEnabled, match="a load is under way"):
        run.do(Reset(store=True))
    run.run_loads().do(Reset(store=True))
    assert run.state.store == ()
    assert run.effects.reset is False


def test_a_reset_of_running_requests_leaves_who_loads_alone(start) -> None:
    run = start(LOADING).do(Submit("a"), ForeignPut("a"), LookUp("a")).one_pass(Admit("a"))
    run.do(Reset(running=True))
    assert run.request().status is Status.LOADING
    assert run.effects.reset is False


@pytest.mark.parametrize("role", [Role.NONE])
def test_without_a_connector_there_is_no_store_to_reset(start, role) -> None:
    run = start(attrs.evolve(CACHED, role=role))
    assert Reset() in run.enabled()
    with pytest.raises(NotEnabled, match="no store to reset"):
        run.do(Reset(store=True))


def test_no_reset_within_a_pass(start) -> None:
    run = start(CACHED).do(Submit("a"), BeginPass(), Admit("a"))
    with pytest.raises(NotEnabled, match="a pass is open"):
        run.do(Reset())
    run.do(EndPass(), Reset())
