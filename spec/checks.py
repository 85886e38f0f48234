"""Everything that is established about a scope, in one call: safety, coverage, liveness.

>>> from cowtail.spec.scopes import scope_named
>>> report = check_scope(scope_named("shared_prefix"))
>>> report.verdict.value, report.exploration.missing_actions
('holds', ())
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from cowtail.models.actions import Action
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.exploration import (
    Exploration,
    Invariant,
    Progress,
    Sometimes,
    StateGraph,
    StepInvariant,
    Verdict,
    Violation,
)
from cowtail.spec.explorer import DEFAULT_MAX_SECONDS, DEFAULT_MAX_STATES, explore
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.liveness_properties import LIVENESS
from cowtail.spec.machine import LifecycleMachine
from cowtail.spec.scopes import required_actions
from cowtail.spec.sometimes import SOMETIMES
from cowtail.spec.step_invariants import STEP_PROPERTIES


@attrs.frozen
class ScopeReport:
    """What was established about a scope, by which search, within which bounds."""

    scope: Scope
    exploration: Exploration[State, Action]
    violation: Violation[Action] | None

    @property
    def verdict(self) -> Verdict:
        """Holds only if safety, coverage and liveness do, in a complete search."""
        return Verdict.VIOLATED if self.violation is not None else self.exploration.verdict

    def summary(self) -> str:
        """Return one line: counts, coverage, time, verdict, bounds."""
        exploration = attrs.evolve(self.exploration, verdict=self.verdict, violation=self.violation)
        return exploration.summary(self.scope.name)


def check_scope(
    scope: Scope,
    *,
    symmetry: bool = True,
    max_states: int | None = DEFAULT_MAX_STATES,
    max_seconds: float | None = DEFAULT_MAX_SECONDS,
    max_depth: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    watchers: Sequence[StepInvariant[State, Action]] = (),
) -> ScopeReport:
    """Explore a scope completely, judge every property, then liveness on the graph.

    Liveness is judged only on a complete graph: a search that hit a bound is undetermined.
    ``watchers`` are judged on every transition, after the properties.
    """
    exploration = explore(
        LifecycleMachine(scope, symmetry=symmetry),
        invariants=invariants_of(scope),
        step_invariants=[*step_invariants_of(scope), *watchers],
        sometimes=[
            Sometimes(s.event, f"{s.event} happens in {s.scope}", s.source)
            for s in SOMETIMES
            if s.scope == scope.name
        ],
        required_actions=required_actions(scope),
        max_states=max_states,
        max_seconds=max_seconds,
        max_depth=max_depth,
        keep_graph=True,
        progress=progress,
    )
    violation = exploration.violation
    if violation is None and exploration.complete and exploration.graph is not None:
        violation = check_liveness(scope, exploration.graph)
    return ScopeReport(scope, exploration, violation)


def invariants_of(scope: Scope) -> list[Invariant[State]]:
    """Return the invariants, bound to a scope, in the order in which they are judged."""

    def bound(check: Callable[[Scope, State], str | None]) -> Callable[[State], str | None]:
        return lambda state: check(scope, state)

    return [
        Invariant(p.identifier, p.name, p.sentence, p.source, bound(p.check)) for p in PROPERTIES
    ]


def step_invariants_of(scope: Scope) -> list[StepInvariant[State, Action]]:
    """Return the invariants of transitions, bound to a scope."""

    def bound(
        check: Callable[[Scope, State, Action, State, tuple[str, ...]], str | None],
    ) -> Callable[[State, Action, State, tuple[str, ...]], str | None]:
        return lambda before, action, after, events: check(scope, before, action, after, events)

    return [
        StepInvariant(p.identifier, p.name, p.sentence, p.source, bound(p.check))
        for p in STEP_PROPERTIES
    ]


def check_liveness(scope: Scope, graph: StateGraph[State, Action]) -> Violation[Action] | None:
    """Judge every liveness property on a complete graph, and return the first violation."""
    for prop in LIVENESS:
        found = prop.check(scope, graph)
        if found is not None:
            return attrs.evolve(found, identifier=prop.identifier)
    return None


def identifiers() -> tuple[str, ...]:
    """Return the identifiers of all properties: of states, of transitions, of whole graphs."""
    states = [prop.identifier for prop in PROPERTIES]
    steps = [prop.identifier for prop in STEP_PROPERTIES]
    return (*states, *steps, *(prop.identifier for prop in LIVENESS))
