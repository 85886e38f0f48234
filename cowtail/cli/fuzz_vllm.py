"""``cowtail fuzz --target vllm``: real vLLM, at safety level, in an environment that has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import attrs
import typer

from cowtail.cli import common
from cowtail.spec.exploration import Verdict
from cowtail.spec.files import write_text

DEFAULT_SECONDS = 60.0


def fuzz_vllm(
    seed: int,
    seconds: float | None,
    episodes: int | None,
    faults: list[str] | None,
    out: Path,
    quiet: bool,
) -> NoReturn:
    """Fuzz the installed vLLM until a bound is reached or a property fails; exit."""
    from cowtail.impl.vllm_engine.fuzz import Report
    from cowtail.impl.vllm_engine.fuzz import fuzz as run_fuzz
    from cowtail.impl.vllm_engine.releases import VllmNotInstalled

    if faults:
        common.fail(f"--fault {faults[0]}: vLLM is run as it is; use --target torch")
    if seconds is None and episodes is None:
        seconds = DEFAULT_SECONDS
    with (
        common.complaining(VllmNotInstalled),
        common.progress("episodes of vLLM", quiet) as update,
    ):
        report: Report = run_fuzz(
            seed,
            seconds=seconds,
            episodes=episodes,
            on_episode=lambda done: update(done, episodes),
        )
    verdict = Verdict.HOLDS if report.finding is None else Verdict.VIOLATED
    again = ["fuzz", "--target", "vllm", "--seed", seed, "--examples", report.episodes]
    typer.echo("events: " + ", ".join(f"{name} {n:,}" for name, n in report.statistics.items()))
    if report.finding is not None:
        typer.echo(f"{report.finding.identifier}: {report.finding.reason}")
        typer.echo(f"  {report.finding.config}")
        for number, action in enumerate(report.finding.actions, start=1):
            typer.echo(f"  {number:4d}  {action}")
    path = out / "fuzz-vllm.json"
    with common.complaining(OSError):
        write_text(path, json.dumps(_as_json(report, verdict), indent=2) + "\n")
    typer.echo(f"wrote {path}")
    typer.echo(common.repeat_line(*again, "--out", out))
    typer.echo(
        f"vLLM {report.release}: seed {seed}, {report.episodes:,} episodes, "
        f"{report.actions:,} actions, {report.seconds:.1f} s: {verdict.value}"
        f"{_but_for(report.statistics)}"
    )
    common.exit_with(verdict)


def _but_for(statistics: Mapping[str, int]) -> str:
    """Return what the verdict leaves out: the known findings that docs/findings describes."""
    known = [
        f"{name.removeprefix('known: ')} ({n:,} times)"
        for name, n in statistics.items()
        if name.startswith("known: ")
    ]
    return f", but for known findings: {'; '.join(known)}" if known else ""


def _as_json(report: object, verdict: Verdict) -> dict[str, object]:
    """Return the report in plain JSON types: actions as they print, enums by value."""
    from cowtail.impl.vllm_engine.fuzz import Report

    assert isinstance(report, Report)
    plain = attrs.asdict(report, filter=lambda field, _: field.name != "finding")
    found = report.finding
    return {
        "verdict": verdict.value,
        **plain,
        "finding": found
        and {
            "property": found.identifier,
            "reason": found.reason,
            "config": attrs.asdict(found.config),
            "actions": [repr(action) for action in found.actions],
            "seed": found.seed,
            "episode": found.episode,
            "minimal": found.minimal,
        },
    }
