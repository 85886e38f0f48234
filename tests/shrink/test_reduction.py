"""The reducer keeps its promise: of what it returns, no single action can be left out."""

from __future__ import annotations

import random

import pytest

from cowtail.harness import Diverged, Lockstep, ModelTarget, run
from cowtail.harness.lockstep import Finding
from cowtail.harness.reducer import Reduced, Search, diverges, possible, reduce, shortest
from cowtail.harness.simplify import simpler_scopes
from cowtail.models.actions import Report, RunJob, Submit
from cowtail.spec.broken_rules import BROKEN_RULES
from cowtail.spec.scopes import scope_named

RULES = (
    "tail_emitted_with_tokens_in_flight",
    "marker_survives_its_copy",
    "offset_moves_without_put",
    "pin_released_after_first_rank",
    "retired_jobs_forgotten",
    "keys_left_on_the_source",
    "partial_hit_shared",
    "last_block_not_freed",
)


def _found_at_random(rule: str, seed: int = 3) -> Finding:
    """Return a failing run as a random walk gives it, with all that has nothing to do with it."""
    scope, target = scope_named(BROKEN_RULES[rule].scope), ModelTarget((rule,))
    rng = random.Random(seed)
    for _ in range(500):
        with Lockstep(scope, target) as pair:
            while enabled := pair.enabled():
                try:
                    pair.perform(rng.choice(enabled))
                except Diverged as error:
                    actions = (*pair.actions, error.divergence.action)
                    return Finding(scope, actions, error.divergence)
    raise AssertionError(f"{rule} was not found in 500 walks")


def _reduced(rule: str, keep_scope: bool = False) -> tuple[Finding, Reduced]:
    finding = _found_at_random(rule)
    target = ModelTarget((rule,))
    return finding, reduce(finding.scope, finding.actions, target, keep_scope=keep_scope)


@pytest.mark.parametrize("rule", RULES)
def test_no_single_action_can_be_left_out(rule: str) -> None:
    finding, reduced = _reduced(rule)
    target = ModelTarget((rule,))
    assert reduced.minimal
    assert len(reduced.actions) <= len(finding.actions)
    divergence = diverges(reduced.scope, reduced.actions, target)
    assert divergence is not None
    assert divergence.index == len(reduced.actions) - 1
    for left_out in range(len(reduced.actions)):
        rest = reduced.actions[:left_out] + reduced.actions[left_out + 1 :]
        assert diverges(reduced.scope, rest, target) is None
        repaired = possible(reduced.scope, rest)
        shorter = diverges(reduced.scope, repaired, target)
        assert shorter is None or shorter.index + 1 >= len(reduced.actions)


@pytest.mark.parametrize("rule", RULES)
def test_without_the_fault_the_reduced_run_agrees(rule: str) -> None:
    _, reduced = _reduced(rule)
    assert run(reduced.scope, reduced.actions, ModelTarget()).divergence is None


def test_a_kept_scope_stays_as_it_is() -> None:
    finding, reduced = _reduced("pin_released_after_first_rank", keep_scope=True)
    assert reduced.scope == finding.scope


def test_a_smaller_scope_is_found_and_named_as_one() -> None:
    finding, reduced = _reduced("last_block_not_freed")
    assert reduced.scope.num_ranks < finding.scope.num_ranks
    assert reduced.scope.name == "lone_producer_reduced"


def test_every_simpler_scope_differs_and_fits() -> None:
    scope = scope_named("preempt_under_pressure")
    simpler = list(simpler_scopes(scope, (Submit("a"),)))
    assert len(simpler) > 5
    assert scope not in simpler
    assert any([spec.name for spec in each.requests] == ["a"] for each in simpler)


def test_a_report_follows_its_job_when_ids_move() -> None:
    scope = scope_named("lone_producer")
    with Lockstep(scope, ModelTarget()) as pair:
        pair.perform(Submit("a"))
        pair.drain()
    renumbered = [Report(a.rank, a.job + 7) if isinstance(a, Report) else a for a in pair.actions]
    assert possible(scope, renumbered) == tuple(pair.actions)


def test_what_is_not_possible_is_dropped() -> None:
    scope = scope_named("lone_producer")
    assert possible(scope, (RunJob(0), Submit("a"), Submit("a"))) == (Submit("a"),)


def test_the_bound_is_kept_and_reported() -> None:
    finding = _found_at_random("retired_jobs_forgotten")
    target = ModelTarget(("retired_jobs_forgotten",))
    reduced = reduce(finding.scope, finding.actions, target, max_target_actions=20)
    assert not reduced.minimal
    assert reduced.target_actions < 20 + len(finding.actions)
    assert diverges(reduced.scope, reduced.actions, target) is not None


def test_a_run_that_agrees_cannot_be_reduced() -> None:
    with pytest.raises(ValueError, match="does not diverge in these 1 actions"):
        reduce(scope_named("lone_producer"), (Submit("a"),), ModelTarget())


def test_the_search_finds_what_leaving_out_cannot() -> None:
    _, reduced = _reduced("last_block_not_freed")
    target = ModelTarget(("last_block_not_freed",))
    search = shortest(reduced.scope, target, max_length=len(reduced.actions))
    assert search.complete
    found = search.found
    assert found is not None
    none = shortest(reduced.scope, target, max_length=len(found.actions) - 1)
    assert none == Search(None, complete=True)
    assert diverges(found.scope, found.actions, target) is not None


def test_the_search_ends_at_its_bounds() -> None:
    scope, target = scope_named("lone_producer"), ModelTarget()
    assert shortest(scope, target, max_length=6) == Search(None, complete=True)
    bounded = shortest(scope, target, max_length=50, max_target_actions=30)
    assert bounded == Search(None, complete=False)
