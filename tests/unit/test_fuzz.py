"""Fuzzing: the same seed is the same run, verdicts say no more than what happened."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import attrs
import pytest

from cowtail.harness import ModelTarget, run
from cowtail.harness.fuzz import (
    LONG_RUN,
    REQUIRED_ACTIONS,
    REQUIRED_EVENTS,
    SELDOM,
    FuzzReport,
    fuzz,
)
from cowtail.harness.reducer import diverges
from cowtail.harness.scope_strategies import (
    LARGE,
    PROFILES,
    Feature,
    Profile,
    draw_scope,
)
from cowtail.models.actions import JobOutcome
from cowtail.models.scope import STORE, Lookup, Policy, Scope
from cowtail.spec.exploration import Verdict
from cowtail.spec.sometimes import SOMETIMES

FAULTY = ModelTarget(("job_not_pinned",))


def _without_time(report: FuzzReport) -> FuzzReport:
    return attrs.evolve(report, seconds=0.0)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_drawn_scopes_fit_together_within_their_sizes(profile: Profile) -> None:
    for seed in range(300):
        scope = draw_scope(random.Random(seed), profile)
        assert len(scope.requests) in profile.requests
        assert max(len(spec.prompt) for spec in scope.requests) <= profile.longest_prompt + 2
        assert max(map(scope.blocks_for, scope.requests)) < scope.num_blocks <= profile.max_blocks


def test_every_feature_is_drawn_in_some_scopes_and_left_out_of_others() -> None:
    drawn = [_features(draw_scope(random.Random(seed))) for seed in range(300)]
    assert set.union(*drawn) == set(Feature)
    assert not set.intersection(*drawn)


def test_large_scopes_have_large_pools_and_long_prompts() -> None:
    drawn = [draw_scope(random.Random(seed), LARGE) for seed in range(300)]
    assert max(scope.num_blocks for scope in drawn) == LARGE.max_blocks
    assert max(len(spec.prompt) for scope in drawn for spec in scope.requests) > 190
    assert {(len(scope.requests), scope.num_ranks) for scope in drawn} == {(4, 3)}


def _features(scope: Scope) -> set[Feature]:
    """Return the features that a scope shows."""
    shows = {
        Feature.WINDOW: any(group.window for group in scope.groups),
        Feature.EAGLE: any(group.eagle for group in scope.groups),
        Feature.MORE_GROUPS: len(scope.groups) > 2,
        Feature.SPECULATION: scope.speculative_tokens > 0,
        Feature.RETENTION: scope.retention_interval is not None,
        Feature.JUNCTIONS: scope.shared_prefix_checkpoints,
        Feature.INTERNAL: scope.internal_checkpoints,
        Feature.POLICY: scope.policy is not Policy.ANY,
        Feature.DEFERRED_FREES: scope.defer_frees,
        Feature.LOOKUP: scope.lookup is not Lookup.OFF,
        Feature.FAILED_LOADS: scope.max_failed_loads > 0,
        Feature.EVICTION: scope.max_evictions > 0,
        Feature.FOREIGN: bool(scope.foreign),
        Feature.CHILDREN: scope.children != (STORE,),
        Feature.PUT_FAILURES: scope.put_failures != (JobOutcome.FAILED,),
        Feature.RESETS: scope.max_resets > 0,
    }
    return {feature for feature, shown in shows.items() if shown}


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
    report = FuzzReport("model", (), 1, "small", 1, 1, 1, 0, 0.0, counts, {}, None)
    assert report.verdict is Verdict.HOLDS
    finding = fuzz(FAULTY, seed=1, max_examples=100).finding
    assert attrs.evolve(report, finding=finding).verdict is Verdict.VIOLATED


def test_what_is_seldom_is_asked_of_long_runs_only() -> None:
    counts = dict.fromkeys((*REQUIRED_ACTIONS, *REQUIRED_EVENTS), 1)
    short = FuzzReport("model", (), 1, "small", 1, 1, 1, 0, 0.0, counts, {}, None)
    assert (short.verdict, short.missing, short.seldom) == (Verdict.HOLDS, (), SELDOM)
    long = attrs.evolve(short, actions=LONG_RUN)
    assert (long.verdict, long.missing, long.seldom) == (Verdict.UNDETERMINED, SELDOM, ())
    everything = {**counts, **dict.fromkeys(SELDOM, 1)}
    assert attrs.evolve(long, event_counts=everything).verdict is Verdict.HOLDS


def test_what_is_seldom_is_something_that_can_happen() -> None:
    assert set(SELDOM) <= {each.event for each in SOMETIMES}


def test_a_run_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="no bound"):
        fuzz(ModelTarget(), seed=1)
