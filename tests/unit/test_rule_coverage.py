"""Coverage of the rules: probes see each branch, and what is not reached has its reason."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from cowtail.spec.probes import PROBES, Branch, instrumented, probed
from cowtail.spec.rule_coverage import Coverage, Unexplained, explained, page
from cowtail.spec.unreached_reasons import REASONS, Place, Reason

ROOT = Path(__file__).parents[2]
SOURCE = '''
def weigh(x, scale=None):
    """Documented."""
    for part in x:
        if part > 2:
            return "heavy" if scale else "some"
    while scale:
        scale = None
    match x:
        case []:
            return "empty"
        case _:
            pass
    try:
        return x[0]
    except TypeError:
        return "odd"
'''


def run(*calls: tuple[object, ...]) -> list[tuple[str, str]]:
    """Return the branches of ``SOURCE`` that are not taken by the calls."""
    tree, branches = instrumented(SOURCE, "module", 0)
    reached = bytearray(len(branches))
    names: dict[str, object] = {PROBES: reached}
    exec(compile(tree, "module", "exec"), names)
    for arguments in calls:
        names["weigh"](*arguments)  # type: ignore[operator]
    return [(b.text, b.outcome) for b, mark in zip(branches, reached, strict=True) if not mark]


def test_every_branch_has_a_probe_and_a_run_leaves_out_what_it_does_not_take() -> None:
    assert run(([1],)) == [
        ("if part > 2:", "true"),
        ("'heavy' if scale else 'some'", "true"),
        ("'heavy' if scale else 'some'", "false"),
        ("while scale:", "entered"),
        ("case []:", "matched"),
        ("except TypeError:", "caught"),
    ]
    everything = (([1],), ([3],), ([3], 1), ([], 1), ({1},))
    assert run(*everything) == []


def test_instrumented_code_keeps_docstrings_and_results() -> None:
    tree, _ = instrumented(SOURCE, "module", 0)
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    assert ast.get_docstring(function) == "Documented."


def test_a_package_that_is_imported_already_is_refused() -> None:
    with pytest.raises(RuntimeError, match="use a fresh process"), probed("cowtail.spec"):
        pass


def branch(text: str, outcome: str = "true", within: int | None = None) -> Branch:
    return Branch("models.m", "m.f", text, outcome, 1, within)


def test_what_follows_from_an_unreached_branch_is_left_out() -> None:
    branches = (branch("def f():", "called"), branch("if a:", within=0), branch("if b:", within=1))
    assert Coverage(branches, (True, False, False)).unreached() == [branches[1]]


def test_an_unreached_branch_without_a_reason_is_an_error() -> None:
    with pytest.raises(Unexplained, match="'if b:' is never true: no reason"):
        explained(
            [branch("if a:"), branch("if b:")], [Reason("why", (Place("m.f", "if a:", "true"),))]
        )


def test_a_reason_for_a_branch_that_is_reached_is_an_error() -> None:
    with pytest.raises(Unexplained, match="'if a:' true: a reason, but no such"):
        explained([], [Reason("why", (Place("m.f", "if a:", "true"),))])


def test_the_page_names_each_unreached_branch_below_its_reason() -> None:
    branches = (branch("def f():", "called"), branch("if a:", within=0))
    text = page(
        Coverage(branches, (True, False)), [Reason("Why not.", (Place("m.*", "if a:", "true"),))]
    )
    assert "| `m` | 1 of 1 | 0 of 1 |" in text
    assert "**Why not.**\n\n- `m.f`: `if a:` never true" in text


def test_every_reason_names_a_decision_that_the_rules_have() -> None:
    known = []
    for path in sorted((ROOT / "models").glob("*.py")):
        known += instrumented(path.read_text(), f"cowtail.models.{path.stem}", 0)[1]
    lost = [
        place
        for reason in REASONS
        for place in reason.places
        if not any(place.names(each) for each in known)
    ]
    assert not lost


def test_probes_are_in_the_model_of_a_fresh_process() -> None:
    code = (
        "from cowtail.spec.probes import probed\n"
        "with probed('cowtail.models') as probes:\n"
        "    from cowtail.spec.explorer import explore\n"
        "    from cowtail.spec.machine import LifecycleMachine\n"
        "    from cowtail.spec.scopes import SCOPES\n"
        "explore(LifecycleMachine(SCOPES['base_connector']))\n"
        "print(len(probes.branches) > sum(probes.reached) > 200)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
