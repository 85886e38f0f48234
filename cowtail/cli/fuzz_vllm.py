"""``cowtail fuzz --target vllm``: real vLLM, at safety level, in an environment that has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import typer

from cowtail.cli import common
from cowtail.spec.exploration import Verdict
from cowtail.spec.files import write_text

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.fuzz import Finding, Report

DEFAULT_SECONDS = 60.0
"""The bound of a run that is given none: long enough for all that must happen to happen."""


def fuzz_vllm(
    seed: int,
    seconds: float | None,
    episodes: int | None,
    faults: list[str] | None,
    device: str,
    release: str | None,
    out: Path,
    quiet: bool,
) -> NoReturn:
    """Fuzz vLLM until a bound is reached or a property fails; exit.

    ``release`` runs in a subprocess if it is not the installed one.

    A run in which something that must happen never did is undetermined. What is new is left
    under ``out`` twice: as JSON, and as a test that fails as long as vLLM does this.
    """
    from cowtail.impl.vllm_engine.fuzz import fuzz as run_fuzz
    from cowtail.impl.vllm_engine.launch import is_installed, run_in_release
    from cowtail.impl.vllm_engine.releases import VllmNotInstalled

    if faults:
        common.fail(f"--fault {faults[0]}: vLLM is run as it is; use --target torch")
    if device != "cpu":
        common.fail(
            f"--device {device}: the device under vLLM is symbolic, on the CPU; leave --device "
            "out, or use --target torch"
        )
    if seconds is None and episodes is None:
        seconds = DEFAULT_SECONDS
    if release is not None and not is_installed(release):
        words: list[object] = ["-m", "cowtail", "fuzz", "--target", "vllm", "--release", release]
        words += ["--seed", seed, "--out", out]
        words += [] if seconds is None else ["--seconds", seconds]
        words += [] if episodes is None else ["--examples", episodes]
        words += ["--quiet"] if quiet else []
        with common.complaining(VllmNotInstalled):
            raise typer.Exit(run_in_release(release, [str(word) for word in words]))
    with (
        common.complaining(VllmNotInstalled),
        common.progress("episodes of vLLM", quiet) as update,
    ):
        report = run_fuzz(
            seed,
            seconds=seconds,
            episodes=episodes,
            on_episode=lambda done: update(done, episodes),
        )
    verdict = verdict_of(report)
    typer.echo("events: " + ", ".join(f"{name} {n:,}" for name, n in report.statistics.items()))
    if report.finding is not None:
        _keep(report.finding, out)
    elif report.missing:
        typer.echo(f"never happened: {', '.join(report.missing)}")
    path = out / "fuzz-vllm.json"
    _write(path, json.dumps(_as_json(report, verdict), indent=2) + "\n")
    chosen = () if release is None else ("--release", release)
    again = ("fuzz", "--target", "vllm", *chosen, "--seed", seed, "--examples", report.episodes)
    typer.echo(common.repeat_line(*again, "--out", out))
    typer.echo(
        f"vLLM {report.release}: seed {seed}, {report.episodes:,} episodes, "
        f"{report.actions:,} actions, {report.seconds:.1f} s: {_outcome(report, verdict)}"
    )
    common.exit_with(verdict)


def verdict_of(report: Report) -> Verdict:
    """Violated on a new finding; undetermined if too little happened; holds otherwise."""
    if report.finding is not None:
        return Verdict.VIOLATED
    return Verdict.UNDETERMINED if report.missing else Verdict.HOLDS


def _outcome(report: Report, verdict: Verdict) -> str:
    """Return the verdict in words, with what it leaves out."""
    words = verdict.value
    if verdict is Verdict.UNDETERMINED:
        words += ": too little happened to say that it holds; give it more examples"
    return words + _but_for(report.statistics)


def _but_for(statistics: Mapping[str, int]) -> str:
    """Return what the verdict leaves out: the known findings that docs/findings describes."""
    known = [
        f"{name.removeprefix('known: ')} ({n:,} times)"
        for name, n in statistics.items()
        if name.startswith("known: ")
    ]
    return f", but for known findings: {'; '.join(known)}" if known else ""


def _keep(finding: Finding, out: Path) -> None:
    """Print a finding and how to run its episode again; write it as JSON and as a test.

    What its actions alone do not repeat becomes no test: that one could not fail.
    """
    from cowtail.impl.vllm_engine.regression import regression

    typer.echo(f"{finding.identifier}: {finding.reason}")
    typer.echo(f"  {finding.config}")
    for number, action in enumerate(finding.actions, start=1):
        typer.echo(f"  {number:4d}  {action}")
    stem = f"vllm_seed{finding.seed}_episode{finding.episode}"
    found = json.dumps(_finding_as_json(finding), indent=2) + "\n"
    if finding.minimal:
        _write(out / f"{stem}_reduced.json", found)
        test = out / f"test_{stem}.py"
        _write(test, regression(finding))
        typer.echo(f"run it: python -m pytest {test}")
    else:
        _write(out / f"{stem}.json", found)
        typer.echo("no test: a replay of the actions alone does not repeat it, the episode may")
    typer.echo(f"that episode alone: {episode_line(finding)}")


def episode_line(finding: Finding) -> str:
    """Return the command that runs the failing episode alone and prints what it finds."""
    return (
        'python -c "from cowtail.impl.vllm_engine.fuzz import run_numbered_episode as run; '
        f'print(run({finding.seed}, {finding.episode})[1])"'
    )


def _write(path: Path, text: str) -> None:
    with common.complaining(OSError):
        write_text(path, text)
    typer.echo(f"wrote {path}")


def _as_json(report: Report, verdict: Verdict) -> dict[str, Any]:
    """Return the report in plain JSON types."""
    return {
        "verdict": verdict.value,
        "never_happened": list(report.missing),
        **attrs.asdict(report, filter=lambda field, _: field.name not in ("finding", "known")),
        "finding": _finding_as_json(report.finding) if report.finding is not None else None,
        "known": [_finding_as_json(known) for known in report.known],
    }


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding in plain JSON types: each action by its name, with its fields."""
    return {
        "property": finding.identifier,
        "reason": finding.reason,
        "known": finding.known,
        "seed": finding.seed,
        "episode": finding.episode,
        "minimal": finding.minimal,
        "config": attrs.asdict(finding.config),
        "actions": [{"action": action.name, **attrs.asdict(action)} for action in finding.actions],
    }
