"""``cowtail fuzz --target vllm``: an honest verdict, and what a new finding leaves behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from cowtail.cli import app, common
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.fuzz import REQUIRED_EVENTS, run_numbered_episode
from cowtail.impl.vllm_engine.surface import surface

pytestmark = pytest.mark.vllm


def fuzz(out: Path, *words: str) -> typer.testing.Result:
    words = ("fuzz", "--target", "vllm", "--quiet", "--out", str(out), *words)
    return typer.testing.CliRunner().invoke(app, words)


def test_a_run_that_saw_too_little_is_undetermined_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    result = fuzz(tmp_path, "--examples", "1")
    assert result.exit_code == common.UNDETERMINED, result.output
    report = json.loads((tmp_path / "fuzz-vllm.json").read_text())
    assert report["verdict"] == "undetermined"
    missing = [event for event in REQUIRED_EVENTS if not report["statistics"].get(event)]
    assert missing
    assert report["never_happened"] == missing
    assert f"never happened: {', '.join(missing)}\n" in result.stdout
    assert "too little happened" in result.stdout.splitlines()[-1]


def test_a_run_that_saw_everything_holds(tmp_path: Path) -> None:
    result = fuzz(tmp_path, "--examples", "150")
    assert result.exit_code == common.HOLDS, result.output
    assert "never happened" not in result.stdout


def keep_every_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a defect: a connector that hears of no report."""
    scheduler = surface().store_scheduler.MooncakeStoreScheduler
    monkeypatch.setattr(scheduler, "update_connector_output", lambda self, output: None)


def test_a_new_finding_leaves_its_actions_a_failing_test_and_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as planted:
        keep_every_pin(planted)
        result = fuzz(tmp_path, "--examples", "20", "--seed", "2")
        assert result.exit_code == common.VIOLATED, result.output
        finding = json.loads((tmp_path / "fuzz-vllm.json").read_text())["finding"]
        seed, episode = finding["seed"], finding["episode"]
        stem = f"vllm_seed{seed}_episode{episode}"
        assert json.loads((tmp_path / f"{stem}_reduced.json").read_text()) == finding
        assert finding["minimal"]
        assert finding["actions"]
        assert all(step["action"] for step in finding["actions"])
        namespace: dict[str, Any] = {}
        exec((tmp_path / f"test_{stem}.py").read_text(), namespace)
        (test,) = (value for name, value in namespace.items() if name.startswith("test_"))
        with pytest.raises(Violation, match=f"^{finding['property']}: "):
            test()
        assert f"print(run({seed}, {episode})[1])" in result.stdout
        again = run_numbered_episode(seed, episode)[1]
        assert again is not None
        assert again.identifier == finding["property"]
    test()
