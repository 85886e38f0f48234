"""``cowtail fuzz --target vllm``: an honest verdict, and what a new finding leaves behind."""

import json
from pathlib import Path

import pytest
import typer.testing

from cowtail.cli import app, common
from cowtail.cli.fuzz_vllm import WRITTEN
from cowtail.impl.vllm_engine.fuzz import REQUIRED_EVENTS
from cowtail.impl.vllm_engine.surface import surface

pytestmark = pytest.mark.vllm


def cowtail(*words: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, words)


def fuzz(out: Path, *words: str) -> typer.testing.Result:
    return cowtail("fuzz", "--target", "vllm", "--quiet", "--out", str(out), *words)


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


def test_a_run_that_saw_everything_holds_but_for_what_is_known(tmp_path: Path) -> None:
    result = fuzz(tmp_path, "--examples", "150", "--known", "ignore", "--no-others")
    assert result.exit_code == common.HOLDS, result.output
    assert "never happened" not in result.stdout
    assert "configurations: " in result.stdout


def keep_every_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a defect: a connector that hears of no report."""
    scheduler = surface().store_scheduler.MooncakeStoreScheduler
    monkeypatch.setattr(scheduler, "update_connector_output", lambda self, output: None)


def test_a_new_finding_leaves_a_folder_with_a_test_that_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "findings" / "007" / "report.md"
    stale.parent.mkdir(parents=True)
    stale.write_text("of an earlier run")
    with monkeypatch.context() as planted:
        keep_every_pin(planted)
        result = fuzz(tmp_path, "--examples", "20", "--seed", "2", "--no-others")
        assert result.exit_code == common.VIOLATED, result.output
        report = json.loads((tmp_path / "fuzz-vllm.json").read_text())
        folder = tmp_path / "findings" / "001"
        finding = json.loads((folder / "finding.json").read_text())
        assert finding == report["findings"][0]
        assert (finding["property"], finding["known"], finding["minimal"]) == ("S9", None, True)
        assert finding["test"] == "test_finding.py"
        names = {path.name for path in folder.iterdir()}
        assert names == set(WRITTEN)
        assert not stale.exists()
        assert "001" in result.stdout
        assert "NEW" in result.stdout
        replayed = cowtail("replay", str(folder / "trace.jsonl"))
        assert replayed.exit_code == common.VIOLATED
        assert finding["reason"] in replayed.stdout
        reduced = cowtail("reduce", str(folder / "trace.jsonl"), "--out", str(tmp_path / "again"))
        assert reduced.exit_code == common.VIOLATED
        assert (tmp_path / "again" / "trace.jsonl").read_text().splitlines()[1:] == (
            folder / "trace.jsonl"
        ).read_text().splitlines()[1:]
    replayed = cowtail("replay", str(folder / "trace.jsonl"))
    assert replayed.exit_code == common.HOLDS
    reduced = cowtail("reduce", str(folder / "trace.jsonl"), "--out", str(tmp_path / "again"))
    assert reduced.exit_code == common.USAGE
    assert "there is nothing to reduce" in reduced.stderr


def test_a_release_that_is_not_here_is_one_line(tmp_path: Path) -> None:
    result = fuzz(tmp_path, "--release", "0.1.0")
    assert result.exit_code == common.USAGE
    assert "0.1.0" in result.stderr
    assert result.stderr.count("\n") == 1
