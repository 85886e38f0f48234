"""``cowtail replay`` and ``cowtail reduce`` of a trace of real vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from cowtail.cli import common
from cowtail.harness.findings.folder import write_finding_folder
from cowtail.harness.findings.story import tell
from cowtail.harness.findings.trace import VllmTrace, read_vllm_trace
from cowtail.spec.exploration import Verdict
from cowtail.spec.traces import TraceError

TARGET = "vllm"
"""The only target that such a trace is for."""


def replay_vllm(path: Path, faults: Sequence[str] | None, device: str) -> NoReturn:
    """Replay a trace on the installed vLLM, tell what happens, and exit with the verdict."""
    from cowtail.impl.vllm_engine.releases import installed_release

    trace = _read(path, faults, device)
    with _complaining():
        release = installed_release().version
        story = tell(trace)
    for line in story.lines:
        typer.echo(line)
    verdict = Verdict.HOLDS if story.violation is None else Verdict.VIOLATED
    if story.violation is not None:
        typer.echo(str(story.violation))
        for line in story.objects:
            typer.echo(f"  {line}")
    typer.echo(common.repeat_line("replay", path))
    typer.echo(f"{path}: {len(trace.actions)} actions on vLLM {release}: {verdict.value}")
    common.exit_with(verdict)


def reduce_vllm(
    path: Path, faults: Sequence[str] | None, device: str, out: Path, quiet: bool
) -> NoReturn:
    """Reduce a failing trace on the installed vLLM, write it as a finding, and exit."""
    from cowtail.impl.vllm_engine.causes import finding_of
    from cowtail.impl.vllm_engine.failures import attempt
    from cowtail.impl.vllm_engine.releases import installed_release

    trace = _read(path, faults, device)
    common.writable(out)
    with _complaining(), common.progress("reducing: actions left", quiet) as update:
        release = installed_release().version
        failure = attempt(trace.config, trace.actions).failure
        if failure is None:
            common.fail(f"{path}: vLLM {release} does not fail on it: there is nothing to reduce")
        finding = finding_of(release, failure, progress=lambda length: update(length, None))
    with common.complaining(OSError):
        write_finding_folder(out, finding)
    typer.echo(f"wrote {out}")
    typer.echo(common.repeat_line("reduce", path, "--out", out))
    typer.echo(
        f"{path}: {len(trace.actions)} actions reduced to {len(finding.failure.actions)}, "
        f"{finding.carried_out:,} actions on vLLM {release}: "
        + (finding.why_not_minimal or "no single action can be left out")
    )
    common.exit_with(Verdict.VIOLATED if finding.minimal else Verdict.UNDETERMINED)


def _read(path: Path, faults: Sequence[str] | None, device: str) -> VllmTrace:
    if faults:
        common.fail(f"--fault {faults[0]}: {path} is a trace of vLLM, run as it is; leave it out")
    if device != "cpu":
        common.fail(
            f"--device {device}: the device under vLLM is symbolic, on the CPU; leave it out"
        )
    with common.complaining(TraceError):
        trace = read_vllm_trace(path)
    if not trace.actions:
        common.fail(f"{path}: it has a header and no action, so it shows nothing; is it cut off?")
    return trace


@contextmanager
def _complaining() -> Iterator[None]:
    from cowtail.impl.vllm_engine.releases import VllmNotInstalled

    with common.complaining(VllmNotInstalled):
        yield
