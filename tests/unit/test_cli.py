"""The command line: verdicts as exit codes, one clear line for bad input, nothing half-written."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest
import typer.testing

from cowtail.cli import app, common
from cowtail.spec.scopes import scope_named
from cowtail.spec.traces import Trace, dump_trace, read_trace

GOLDEN = Path(__file__).parents[1] / "golden"
COMMANDS = (
    "fuzz",
    "explore",
    "draw",
    "diff",
    "replay",
    "reduce",
    "finding",
    "faults",
    "hit",
    "doctor",
)


def _run(*words: object) -> typer.testing.Result:
    result = typer.testing.CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def _complaint(*words: object) -> str:
    """Run with bad input; return the one line of complaint, without the program's name."""
    result = _run(*words)
    assert result.exit_code == common.USAGE, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("cowtail: ")
    return line.removeprefix("cowtail: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_one_screen_and_shows_an_example(command: str) -> None:
    result = _run(command, "--help")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) <= 48
    assert f"\n  cowtail {command}" in result.stdout
    assert "0 holds, 1 violated, 2 usage, 3 undetermined" in result.stdout


def test_explore_prints_counts_verdict_and_the_command_that_repeats_it(tmp_path: Path) -> None:
    result = _run("explore", "lone_producer", "--out", tmp_path)
    assert result.exit_code == common.HOLDS
    first, again, last = result.stdout.splitlines()
    assert first.startswith("lone_producer: ")
    for part in (" states, ", " edges, ", "depth ", "actions 12/12", ", holds (bounds: "):
        assert part in first
    assert again.startswith("again: cowtail explore lone_producer --max-states ")
    assert last.endswith(": holds")
    (report,) = json.loads((tmp_path / "explore.json").read_text())
    assert (report["scope"], report["verdict"]) == ("lone_producer", "holds")


def test_explore_with_a_broken_rule_writes_a_shortest_trace(tmp_path: Path) -> None:
    result = _run("explore", "lone_producer", "--fault", "job_not_pinned", "--out", tmp_path)
    assert result.exit_code == common.VIOLATED
    assert "violated: invariant S9" in result.stdout
    assert "     7  abort(a)" in result.stdout
    trace = read_trace(tmp_path / "lone_producer-job_not_pinned.jsonl")
    assert len(trace.actions) == 7
    replayed = _run("replay", tmp_path / "lone_producer-job_not_pinned.jsonl", "--target", "model")
    assert replayed.exit_code == common.HOLDS


def test_a_bound_that_is_reached_is_undetermined(tmp_path: Path) -> None:
    result = _run("explore", "cow_decode", "--max-states", 50, "--out", tmp_path)
    assert result.exit_code == common.UNDETERMINED
    assert "undetermined: max_states reached" in result.stdout


def test_a_tour_of_what_was_not_explored_in_time_is_undetermined(tmp_path: Path) -> None:
    words = ("explore", "shared_prefix", "--target", "model", "--out", tmp_path)
    result = _run(*words, "--max-seconds", 0.001)
    assert result.exit_code == common.UNDETERMINED, result.output
    assert "tour of shared_prefix: not begun" in result.stdout


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.jsonl")), ids=lambda path: path.stem)
@pytest.mark.parametrize("target", ["model", "torch"])
def test_replay_of_golden_traces_holds(path: Path, target: str) -> None:
    result = _run("replay", path, "--target", target)
    assert result.exit_code == common.HOLDS, result.output
    assert result.stdout.splitlines()[-1].endswith(f"actions on {target}: holds")


def test_replay_with_a_fault_explains_the_divergence() -> None:
    path = GOLDEN / "tail_at_finish_by_abort.jsonl"
    result = _run("replay", path, "--target", "model", "--fault", "tail_dropped_at_finish")
    assert result.exit_code == common.VIOLATED
    assert "Divergence at action 7, abort(a)\n  property: T1" in result.stdout


def test_reduce_writes_a_trace_and_a_test(tmp_path: Path) -> None:
    path = GOLDEN / "tail_at_finish_by_abort.jsonl"
    words = ("reduce", path, "--target", "model", "--fault", "pin_never_released")
    result = _run(*words, "--out", tmp_path)
    assert result.exit_code == common.VIOLATED
    assert result.stdout.splitlines()[-1].endswith("no single action can be left out")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "tail_at_finish_by_abort_reduced.jsonl",
        "test_tail_at_finish_by_abort.py",
    ]


def test_fuzz_of_torch_holds_and_leaves_report_and_diagram(tmp_path: Path) -> None:
    result = _run("fuzz", "--target", "torch", "--seed", 1, "--seconds", 1, "--out", tmp_path)
    assert result.exit_code in (common.HOLDS, common.UNDETERMINED), result.output
    assert {p.name for p in tmp_path.iterdir()} == {"fuzz.json", "fuzz.md", "block-life.svg"}
    report = json.loads((tmp_path / "fuzz.json").read_text())
    assert report["again"] in result.stdout
    assert f"--seed 1 --examples {report['examples']} " in report["again"]
    assert report["finding"] is None


def test_fuzz_with_a_fault_leaves_a_trace_and_a_test(tmp_path: Path) -> None:
    result = _run("fuzz", "--target", "torch", "--fault", "K03", "--out", tmp_path)
    assert result.exit_code == common.VIOLATED
    assert "Divergence at action " in result.stdout
    assert ": none can be left out" in result.stdout
    names = {p.name for p in tmp_path.iterdir()}
    written = {"fuzz.json", "fuzz.md", "test_torch_K03_seed1.py", "torch_K03_seed1_reduced.jsonl"}
    assert names == written
    trace = tmp_path / "torch_K03_seed1_reduced.jsonl"
    assert _run("replay", trace, "--fault", "K03").exit_code == common.VIOLATED
    assert _run("replay", trace).exit_code == common.HOLDS


def test_faults_prints_what_killed_each(tmp_path: Path) -> None:
    words = ("faults", "--only", "K03", "--only", "job_not_pinned", "--out", tmp_path)
    result = _run(*words)
    assert result.exit_code == common.HOLDS, result.output
    assert result.stdout.splitlines()[-1] == "2 of 2 faults killed"
    assert {p.name for p in (tmp_path / "traces").iterdir()} == {
        "torch-K03.jsonl",
        "model-job_not_pinned.jsonl",
    }
    as_json = _run("faults", "--only", "job_not_pinned", "--json", "--out", tmp_path)
    (kill,) = json.loads(as_json.stdout)
    assert (kill["id"], kill["killed"], kill["offends"]) == ("job_not_pinned", True, "S9")
    assert (kill["source"], kill["shortest_trace"], kill["where"]) == ("K19", 7, "lone_producer")
    assert kill["killed_by"] == "invariant S9"
    assert kill["actions"] > 0


@pytest.mark.parametrize("form", ["svg", "mermaid", "dot", "graphml", "html"])
@pytest.mark.parametrize("view", ["block", "request", "job", "handoff", "scope"])
def test_draw_writes_every_view_in_every_format(form: str, view: str, tmp_path: Path) -> None:
    words = ("draw", "--scope", "consumer_load", "--view", view, "--format", form)
    written = _run(*words, "--out", tmp_path)
    assert written.exit_code == 0, written.output
    (path,) = tmp_path.iterdir()
    assert path.name.startswith(f"consumer_load-{view}.")
    printed = _run(*words, "--out", "-")
    assert printed.stdout.rstrip("\n") == path.read_text().rstrip("\n")


def test_doctor_names_versions_and_what_can_run() -> None:
    result = _run("doctor")
    assert result.exit_code == 0
    for name in ("python", "torch", "hypothesis", "model digest", "torch engine, cuda", "vLLM"):
        assert name in result.stdout


def test_doctor_names_what_is_missing_and_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COWTAIL_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    printed = _run("doctor").stdout
    assert f"none in {tmp_path / 'vllm'}; `cowtail vllm fetch` brings them" in printed
    assert "its entry point is not installed" in printed
    (tmp_path / "vllm/0.31.0/vllm").mkdir(parents=True)
    (tmp_path / "vllm/0.31.0/vllm/_version.py").touch()
    assert f"0.31.0 in {tmp_path / 'vllm'}" in _run("doctor").stdout


def _bad_trace(folder: Path, *lines: str, header: str = "") -> Path:
    path = folder / "bad.jsonl"
    header = header or dump_trace(Trace(scope_named("lone_producer"), ())).strip()
    path.write_text("\n".join((header, *lines)) + "\n")
    return path


def test_an_unknown_scope_is_named_with_the_nearest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "scope 'lone_produce'" in _complaint("explore", "lone_produce", "--out", out)
    assert "did you mean 'cow_decode'?" in _complaint("draw", "--scope", "cow_decod", "--out", out)
    assert not out.exists()


def test_a_broken_trace_line_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = _bad_trace(tmp_path, '{"action": "submit", "request": "a"}', "{oops}")
    for words in (("replay", path), ("reduce", path, "--out", tmp_path / "out")):
        assert _complaint(*words).startswith(f"{path}:3: '{{oops}}': not JSON")
    assert not (tmp_path / "out").exists()


def test_a_trace_of_another_version_is_refused(tmp_path: Path) -> None:
    path = _bad_trace(tmp_path, header='{"cowtail_trace": 99}')
    assert f"{path}:1: cowtail_trace=99: this cowtail reads version 1" in _complaint("replay", path)


def test_a_trace_that_the_model_forbids_is_named_by_line(tmp_path: Path) -> None:
    path = _bad_trace(tmp_path, '{"action": "submit", "request": "a"}', '{"action": "execute"}')
    complaint = _complaint("replay", path, "--target", "model")
    assert complaint.startswith(f"{path}:3: execute(): no step is waiting to run")


def test_cuda_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = tmp_path / "out"
    assert "cuda" in _complaint("fuzz", "--target", "torch", "--device", "cuda", "--out", out)
    assert not out.exists()


def test_vllm_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    out = tmp_path / "out"
    assert "vLLM is not installed" in _complaint("fuzz", "--target", "vllm", "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("fuzz", "--fault", "K99"), "fault 'K99': no such fault; "),
        (
            ("fuzz", "--target", "model", "--fault", "job_not_pined"),
            "did you mean 'job_not_pinned'",
        ),
        (("fuzz", "--target", "torsh"), "target 'torsh': no such target; did you mean 'torch'?"),
        (("fuzz", "--device", "tpu"), "device 'tpu': no such device; "),
        (("fuzz", "--seconds", "1", "--minutes", "1"), "give one of them"),
        (("fuzz", "--target", "vllm", "--fault", "K03"), "vLLM is run as it is"),
        (("faults", "--only", "K3"), "fault 'K3': no such fault; did you mean 'K"),
        (("explore",), "no scope: give --all or one of lone_producer"),
        (("explore", "cow_decode", "--all"), "give one of them"),
        (("explore", "--fault", "job_not_pined"), "did you mean 'job_not_pinned'?"),
        (("draw", "--scope", "cow_decode", "--view", "blok"), "view 'blok': no such view"),
        (("draw", "--scope", "cow_decode", "--format", "png"), "format 'png': no such format"),
        (("draw", "--scope", "cow_decode", "--scope", "resets", "--format", "html"), "one scope"),
        (("draw", "--scope", "cow_decode", "--trace", "a.jsonl"), "svg has no traces; use html"),
        (
            ("draw", "--scope", "cow_decode", "--format", "html", "--trace", "a.jsonl"),
            "a.jsonl: no such file",
        ),
        (("replay", "none.jsonl"), "none.jsonl: no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_clear_line(
    words: tuple[str, ...], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert complaint in _complaint(*words)
    assert not list(tmp_path.iterdir())


def test_an_out_that_is_a_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    complaint = _complaint("explore", "lone_producer", "--out", tmp_path / "taken" / "deeper")
    assert complaint.endswith("taken is not a folder; choose another")
