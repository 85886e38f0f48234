"""Who is extended and who is preempted, what a withdrawn chunk leaves, and frees that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from cowtail.models import deferred_frees, lifecycle
from cowtail.models.actions import (
    Abort,
    Admit,
    BeginPass,
    EndPass,
    Execute,
    Extend,
    Preempt,
    Submit,
    UpdateFromOutput,
)
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Key, Status
from cowtail.models.scope import Policy, RequestSpec, Role, Scope, full_attention, mamba

Start = Callable[[Scope], Any]

PAIR = Scope(
    name="pair",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=20,
    requests=(
        RequestSpec("a", "abcdef", max_tokens=2),
        RequestSpec("b", "uvwxyz", max_tokens=2, priority=1),
        RequestSpec("c", "opqrst", max_tokens=2, priority=1),
    ),
    role=Role.BOTH,
    max_preemptions=1,
    token_budget=6,
)


def running(start: Start, policy: Policy, **changes: Any) -> Any:
    """Return a run in which 'a', 'c' and 'b' were admitted in that order, and 'c' sent last."""
    scope = attrs.evolve(PAIR, policy=policy, **changes)
    run = start(scope).do(Submit("a"), Submit("b"), Submit("c"))
    for name in ("a", "c", "b"):
        run.do(BeginPass(), Admit(name), EndPass()).device()
    return run


def possible(run: Any, kind: type) -> list[str]:
    return [action.request for action in run.enabled() if isinstance(action, kind)]


@pytest.mark.parametrize("policy", [Policy.FCFS, Policy.PRIORITY])
def test_requests_are_extended_in_the_order_of_their_admission(
    start: Start, policy: Policy
) -> None:
    run = running(start, policy, token_budget=64).do(BeginPass())
    assert possible(run, Extend) == ["a", "b", "c"]
    run.do(Extend("c"))
    assert possible(run, Extend) == ["b"]
    with pytest.raises(NotEnabled, match="admitted after 'a'"):
        run.do(Extend("a"))


def test_any_policy_extends_in_any_order(start: Start) -> None:
    run = running(start, Policy.ANY, token_budget=64).do(BeginPass(), Extend("b"))
    assert possible(run, Extend) == ["a", "c"]


def test_the_victim_is_the_last_admitted_or_the_least_urgent(start: Start) -> None:
    assert possible(running(start, Policy.FCFS).do(BeginPass()), Preempt) == ["b"]
    assert possible(running(start, Policy.PRIORITY).do(BeginPass()), Preempt) == ["c"]
    assert possible(running(start, Policy.ANY).do(BeginPass()), Preempt) == ["a", "b", "c"]


def test_the_budget_of_a_pass_is_shared(start: Start) -> None:
    run = running(start, Policy.ANY, token_budget=3).do(BeginPass())
    run.do(Extend("a"))
    assert (run.effects.chunk.start, run.effects.chunk.end) == (2, 4)
    assert possible(run, Extend) == [], "one token of budget reaches no block boundary"


def test_a_request_that_was_preempted_in_a_pass_waits_and_lets_nobody_in(start: Start) -> None:
    run = running(start, Policy.FCFS).do(BeginPass(), Preempt("b"))
    assert run.request("b").status is Status.PREEMPTED
    assert possible(run, Admit) == []
    assert possible(run, Preempt) == [], "the budget is spent and nobody lacks blocks"


def test_a_chunk_of_this_pass_is_withdrawn_with_its_keys_its_offers_and_its_budget(
    start: Start,
) -> None:
    run = running(start, Policy.PRIORITY, token_budget=2)
    run.scope = attrs.evolve(run.scope, token_budget=4)
    run.do(BeginPass(), Extend("a"), Extend("c"))
    registered = Key(1, "opqr")
    assert registered in {key for keys in run.state.pool.keys for key in keys}
    assert {offer.request for offer in run.state.open_pass.offers} == {"a", "c"}
    run.do(Preempt("c"))
    assert run.events[0] == "chunk withdrawn"
    keys = {key for held in run.state.pool.keys for key in held}
    assert registered not in keys
    assert Key(0, "opqr") not in keys
    assert {Key(0, "op"), Key(1, "op"), Key(0, "abcd"), Key(1, "abcd")} <= keys
    assert [chunk.request for chunk in run.state.open_pass.scheduled] == [0]
    assert {offer.request for offer in run.state.open_pass.offers} == {"a"}
    run.do(Extend("b"))
    assert run.effects.chunk.end == 4
    run.do(EndPass())
    assert {handoff.request for handoff in run.effects.handoffs} == {"a", "b"}


def test_other_policies_do_not_preempt_what_the_pass_has_scheduled(start: Start) -> None:
    run = running(start, Policy.FCFS, token_budget=64).do(BeginPass(), Extend("b"))
    with pytest.raises(NotEnabled, match="scheduled in this pass already"):
        run.do(Preempt("b"))


DEFERRING = Scope(
    name="deferring",
    groups=(full_attention(2), mamba(2)),
    hash_unit=2,
    num_blocks=8,
    requests=(RequestSpec("a", "abcd", max_tokens=3), RequestSpec("b", "xyzw", max_tokens=3)),
    role=Role.NONE,
    max_steps_in_flight=2,
    max_preemptions=0,
    defer_frees=True,
)


def test_k29_blocks_freed_with_steps_in_flight_wait_for_their_output(start: Start) -> None:
    run = start(DEFERRING).do(Submit("a")).one_pass(Admit("a"))
    held = run.state.pool.ref_counts
    run.one_pass(Extend("a")).do(Abort("a"))
    ((steps, blocks),) = run.observe().deferred
    assert (steps, len(blocks)) == (2, 4)
    assert all(run.state.pool.ref_counts[block] >= held[block] for block in blocks)
    run.do(Execute(), UpdateFromOutput())
    assert run.observe().deferred == ((1, blocks),)
    run.do(Execute(), UpdateFromOutput())
    assert run.observe().deferred == ()
    assert sum(run.state.pool.ref_counts) == 0
    assert not lifecycle.is_quiescent(run.scope, run.state), "the workers are not told yet"


def test_without_steps_in_flight_blocks_are_free_at_once(start: Start) -> None:
    run = start(DEFERRING).do(Submit("a")).one_pass(Admit("a")).device().do(Abort("a"))
    assert run.state.deferred == ()
    assert sum(run.state.pool.ref_counts) == 0


def test_nulls_are_not_deferred_and_nothing_is_no_entry(start: Start) -> None:
    run = start(DEFERRING)
    assert deferred_frees.give_back(run.scope, run.state, [(0, 0), ()], 2) is run.state


def test_k41_nobody_is_preempted_for_blocks_that_are_on_their_way_back(start: Start) -> None:
    scope = attrs.evolve(
        DEFERRING,
        num_blocks=9,
        requests=(
            RequestSpec("a", "abcd"),
            RequestSpec("b", "xyzw", max_tokens=3),
            RequestSpec("c", "pq"),
        ),
    )
    run = start(scope).do(Submit("a"), Submit("b"), BeginPass(), Admit("a"), Admit("b"), EndPass())
    run.do(Execute(), UpdateFromOutput())
    run.do(BeginPass(), Extend("b"), EndPass(), Abort("a"))
    assert run.state.deferred
    run.do(BeginPass())
    free = len(run.state.pool.free)
    taken = attrs.evolve(
        run.state.pool, free=(), ref_counts=tuple(count or 1 for count in run.state.pool.ref_counts)
    )
    assert free
    run.state = attrs.evolve(run.state, pool=attrs.evolve(taken, ref_counts=taken.ref_counts))
    assert possible(run, Extend) == [], "nothing is free"
    assert possible(run, Preempt) == [], "enough is on its way back"
    run.state = attrs.evolve(run.state, deferred=())
    assert possible(run, Preempt) == ["b"]
