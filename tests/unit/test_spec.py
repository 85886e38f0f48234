"""The specification holds in every named scope, and everything in it is earned."""

from __future__ import annotations

import functools

import pytest

from cowtail.models.observations import Status
from cowtail.models.phase import BlockPhase, block_phase
from cowtail.spec.broken_rules import BROKEN_RULES, broken_rule
from cowtail.spec.checks import ScopeReport, check_scope
from cowtail.spec.exploration import Verdict
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.scopes import SCOPES, scope_named
from cowtail.spec.sometimes import NEVER, SOMETIMES
from cowtail.spec.step_invariants import STEP_PROPERTIES


@functools.cache
def report_of(name: str) -> ScopeReport:
    """Return the report of a scope, explored once per process."""
    return check_scope(scope_named(name))


@pytest.mark.parametrize("name", SCOPES)
def test_every_named_scope_holds(name: str) -> None:
    report = report_of(name)
    assert report.verdict is Verdict.HOLDS, report.summary()
    assert report.exploration.complete
    assert not report.exploration.missing_actions
    assert not report.exploration.missing_sometimes
    unexpected = set(NEVER) & set(report.exploration.event_counts)
    assert not unexpected, "an event with a reason why it never happens has happened"


@pytest.mark.parametrize("name", BROKEN_RULES)
def test_every_broken_rule_violates_the_property_it_names(name: str) -> None:
    rule = BROKEN_RULES[name]
    with broken_rule(name):
        report = check_scope(scope_named(rule.scope))
    assert report.verdict is Verdict.VIOLATED
    assert report.violation is not None
    assert report.violation.identifier == rule.violates, str(report.violation)


def test_every_property_is_violated_by_some_broken_rule() -> None:
    identifiers = {p.identifier for p in PROPERTIES} | {p.identifier for p in STEP_PROPERTIES}
    identifiers |= {"L1", "L2"}
    assert identifiers == {rule.violates for rule in BROKEN_RULES.values()}


def test_sometimes_properties_name_scopes_that_exist() -> None:
    assert {prop.scope for prop in SOMETIMES} <= set(SCOPES)


def test_no_block_of_any_scope_is_ever_lost_and_every_other_phase_occurs() -> None:
    seen = set()
    for name in ("lone_producer", "cow_decode", "shared_prefix"):
        graph = report_of(name).exploration.graph
        assert graph is not None
        blocks = range(1, scope_named(name).num_blocks)
        seen |= {block_phase(state, block) for state in graph.states for block in blocks}
    assert BlockPhase.LOST not in seen
    assert seen == set(BlockPhase) - {BlockPhase.LOST}


def test_symmetry_merges_states_and_changes_no_verdict() -> None:
    scope = scope_named("lone_producer")
    plain = check_scope(scope, symmetry=False)
    assert plain.verdict is Verdict.HOLDS
    assert plain.exploration.states > report_of("lone_producer").exploration.states
    statuses = [
        {state.requests[0].status for state in graph.states}
        for graph in (plain.exploration.graph, report_of("lone_producer").exploration.graph)
        if graph is not None
    ]
    assert statuses == [set(Status), set(Status)]


def test_a_bound_that_is_hit_is_undetermined_and_printed() -> None:
    report = check_scope(scope_named("lone_producer"), max_states=100)
    assert report.verdict is Verdict.UNDETERMINED
    assert "max_states reached" in report.summary()
    assert "100 states" in report.summary()
