"""The specification holds in every named scope, and everything in it is earned.

Scopes and broken rules that take seconds each are explored here; all of them with COWTAIL_SLOW
set (`make explore`).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from cowtail.models.observations import Status
from cowtail.models.phase import BlockPhase, block_phase
from cowtail.spec.broken_rules import BROKEN_RULES
from cowtail.spec.checks import ScopeReport, check_scope, identifiers
from cowtail.spec.exploration import Verdict
from cowtail.spec.measured import load, measure_rule, measure_scope
from cowtail.spec.scopes import SCOPES, scope_named
from cowtail.spec.sometimes import NEVER, SOMETIMES

COMMITTED = load(Path(__file__).parents[2] / "docs" / "reference" / "measured.json")
QUICK_STATES = 2_000
"""What takes no more states than this is explored in every run of the tests."""


def is_due(states: int) -> bool:
    return states <= QUICK_STATES or "COWTAIL_SLOW" in os.environ


DUE_SCOPES = [name for name, found in COMMITTED.scopes.items() if is_due(found.states)]
DUE_RULES = [name for name, found in COMMITTED.rules.items() if is_due(found.states)]


@functools.cache
def report_of(name: str) -> ScopeReport:
    """Return the report of a scope, explored once per process."""
    return check_scope(scope_named(name))


@pytest.mark.parametrize("name", DUE_SCOPES)
def test_a_scope_holds_and_reaches_what_is_committed(name: str) -> None:
    found = measure_scope(scope_named(name))
    assert found.verdict == Verdict.HOLDS.value
    assert found == COMMITTED.scopes[name], "run `make docs` and see why"


@pytest.mark.parametrize("name", DUE_RULES)
def test_a_broken_rule_violates_the_property_it_names_as_soon_as_committed(name: str) -> None:
    found = measure_rule(BROKEN_RULES[name])
    assert found.violates == BROKEN_RULES[name].violates
    assert found == COMMITTED.rules[name], "run `make docs` and see why"


def test_the_figures_are_of_all_scopes_and_rules_that_there_are() -> None:
    assert list(COMMITTED.scopes) == list(SCOPES)
    assert list(COMMITTED.rules) == list(BROKEN_RULES)
    assert {found.verdict for found in COMMITTED.scopes.values()} == {Verdict.HOLDS.value}


def test_every_property_is_violated_by_some_broken_rule() -> None:
    known = identifiers()
    assert len(set(known)) == len(known)
    assert set(known) == {rule.violates for rule in BROKEN_RULES.values()}
    assert set(known) == {found.violates for found in COMMITTED.rules.values()}


def test_every_event_must_happen_somewhere_or_has_a_reason_why_it_never_does() -> None:
    demanded = {prop.event for prop in SOMETIMES}
    told = {event for found in COMMITTED.scopes.values() for event in found.witnesses}
    assert told <= demanded
    assert not told & set(NEVER), "an event with a reason why it never happens has happened"


def test_sometimes_properties_name_scopes_that_exist() -> None:
    assert {prop.scope for prop in SOMETIMES} <= set(SCOPES)


def test_every_action_is_taken_in_some_scope_but_the_one_of_targets_that_schedule() -> None:
    taken = {action for found in COMMITTED.scopes.values() for action in found.changes}
    from cowtail.models.actions import ACTIONS

    assert taken == {action.name for action in ACTIONS} - {"schedule_pass"}


def test_no_block_of_any_scope_is_ever_lost_and_every_other_phase_occurs() -> None:
    seen = set()
    for name in ("lone_producer", "shared_prefix", "two_peers_retain"):
        graph = report_of(name).exploration.graph
        assert graph is not None
        blocks = range(1, scope_named(name).num_blocks)
        seen |= {block_phase(state, block) for state in graph.states for block in blocks}
    assert BlockPhase.LOST not in seen
    assert seen >= {BlockPhase.TAIL_REGISTERED, BlockPhase.COPIED_ON_WRITE, BlockPhase.PINNED}


def test_symmetry_merges_states_and_changes_no_verdict() -> None:
    scope = scope_named("failed_load_ends")
    plain = check_scope(scope, symmetry=False)
    assert plain.verdict is Verdict.HOLDS
    assert plain.exploration.states > report_of(scope.name).exploration.states
    statuses = [
        {state.requests[0].status for state in graph.states}
        for graph in (plain.exploration.graph, report_of(scope.name).exploration.graph)
        if graph is not None
    ]
    assert statuses == [set(Status) - {Status.PREEMPTED}] * 2


def test_a_bound_that_is_hit_is_undetermined_and_printed() -> None:
    report = check_scope(scope_named("lone_producer"), max_states=100)
    assert report.verdict is Verdict.UNDETERMINED
    assert "max_states reached" in report.summary()
    assert "100 states" in report.summary()
