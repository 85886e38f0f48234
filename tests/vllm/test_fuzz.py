"""Fuzzing real vLLM: it finds nothing new, repeats exactly, and reduces what is planted."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.episodes import MAX_ACTIONS, replay
from cowtail.impl.vllm_engine.fuzz import Report, fuzz, minimize, run_numbered_episode
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.actions import Action

pytestmark = pytest.mark.vllm


def test_a_seeded_run_finds_nothing_that_is_not_known() -> None:
    report = fuzz(seed=1, episodes=150)
    assert report.finding is None, report.finding
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


def violated(config: EngineConfig, actions: Sequence[Action]) -> str | None:
    """Return the identifier of the property that ``actions`` violate; None if none is."""
    try:
        replay(config, actions)
    except Violation as violation:
        return violation.identifier
    return None


def found(monkeypatch: pytest.MonkeyPatch, *, reduce: bool) -> Report:
    release_after_the_first_rank(monkeypatch)
    return fuzz(seed=2, episodes=20, reduce=reduce)


def test_a_planted_defect_is_found_and_no_action_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finding = found(monkeypatch, reduce=True).finding
    assert finding is not None
    assert finding.identifier == "S9"
    assert finding.minimal
    assert len(finding.actions) <= 10 < MAX_ACTIONS
    with pytest.raises(Violation) as caught:
        replay(finding.config, finding.actions)
    assert caught.value.reason == finding.reason
    for index in range(len(finding.actions)):
        fewer = finding.actions[:index] + finding.actions[index + 1 :]
        assert violated(finding.config, fewer) != "S9", f"{finding.actions[index]} is not needed"


def test_what_cannot_be_repeated_is_not_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = found(monkeypatch, reduce=False).finding
    assert finding is not None
    monkeypatch.undo()
    assert minimize(finding) == finding
    assert not finding.minimal
