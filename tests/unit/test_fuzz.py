"""Fuzzing: the same seed is the same run, verdicts say no more than what happened."""

from __future__ import annotations

import os
import subprocess
import sys

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cowtail.harness import ModelTarget, run
from cowtail.harness.fuzz import REQUIRED_ACTIONS, REQUIRED_EVENTS, FuzzReport, fuzz
from cowtail.harness.reducer import diverges
from cowtail.harness.scope_strategies import MAX_PROMPT, MAX_REQUESTS, scopes
from cowtail.models.scope import Scope
from cowtail.spec.exploration import Verdict

FAULTY = ModelTarget(("job_not_pinned",))


def _without_time(report: FuzzReport) -> FuzzReport:
    return attrs.evolve(report, seconds=0.0)


@given(scopes())
@settings(
    max_examples=60,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
def test_drawn_scopes_fit_together_within_their_sizes(scope: Scope) -> None:
    assert 1 <= len(scope.requests) <= MAX_REQUESTS
    assert max(len(spec.prompt) for spec in scope.requests) <= MAX_PROMPT + 2
    assert scope.num_blocks > max(map(scope.blocks_for, scope.requests))


def test_the_same_seed_is_the_same_run() -> None:
    first = fuzz(FAULTY, seed=5, max_examples=4)
    assert _without_time(first) == _without_time(fuzz(FAULTY, seed=5, max_examples=4))
    assert _without_time(first) != _without_time(fuzz(FAULTY, seed=6, max_examples=4))


COUNTS = """
from cowtail.harness import ModelTarget
from cowtail.harness.fuzz import fuzz
report = fuzz(ModelTarget(("offloaded_past_the_boundary",)), seed=2, max_examples=3)
print(report.examples, report.lives, report.action_counts, report.event_counts, report.finding)
"""

REDUCTION = """
from cowtail.harness import ModelTarget
from cowtail.harness.fuzz import fuzz
from cowtail.harness.reducer import reduce
target = ModelTarget(("retired_jobs_forgotten",))
found = fuzz(target, seed=2, max_examples=100).finding
print(reduce(found.scope, found.actions, target))
"""


def _output(script: str, hash_seed: str = "0") -> str:
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_run_and_its_reduction_are_the_same_under_any_hash_seed() -> None:
    script = COUNTS + REDUCTION
    output = _output(script, hash_seed="1")
    assert output == _output(script, hash_seed="77")
    assert "Reduced(" in output


def test_a_run_does_not_depend_on_which_modules_are_loaded() -> None:
    assert _output(COUNTS) == _output("import cowtail.cli, json.tool, turtledemo\n" + COUNTS)


def test_more_examples_begin_with_the_same_ones() -> None:
    found = fuzz(FAULTY, seed=5, max_examples=400).finding
    timed = fuzz(FAULTY, seed=5, max_seconds=60).finding
    assert found == timed


def test_a_finding_is_a_run_that_diverges_at_its_last_action() -> None:
    finding = fuzz(FAULTY, seed=1, max_examples=100).finding
    assert finding is not None
    divergence = diverges(finding.scope, finding.actions, FAULTY)
    assert divergence is not None
    assert divergence.index == len(finding.actions) - 1
    assert run(finding.scope, finding.actions[:-1], FAULTY).divergence is None


def test_too_short_a_run_is_undetermined_and_names_what_never_happened() -> None:
    report = fuzz(ModelTarget(("offloaded_past_the_boundary",)), seed=1, max_examples=1)
    assert report.finding is None
    assert report.verdict is Verdict.UNDETERMINED
    assert set(report.missing) <= {*REQUIRED_ACTIONS, *REQUIRED_EVENTS}
    assert report.missing


def test_verdicts_need_everything_required_and_no_finding() -> None:
    counts = dict.fromkeys((*REQUIRED_ACTIONS, *REQUIRED_EVENTS), 1)
    report = FuzzReport("model", (), 1, 1, 1, 1, 0.0, counts, {}, None)
    assert report.verdict is Verdict.HOLDS
    finding = fuzz(FAULTY, seed=1, max_examples=100).finding
    assert attrs.evolve(report, finding=finding).verdict is Verdict.VIOLATED


def test_a_run_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="no bound"):
        fuzz(ModelTarget(), seed=1)
