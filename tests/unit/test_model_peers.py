"""Several connectors behind one: who takes a tail, who holds a finished request, and how long."""

from __future__ import annotations

import attrs
import pytest

from cowtail.models import lifecycle
from cowtail.models.actions import (
    Abort,
    Admit,
    BeginPass,
    Execute,
    Extend,
    FinishSend,
    Preempt,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects, Held, Status
from cowtail.models.scope import (
    BASE,
    STORE,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    peer,
)

RETAINING = Scope(
    name="retaining",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=10,
    requests=(RequestSpec("a", "abcd"),),
    role=Role.BOTH,
    num_ranks=2,
    children=(peer(retains=True), STORE, peer(retains=True)),
    max_preemptions=1,
)
"""Two peers that send what a request leaves, and a store between them."""


def at_the_boundary(start, scope=RETAINING):
    """Return a run in which 'a' stands at three of four tokens, with its tail registered."""
    run = start(scope).do(Submit("a")).one_pass(Admit("a")).device()
    return run.one_pass(Extend("a")).device()


@pytest.mark.parametrize("children", [(), (BASE,), (peer(serves=True), BASE)])
def test_r5_only_a_store_takes_a_tail(start, children) -> None:
    run = at_the_boundary(start, attrs.evolve(RETAINING, children=children))
    run.do(Abort("a"))
    assert run.effects == Effects()
    assert "tail refused by the connector" in run.events
    assert run.state.pins == ()
    assert not any(run.state.pool.ref_counts)


def test_r5_every_child_is_asked_wherever_the_store_stands(start) -> None:
    for children in ((STORE, BASE), (BASE, STORE), (peer(retains=True), STORE)):
        run = at_the_boundary(start, attrs.evolve(RETAINING, children=children)).do(Abort("a"))
        assert len(run.effects.jobs) == 1


def test_s15_a_finished_request_is_held_until_every_rank_has_sent_for_every_child(start) -> None:
    run = at_the_boundary(start).do(Abort("a"))
    assert run.request().status is Status.FINISHED
    assert run.observe().held == (Held("a", (0, 1)),)
    tables = run.observe().requests[0].tables
    assert any(any(table) for table in tables)
    run.one_pass().device().run_jobs()
    assert run.observe().ranks[0].sends == (("a", 0), ("a", 2))
    run.do(FinishSend(0, 2, "a"))
    assert run.observe().send_inbox == ()
    run.do(FinishSend(1, 0, "a"), FinishSend(1, 2, "a"))
    assert run.observe().send_inbox == (("a", 1),)
    run.do(UpdateConnectorOutput())
    assert run.observe().held == (Held("a", (0,)),)
    assert run.observe().requests[0].tables == tables
    run.do(FinishSend(0, 0, "a"), UpdateConnectorOutput())
    assert run.observe().held == ()
    assert run.observe().requests[0].tables == ((), ())
    assert not any(run.state.pool.ref_counts)
    assert lifecycle.is_quiescent(run.scope, run.state)


def test_sends_begin_when_the_step_that_told_the_workers_has_run(start) -> None:
    run = at_the_boundary(start).do(Abort("a"))
    assert run.observe().untold == ("a",)
    run.one_pass()
    assert run.observe().untold == ()
    assert run.observe().ranks[0].sends == ()
    run.do(Execute())
    assert run.observe().ranks[1].sends == (("a", 0), ("a", 2))
    with pytest.raises(NotEnabled, match="sending nothing"):
        run.do(FinishSend(0, 1, "a"))


def test_a_held_request_is_not_quiescent(start) -> None:
    run = at_the_boundary(start).do(Abort("a")).one_pass().device().run_jobs()
    assert not lifecycle.is_quiescent(run.scope, run.state)


def test_r3_a_consumer_drops_a_tail_with_its_blocks_and_not_before(start) -> None:
    run = at_the_boundary(start, attrs.evolve(RETAINING, role=Role.CONSUMER))
    marker = run.request().tables[1].marker
    run.do(Abort("a"))
    assert run.observe().requests[0].markers == (None, marker)
    run.one_pass().device()
    run.do(*[FinishSend(rank, child, "a") for rank in (0, 1) for child in (0, 2)])
    run.do(UpdateConnectorOutput())
    assert run.observe().requests[0].markers == (None, None)


def test_who_has_no_blocks_is_not_held(start) -> None:
    run = start(RETAINING).do(Submit("a"), Abort("a"))
    assert run.observe().held == ()
    run = at_the_boundary(start).one_pass(Preempt("a")).do(Execute(), UpdateFromOutput())
    run.do(Abort("a"))
    assert run.observe().held == ()


def test_r17_without_a_connector_nothing_is_held(start) -> None:
    run = at_the_boundary(start, attrs.evolve(RETAINING, role=Role.NONE)).do(Abort("a"))
    assert run.observe().held == ()
    assert not any(run.state.pool.ref_counts)


def test_a_request_that_runs_to_its_end_is_held_as_well(start) -> None:
    run = at_the_boundary(start).one_pass(Extend("a")).device()
    assert run.request().status is Status.FINISHED
    assert run.observe().held == (Held("a", (0, 1)),)


def test_held_blocks_stay_out_of_other_hands(start) -> None:
    scope = attrs.evolve(
        RETAINING, requests=(RequestSpec("a", "abcd"), RequestSpec("b", "wxyz")), num_blocks=7
    )
    run = at_the_boundary(start, scope).do(Abort("a"), Submit("b")).do(BeginPass())
    held = {block for table in run.request("a").tables for block in table.blocks}
    run.do(Admit("b"))
    assert not held & {block for table in run.request("b").tables for block in table.blocks} - {0}
