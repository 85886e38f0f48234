"""Every clause of every property refuses something: a state, or a transition, broken by hand.

A clause is a ``return`` of a reason in a property or in what it asks. Those of whole graphs, the
liveness properties, have one each, which a broken rule violates (``test_spec.py``).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from unittest import mock

import attrs
import pytest

from cowtail import spec
from cowtail.models.scope import Scope
from cowtail.spec.broken_states import BROKEN_STATES, BROKEN_STEPS, BrokenState, BrokenStep
from cowtail.spec.broken_states.case import Step, states, steps
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.scopes import scope_named
from cowtail.spec.step_invariants import STEP_PROPERTIES

SPEC = Path(spec.__file__).resolve().parent
JUDGES = (
    *sorted((SPEC / "invariants").glob("*.py")),
    *sorted((SPEC / "step_invariants").glob("*.py")),
    SPEC / "contents.py",
    SPEC / "supply.py",
)
"""Where reasons are given."""

CASES = (*BROKEN_STATES, *BROKEN_STEPS)


@attrs.frozen
class Clause:
    """A return of a reason: the file, its function, and its lines."""

    file: str
    function: str
    first_line: int
    last_line: int
    text: str


def clauses() -> Iterator[Clause]:
    """Yield every clause: each ``return`` of a reason by a function that may return None."""
    for path in JUDGES:
        for function in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(function, ast.FunctionDef) or function.returns is None:
                continue
            if ast.unparse(function.returns) != "str | None":
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and not _is_none(node.value):
                    last = node.end_lineno or node.lineno
                    text = ast.unparse(node)
                    yield Clause(path.name, function.name, node.lineno, last, text)


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


@contextlib.contextmanager
def returns_seen(seen: set[tuple[str, str, int]]) -> Iterator[None]:
    """Record the file, function and line of every reason that is returned meanwhile."""
    watched = {str(path) for path in JUDGES}

    def see(frame: FrameType, event: str, result: object) -> None:
        if event == "return" and isinstance(result, str):
            path = _resolved(frame.f_code.co_filename)
            if str(path) in watched:
                seen.add((path.name, frame.f_code.co_name, frame.f_lineno))

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(before)


@functools.cache
def _resolved(filename: str) -> Path:
    return Path(filename).resolve()


@functools.cache
def judged(case: BrokenState | BrokenStep) -> tuple[str | None, str | None, frozenset[object]]:
    """Return what the property says before and after the edit, and the clauses that said it."""
    scope = scope_named(case.scope)
    seen: set[tuple[str, str, int]] = set()
    if isinstance(case, BrokenState):
        check = next(p.check for p in PROPERTIES if p.identifier == case.violates)
        state = next(state for state in states(scope) if case.found(state))
        replaced = mock.patch.object(*case.replaced) if case.replaced else contextlib.nullcontext()
        sound = check(scope, state)
        broken = case.edit(state)
        with replaced, returns_seen(seen):
            return sound, check(scope, broken), frozenset(seen)
    judge = _judge_of_steps(scope, case.violates)
    step = next(step for step in steps(scope) if case.found(step))
    sound = judge(step)
    broken_step = case.edit(step)
    with returns_seen(seen):
        reason = judge(broken_step)
    return sound, reason, frozenset(seen)


def _judge_of_steps(scope: Scope, identifier: str) -> Callable[[Step], str | None]:
    check = next(p.check for p in STEP_PROPERTIES if p.identifier == identifier)
    return lambda step: check(scope, step.before, step.action, step.after, step.events)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.violates}: {case.name}")
def test_a_property_refuses(case: BrokenState | BrokenStep) -> None:
    sound, reason, _ = judged(case)
    assert sound is None
    assert reason is not None
    assert case.reason in reason


def test_every_clause_of_every_property_refuses_something() -> None:
    seen = frozenset().union(*(judged(case)[2] for case in CASES))
    never = [
        f"{clause.file}:{clause.first_line} {clause.function}: {clause.text}"
        for clause in clauses()
        if not any(
            (clause.file, clause.function, line) in seen
            for line in range(clause.first_line, clause.last_line + 1)
        )
    ]
    assert not never, "no broken state has these said: add one in spec/broken_states/"


def test_the_clauses_are_those_of_all_properties() -> None:
    judges = {clause.function for clause in clauses()}
    assert judges >= {p.check.__name__ for p in (*PROPERTIES, *STEP_PROPERTIES)}
    assert {case.violates for case in CASES} == {
        p.identifier for p in (*PROPERTIES, *STEP_PROPERTIES)
    }


def test_names_of_cases_are_unique() -> None:
    assert len({(case.violates, case.name) for case in CASES}) == len(CASES)
