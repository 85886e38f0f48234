"""The kill matrix: every fault of the engine and every broken rule of the model must be caught.

A fault is looked for by a tour of the scope that it names, bounded, then by fuzzing, then by
tours of the other scopes; what is found is reduced. A broken rule is looked for by the explorer
in the scope that it names. A property that kills nothing, and a fault that survives, is a gap
in the harness.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import attrs

from cowtail.harness.fuzz import fuzz
from cowtail.harness.lockstep import Finding
from cowtail.harness.reducer import shortest_known
from cowtail.harness.target import TorchTarget
from cowtail.harness.tours import tour
from cowtail.models.scope import Scope
from cowtail.spec.broken_rules import BROKEN_RULES, BrokenRule, broken_rule
from cowtail.spec.checks import check_scope, identifiers
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.liveness_properties import LIVENESS
from cowtail.spec.scopes import SCOPES, scope_named
from cowtail.spec.step_invariants import STEP_PROPERTIES
from cowtail.spec.traces import Trace

TOUR_STEPS = 4_000
"""Steps of one scope's tour that are tried on a fault before the next scope."""

FUZZ_SEED = 1
FUZZ_EXAMPLES = 150
"""Examples that are tried on a fault which the tour of its own scope has not caught."""


class Fault(Protocol):
    """What the matrix needs to know of an engine's fault."""

    @property
    def name(self) -> str: ...

    @property
    def case(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def sentence(self) -> str: ...

    @property
    def scope_hint(self) -> str: ...


@attrs.frozen
class Kill:
    """How one fault was caught, or that it was not.

    ``kind`` is "engine fault" or "broken rule"; ``source`` the public report or requirement that
    it comes from; ``by`` the property or divergence; ``where`` the scope or "fuzzing";
    ``actions`` how many were taken until it was found (transitions, for a broken rule);
    ``trace`` the shortest trace; ``offends`` the property's identifier, where it is one.
    ``seconds`` is reported only.
    """

    name: str
    kind: str
    case: str
    source: str
    sentence: str
    killed: bool
    by: str
    where: str
    actions: int
    seconds: float
    trace: Trace | None = None
    offends: str = ""

    @property
    def trace_length(self) -> int:
        """Actions of the shortest trace, 0 if there is none."""
        return 0 if self.trace is None else len(self.trace.actions)


@attrs.frozen
class KillMatrix:
    """Every fault with what killed it."""

    kills: tuple[Kill, ...]

    @property
    def survivors(self) -> tuple[str, ...]:
        """The faults that nothing caught."""
        return tuple(kill.name for kill in self.kills if not kill.killed)

    @property
    def unearned(self) -> tuple[str, ...]:
        """The properties that caught nothing: each is a gap, in a matrix of every fault."""
        caught = {kill.offends for kill in self.kills}
        return tuple(name for name in identifiers() if name not in caught)

    def as_json(self) -> list[dict[str, object]]:
        """Return one object for each fault, in plain JSON types."""
        return [
            {
                "id": kill.name,
                "kind": kill.kind,
                "case": kill.case,
                "source": kill.source,
                "sentence": kill.sentence,
                "killed": kill.killed,
                "killed_by": kill.by,
                "offends": kill.offends,
                "where": kill.where,
                "actions": kill.actions,
                "shortest_trace": kill.trace_length,
                "seconds": round(kill.seconds, 2),
            }
            for kill in self.kills
        ]


def kill_engine_fault(fault: Fault, device: str = "cpu") -> Kill:
    """Start the torch engine with a fault and look for a divergence until the bounds are spent."""
    started = time.perf_counter()
    target = TorchTarget((fault.name,), device)
    spent, where = 0, ""
    finding: Finding | None = None
    for place, search in _searches(fault, target):
        actions, finding = search()
        spent, where = spent + actions, place
        if finding is not None:
            break
    found = None if finding is None else shortest_known(finding.scope, finding.actions, target)
    return Kill(
        fault.name,
        "engine fault",
        fault.case,
        fault.source,
        fault.sentence,
        killed=found is not None,
        by="" if found is None else found.divergence.killed_by,
        where="" if found is None else where,
        actions=spent,
        seconds=time.perf_counter() - started,
        trace=None
        if found is None
        else Trace(found.scope, found.actions, target=target.name, faults=target.faults),
    )


_Search = Callable[[], tuple[int, Finding | None]]


def _searches(fault: Fault, target: TorchTarget) -> Iterator[tuple[str, _Search]]:
    """Yield where to look, what is most likely to find it first."""

    def toured(scope: Scope) -> tuple[int, Finding | None]:
        report = tour(scope, target, max_steps=TOUR_STEPS)
        return report.steps, report.finding

    def fuzzed() -> tuple[int, Finding | None]:
        report = fuzz(target, seed=FUZZ_SEED, max_examples=FUZZ_EXAMPLES)
        return report.actions, report.finding

    if fault.scope_hint in SCOPES:
        yield fault.scope_hint, functools.partial(toured, SCOPES[fault.scope_hint])
    yield "fuzzing", fuzzed
    for name, scope in SCOPES.items():
        if name != fault.scope_hint:
            yield name, functools.partial(toured, scope)


_SOURCES = {
    **{each.identifier: each.source for each in PROPERTIES},
    **{each.identifier: each.source for each in STEP_PROPERTIES},
    **{each.identifier: each.source for each in LIVENESS},
}


def kill_broken_rule(rule: BrokenRule) -> Kill:
    """Explore the scope that a broken rule names, with the rule broken."""
    scope = scope_named(rule.scope)
    with broken_rule(rule.name):
        report = check_scope(scope)
    violation = report.violation
    return Kill(
        rule.name,
        "broken rule",
        rule.case,
        rule.case or _SOURCES.get(rule.violates, ""),
        rule.sentence,
        killed=violation is not None,
        by="" if violation is None else f"{violation.kind} {violation.identifier}",
        where=scope.name,
        actions=report.exploration.edges,
        seconds=report.exploration.seconds,
        trace=None
        if violation is None
        else Trace(scope, (*violation.path, *violation.cycle), target="model", faults=(rule.name,)),
        offends="" if violation is None else violation.identifier,
    )


def kill_matrix(
    faults: Iterable[Fault],
    rules: Iterable[BrokenRule] = tuple(BROKEN_RULES.values()),
    *,
    device: str = "cpu",
    progress: Callable[[Kill], None] | None = None,
) -> KillMatrix:
    """Try every fault of the engine, then every broken rule of the model."""
    kills = []
    for fault in faults:
        kills.append(kill_engine_fault(fault, device))
        if progress is not None:
            progress(kills[-1])
    for rule in rules:
        kills.append(kill_broken_rule(rule))
        if progress is not None:
            progress(kills[-1])
    return KillMatrix(tuple(kills))
