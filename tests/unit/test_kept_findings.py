"""Kept findings, their pages and their index are in step; other releases' answers are noted."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer.testing

from cowtail.cli import app, common
from cowtail.harness.findings import other_releases
from cowtail.harness.findings.emitted_test import emitted_test
from cowtail.harness.findings.other_releases import NOT_SHOWN, SHOWN, answers, complete
from cowtail.harness.findings.page import (
    INDEX,
    KEPT,
    facts_of,
    index,
    kept_folders,
    known_of,
    releases_text,
    skeleton,
    with_index,
)
from cowtail.harness.findings.trace import read_vllm_trace
from cowtail.impl.vllm_engine.known import KNOWN_FINDINGS
from cowtail.spec.traces import TraceError

ROOT = Path(__file__).parents[2]
FOLDERS = kept_folders(ROOT)


def test_every_known_finding_has_a_page_and_every_kept_one_is_known() -> None:
    pages = {known.page for known in KNOWN_FINDINGS}
    assert {folder.name for folder in FOLDERS} <= pages
    written = {path.stem for path in (ROOT / INDEX).parent.glob("*.md")} - {"README"}
    assert written == pages
    for folder in FOLDERS:
        page = (ROOT / INDEX).parent / f"{folder.name}.md"
        assert f"{KEPT}/{folder.name}" in page.read_text("utf-8")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_kept_test_is_what_its_trace_says(folder: Path) -> None:
    trace, facts = read_vllm_trace(folder / "trace.jsonl"), facts_of(folder)
    assert (folder / "test_finding.py").read_text("utf-8") == emitted_test(trace)
    assert facts["actions"] == [str(action) for action in trace.actions]
    assert (facts["property"], facts["reason"]) == (trace.property, trace.reason)
    assert facts["minimal"]
    assert facts["releases"][trace.release] == SHOWN


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_fuzzer_knows_a_kept_finding_on_the_releases_that_show_it(folder: Path) -> None:
    facts = facts_of(folder)
    known = known_of(facts)
    assert known is not None
    assert known.page == folder.name
    assert known.consequence == facts["consequence"]
    shown = {release for release, what in facts["releases"].items() if what == SHOWN}
    for each in KNOWN_FINDINGS:
        if each.name == known.name:
            assert set(each.releases) == shown


def test_the_index_is_in_step() -> None:
    page = (ROOT / INDEX).read_text("utf-8")
    assert with_index(page, index(FOLDERS)) == page


def test_an_index_has_a_place() -> None:
    with pytest.raises(ValueError, match="add them where the table goes"):
        with_index("no place", "table")


def test_releases_that_show_it_come_first() -> None:
    assert releases_text({"2": NOT_SHOWN, "1": SHOWN, "3": "not run: why"}) == (
        "1; not 2; 3 not run"
    )
    assert releases_text({"1": NOT_SHOWN}) == "none; not 1"


def test_a_page_is_begun_from_a_folder(tmp_path: Path) -> None:
    folder = FOLDERS[0]
    page = skeleton(folder)
    assert page.startswith("# Copies of one step are chained\n")
    assert "`submit(a) submit(b) submit(c)`, then everything runs to rest." in page
    assert "TO WRITE" in page
    out = tmp_path / "page.md"
    words = ["finding", str(folder), "--out", str(out)]
    assert typer.testing.CliRunner().invoke(app, words).exit_code == 0
    assert out.read_text("utf-8") == page
    again = typer.testing.CliRunner().invoke(app, words)
    assert again.exit_code == common.USAGE
    assert "is there already" in again.stderr


def test_what_is_no_folder_of_a_finding_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="name the folder of a finding"):
        skeleton(tmp_path)
    (tmp_path / "finding.json").write_text("{")
    result = typer.testing.CliRunner().invoke(app, ["finding", str(tmp_path)])
    assert result.exit_code == common.USAGE
    assert result.stderr.count("\n") == 1
    assert "not JSON" in result.stderr


def test_each_release_is_asked_once_and_one_that_fails_answers_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_releases, "runnable_releases", lambda: ("1", "2", "3"))
    traces = [Path("a"), Path("b")]
    asked = []

    def ask(release: str, words: Sequence[str]) -> str:
        asked.append(release)
        assert list(words[-2:]) == ["a", "b"]
        if release == "2":
            raise RuntimeError("vLLM 2: ended\nbadly")
        return "noise\n" + json.dumps({"a": SHOWN, "b": NOT_SHOWN})

    found = answers(traces, without=["3"], ask=ask)
    assert asked == ["1", "2"]
    assert found == {
        Path("a"): {"1": SHOWN, "2": "not run: vLLM 2: ended badly"},
        Path("b"): {"1": NOT_SHOWN, "2": "not run: vLLM 2: ended badly"},
    }
    assert answers([], ask=ask) == {}
    assert asked == ["1", "2"]


def test_answers_are_noted_in_a_folder_with_or_without_a_report(tmp_path: Path) -> None:
    (tmp_path / "finding.json").write_text(json.dumps({"releases": {"2": SHOWN}}))
    assert complete(tmp_path, {"1": NOT_SHOWN}) == {"1": NOT_SHOWN, "2": SHOWN}
    report = tmp_path / "report.md"
    report.write_text("# T\n\n## Releases\n\n- 2: shows it\n\n## Run it\n\nso\n")
    complete(tmp_path, {"3": NOT_SHOWN})
    assert report.read_text() == (
        "# T\n\n## Releases\n\n- 1: does not show it\n- 2: shows it\n- 3: does not show it\n\n"
        "## Run it\n\nso\n"
    )
