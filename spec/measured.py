"""What exploring found, as figures that are committed: ``docs/reference/measured.json``.

The generated pages are functions of the code and of these figures, so that a page can be
checked in no time, and a figure by exploring the one scope that it is about.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import attrs
import cattrs

from cowtail.models.actions import Action
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.broken_rules import BrokenRule, broken_rule
from cowtail.spec.checks import ScopeReport, check_scope
from cowtail.spec.exploration import StateGraph, StepInvariant
from cowtail.spec.scopes import scope_named


@attrs.frozen
class ScopeFigures:
    """What exploring one scope completely found.

    ``witnesses`` has the fewest actions after which each event has happened; ``changes`` the
    parts of the state that each action changed; ``told`` the events that each action led to.
    """

    states: int
    edges: int
    depth: int
    verdict: str
    witnesses: dict[str, int]
    changes: dict[str, list[str]]
    told: dict[str, list[str]]


@attrs.frozen
class RuleFigures:
    """What exploring with a broken rule found: the property, after how many actions.

    ``cycle`` counts the actions that can then be repeated for ever; ``states`` those explored.
    """

    violates: str
    kind: str
    actions: int
    cycle: int
    states: int


@attrs.frozen
class Measured:
    """All figures, by the name of the scope or of the broken rule."""

    scopes: dict[str, ScopeFigures]
    rules: dict[str, RuleFigures]


def measure_scope(scope: Scope) -> ScopeFigures:
    """Explore a scope completely, without a limit of time."""
    seen = _Seen()
    report = check_scope(scope, max_states=None, max_seconds=None, watchers=[seen.watcher()])
    graph = report.exploration.graph
    assert graph is not None
    return ScopeFigures(
        states=report.exploration.states,
        edges=report.exploration.edges,
        depth=report.exploration.depth,
        verdict=report.verdict.value,
        witnesses=first_witnesses(graph),
        changes={name: sorted(parts) for name, parts in sorted(seen.changes.items())},
        told={name: sorted(events) for name, events in sorted(seen.told.items())},
    )


def measure_rule(rule: BrokenRule) -> RuleFigures:
    """Explore the scope that a broken rule names, with the rule broken."""
    with broken_rule(rule.name):
        report: ScopeReport = check_scope(scope_named(rule.scope), max_seconds=None)
    violation = report.violation
    states = report.exploration.states
    if violation is None:
        return RuleFigures("", report.verdict.value, 0, 0, states)
    return RuleFigures(
        violation.identifier,
        violation.kind.value,
        len(violation.path),
        len(violation.cycle),
        states,
    )


def first_witnesses(graph: StateGraph[State, Action]) -> dict[str, int]:
    """Return after how many actions each event has happened at the earliest, by event."""
    first: dict[int, int] = {}
    for edge, events in enumerate(graph.events_of):
        first.setdefault(events, edge)
    witnesses: dict[str, int] = {}
    for events, edge in sorted(first.items(), key=lambda item: item[1]):
        length = len(graph.path_to(graph.sources[edge])) + 1
        for event in graph.events[events]:
            witnesses[event] = min(witnesses.get(event, length), length)
    return dict(sorted(witnesses.items()))


class _Seen:
    """What each action changed, and what it led to, over all transitions."""

    def __init__(self) -> None:
        self.changes: defaultdict[str, set[str]] = defaultdict(set)
        self.told: defaultdict[str, set[str]] = defaultdict(set)

    def watcher(self) -> StepInvariant[State, Action]:
        """Return a step invariant that never fails and sees everything."""
        return StepInvariant("", "seen", "Every transition is seen.", "", self._see)

    def _see(
        self, before: State, action: Action, after: State, events: tuple[str, ...]
    ) -> str | None:
        changes = self.changes[action.name]
        for field in _FIELDS:
            if field not in changes:
                old, new = getattr(before, field), getattr(after, field)
                if old is not new and old != new:
                    changes.add(field)
        self.told[action.name].update(events)
        return None


_FIELDS = tuple(
    field.name for field in attrs.fields(State) if field.name not in ("failure", "next_job")
)


def load(path: Path) -> Measured:
    """Return committed figures. Raises OSError or a cattrs error if they cannot be read."""
    return cattrs.structure(json.loads(path.read_text(encoding="utf-8")), Measured)


def dump(measured: Measured) -> str:
    """Return figures as text, one scope or rule a line."""
    parts = []
    for kind, figures in (("scopes", measured.scopes), ("rules", measured.rules)):
        rows = [
            f"  {json.dumps(name)}: {json.dumps(attrs.asdict(each))}"
            for name, each in figures.items()
        ]
        parts.append(f' "{kind}": {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"
