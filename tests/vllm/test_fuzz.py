"""Fuzzing real vLLM: it finds nothing new, repeats exactly, and reduces what is planted."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.episodes import replay
from cowtail.impl.vllm_engine.failures import Failure, attempt
from cowtail.impl.vllm_engine.fuzz import fuzz, run_numbered_episode
from cowtail.impl.vllm_engine.reduction import reduce_failure
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.actions import Action

pytestmark = pytest.mark.vllm


def test_a_seeded_run_finds_nothing_that_is_not_known() -> None:
    report = fuzz(seed=1, episodes=150, reduce=False)
    assert not report.new, report.new
    for event in (
        "tails handed off at finish",
        "tails handed off by CoW",
        "pins outliving requests",
        "preemptions with a job in flight",
        "failed puts",
        "failed gets",
        "loads done",
    ):
        assert report.statistics[event] > 0, event


def test_an_episode_is_the_same_every_time() -> None:
    first, second = (run_numbered_episode(seed=7, number=3)[0] for _ in range(2))
    assert first.actions == second.actions
    assert first.statistics == second.statistics
    assert first.store.values == second.store.values


def test_an_episode_is_replayed_from_its_actions() -> None:
    session, finding = run_numbered_episode(seed=7, number=5)
    assert finding is None
    again = replay(session.config, session.actions[: session.drain_began])
    assert again.actions == session.actions
    assert again.store.values == session.store.values


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "import json; from cowtail.impl.vllm_engine.fuzz import fuzz;"
        "print(json.dumps(fuzz(seed=5, episodes=8).statistics))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(run.stdout.splitlines()[-1]) == fuzz(seed=5, episodes=8).statistics


def test_a_run_without_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="a run has a limit"):
        fuzz(seed=1)


def release_after_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a defect: a connector that takes one rank's report for everybody's."""
    scheduler = surface().store_scheduler.MooncakeStoreScheduler
    original = scheduler.update_connector_output

    def release(self: Any, output: Any) -> None:
        metadata = output.kv_connector_worker_meta
        if metadata is not None:
            for job in metadata.completed_saves:
                if job in self._pinned_saves:
                    metadata.completed_saves[job] = self._pinned_saves[job][1]
        original(self, output)

    monkeypatch.setattr(scheduler, "update_connector_output", release)


def failure_of(config: EngineConfig, actions: Sequence[Action]) -> Failure | None:
    return attempt(config, actions).failure


def test_a_planted_defect_is_one_finding_and_no_action_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release_after_the_first_rank(monkeypatch)
    report = fuzz(seed=2, episodes=60)
    assert report.failed > 20
    (finding,) = report.new
    assert finding.times > 20
    assert finding.minimal
    failure = finding.failure
    assert failure.identifier == "S9"
    assert len(failure.actions) == 6
    assert len(failure.config.requests) == 1
    again = failure_of(failure.config, failure.actions)
    assert again is not None
    assert again.reason == failure.reason
    for index in range(len(failure.actions)):
        fewer = failure.actions[:index] + failure.actions[index + 1 :]
        other = failure_of(failure.config, fewer)
        assert other is None or other.signature != failure.signature, failure.actions[index]


def test_a_reduction_stops_at_its_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    release_after_the_first_rank(monkeypatch)
    findings = fuzz(seed=2, episodes=10, max_carried_out=20).new
    assert findings
    for finding in findings:
        assert not finding.minimal
        assert "bound of 20 actions" in finding.why_not_minimal


def test_what_cannot_be_repeated_is_not_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as planted:
        release_after_the_first_rank(planted)
        finding = fuzz(seed=2, episodes=10, reduce=False).new[0]
    reduced = reduce_failure(finding.found)
    assert reduced.failure == finding.found
    assert not reduced.minimal
    assert "does not repeat it" in reduced.why


def test_an_interrupted_run_returns_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    release_after_the_first_rank(monkeypatch)

    def interrupt(done: int, failed: int) -> None:
        if failed == 3:
            raise KeyboardInterrupt

    report = fuzz(seed=2, episodes=1000, on_episode=interrupt)
    assert report.interrupted
    assert report.failed == 3
    assert sum(finding.times for finding in report.findings) == 3
    assert all("not reduced" in finding.why_not_minimal for finding in report.findings)
