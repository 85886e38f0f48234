"""One small regression test for each finding: to be read, pasted into a pull request, and run."""

from __future__ import annotations

import re
import textwrap

import attrs

from cowtail.harness.lockstep import Divergence
from cowtail.harness.notation import format_actions, format_scope
from cowtail.models.actions import Action
from cowtail.models.scope import Scope
from cowtail.spec.traces import Trace

MAX_LINES = 30
"""A regression test aims not to be longer; a run of more than about 80 actions may be."""

MAX_WIDTH = 100
"""Columns of a line."""

ENVIRONMENT_VARIABLE = "COWTAIL_FAULTS"
"""Overrides the faults that a regression test starts its target with; empty for none."""

_TEMPLATE = '''"""{summary}

{found_by}
{faults_line}
"""

import os

from cowtail.harness import {target}, assert_lockstep, parse_actions
{imports}

FAULTS = tuple(os.environ.get("{variable}", "{faults}").split())
SCOPE = {scope}
ACTIONS = """
{actions}
"""


def test_{name}() -> None:
    assert_lockstep(SCOPE, parse_actions(ACTIONS), {target}(faults=FAULTS))
'''

_SCOPE_NAMES = (
    "BASE",
    "STORE",
    "LoadPolicy",
    "Lookup",
    "Policy",
    "RequestSpec",
    "Role",
    "Scope",
    "full_attention",
    "mamba",
    "peer",
    "sliding_window",
)
"""What the expression of a scope may name, in the order in which imports are sorted."""

_TARGETS = {"torch": "TorchTarget", "model": "ModelTarget"}


@attrs.frozen
class Regression:
    """A finding in the two forms in which it is kept: a trace, and a test that stands alone."""

    trace: Trace
    test: str


def regression(
    scope: Scope,
    actions: tuple[Action, ...],
    divergence: Divergence,
    *,
    target: str,
    faults: tuple[str, ...],
    found_by: str,
    seed: int | None = None,
) -> Regression:
    """Return the trace and the test for a reduced finding.

    ``target`` is the target's name; ``found_by`` the command that repeats the finding.
    Raises ValueError for a target that a test cannot start by itself.
    """
    if target not in _TARGETS:
        raise ValueError(f"target {target!r}: use one of {', '.join(_TARGETS)}")
    summary = f"The {target} target leaves the model at {divergence.action}: {divergence.field}."
    note = f"{summary} Found by `{found_by}`."
    scope_text = format_scope(scope)
    test = _TEMPLATE.format(
        summary=summary,
        found_by=_filled(f"Found by `{found_by}`."),
        faults_line=_filled(_faults_line(faults)),
        target=_TARGETS[target],
        imports="\n".join(imports_of(scope_text)),
        variable=ENVIRONMENT_VARIABLE,
        faults=" ".join(faults),
        scope=scope_text,
        actions=format_actions(actions),
        name=_test_name(divergence, faults),
    )
    trace = Trace(scope, actions, seed=seed, target=target, faults=faults, note=note)
    return Regression(trace, test)


def _filled(text: str) -> str:
    return textwrap.fill(text, width=96, break_long_words=False, break_on_hyphens=False)


def _faults_line(faults: tuple[str, ...]) -> str:
    if not faults:
        return "It passes once the target is mended."
    return (
        f"Fails with the fault{'s' * (len(faults) > 1)} {', '.join(faults)}; "
        f"`{ENVIRONMENT_VARIABLE}= pytest FILE` runs it without, and passes."
    )


def imports_of(scope_text: str) -> list[str]:
    """Return the lines that import what the scope's expression names; prompts name nothing."""
    code = re.sub(r"'[^']*'", "", scope_text)
    outcomes = ["JobOutcome"] if "JobOutcome." in code else []
    names = [name for name in _SCOPE_NAMES if re.search(rf"\b{name}\b", code)]
    behaviours = ["Behaviours"] if "Behaviours(" in code else []
    wanted = {"actions": outcomes, "behaviours": behaviours, "scope": names}
    lines = [
        f"from cowtail.models.{module} import {', '.join(each)}"
        for module, each in wanted.items()
        if each
    ]
    return [_broken(line) for line in lines]


def _broken(line: str) -> str:
    """Return an import of many names in parentheses."""
    if len(line) <= MAX_WIDTH:
        return line
    head, _, names = line.partition(" import ")
    return f"{head} import (\n" + "".join(f"    {n},\n" for n in names.split(", ")) + ")"


def _test_name(divergence: Divergence, faults: tuple[str, ...]) -> str:
    words = "_".join((*faults, divergence.action.name, divergence.field))
    return re.sub(r"\W+", "_", words).lower()
