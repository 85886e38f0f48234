"""``cowtail replay`` and ``cowtail reduce``: what can be done with a trace file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.cli.replay_vllm import TARGET as VLLM
from cowtail.cli.replay_vllm import reduce_vllm, replay_vllm
from cowtail.harness.findings.trace import is_vllm_trace
from cowtail.harness.lockstep import Finding, NotATrace, run
from cowtail.harness.reducer import reduce as reduce_actions
from cowtail.harness.regression import regression
from cowtail.spec.exploration import Verdict
from cowtail.spec.files import write_text
from cowtail.spec.traces import (
    Trace,
    TraceError,
    dump_trace,
    model_digest,
    read_text,
    read_trace,
)

DEFAULT_TARGET = "torch"
"""What a trace of the model is run on."""

TracePath = Annotated[Path, typer.Argument(help="Trace file (JSON Lines).", metavar="TRACE")]
TargetName = Annotated[
    str | None, typer.Option("--target", help="torch or model [torch]; vllm for traces of vLLM.")
]


def replay(
    trace: TracePath,
    target: TargetName = None,
    fault: common.Faults = None,
    device: common.Device = "cpu",
) -> None:
    """Replay a trace in lockstep with the model.

    With --target model every property is judged after every action; its faults are the broken
    rules of `cowtail explore`.

    \b
    cowtail replay tests/golden/tail_by_copy.jsonl --target torch
    cowtail replay out/finding.jsonl --target torch --fault K03
    cowtail replay out/findings/001/trace.jsonl
    """
    if _is_of_vllm(trace, target):
        replay_vllm(trace, fault, device)
    target = target or DEFAULT_TARGET
    recorded = _read(trace)
    if not recorded.actions:
        common.fail(f"{trace}: it has a header and no action, so it shows nothing; is it cut off?")
    chosen = common.open_target(target, fault, device)
    with common.complaining(TraceError):
        try:
            result = run(recorded.scope, recorded.actions, chosen)
        except NotATrace as error:
            raise _not_allowed(trace, recorded, error) from None
    if result.divergence is not None:
        typer.echo(result.divergence.explain())
    verdict = Verdict.HOLDS if result.divergence is None else Verdict.VIOLATED
    faults = f" with {', '.join(chosen.faults)}" if chosen.faults else ""
    happened = ", ".join(f"{event} {count}" for event, count in result.events)
    typer.echo(f"happened: {happened or 'nothing of note'}")
    words = ["replay", trace, "--target", target, *common.fault_options(chosen.faults)]
    if device != "cpu":
        words += ["--device", device]
    typer.echo(common.repeat_line(*words))
    typer.echo(
        f"{trace}: {result.actions} of {len(recorded.actions)} actions on {chosen.name}{faults}: "
        f"{verdict.value}"
    )
    common.exit_with(verdict)


def reduce(
    trace: TracePath,
    target: TargetName = None,
    fault: common.Faults = None,
    device: common.Device = "cpu",
    keep_scope: Annotated[
        bool, typer.Option("--keep-scope", help="Do not try fewer requests, ranks and tokens.")
    ] = False,
    out: common.Out = Path("out"),
    quiet: common.Quiet = False,
) -> None:
    """Reduce a failing trace until no single action can be left out.

    Writes the reduced trace, and a regression test that runs it.

    \b
    cowtail reduce out/long.jsonl --target torch --fault K03
    """
    if _is_of_vllm(trace, target):
        reduce_vllm(trace, fault, device, out, quiet)
    target = target or DEFAULT_TARGET
    recorded = _read(trace)
    chosen = common.open_target(target, fault, device)
    common.writable(out)
    with (
        common.complaining(TraceError, ValueError),
        common.progress("reducing: actions left", quiet) as update,
    ):
        try:
            reduced = reduce_actions(
                recorded.scope,
                recorded.actions,
                chosen,
                keep_scope=keep_scope,
                progress=lambda length: update(length, None),
            )
        except NotATrace as error:
            raise _not_allowed(trace, recorded, error) from None
    typer.echo(reduced.divergence.explain())
    words = ["reduce", trace, "--target", target, *common.fault_options(chosen.faults)]
    finding = Finding(reduced.scope, reduced.actions, reduced.divergence)
    found_by = common.command(*words)
    for path in write_finding(finding, chosen.name, chosen.faults, found_by, out, trace.stem):
        typer.echo(f"wrote {path}")
    typer.echo(common.repeat_line(*words, "--out", out))
    verdict = Verdict.VIOLATED if reduced.minimal else Verdict.UNDETERMINED
    typer.echo(
        f"{trace}: {len(recorded.actions)} actions reduced to {len(reduced.actions)}, "
        f"{reduced.target_actions:,} actions on {chosen.name}: "
        + ("no single action can be left out" if reduced.minimal else "stopped at the bound")
    )
    common.exit_with(verdict)


def write_finding(
    finding: Finding,
    target: str,
    faults: tuple[str, ...],
    found_by: str,
    out: Path,
    name: str,
    seed: int | None = None,
) -> tuple[Path, Path]:
    """Write a finding as a trace and as a regression test; return where. Complains if it cannot."""
    kept = regression(
        finding.scope,
        finding.actions,
        finding.divergence,
        target=target,
        faults=faults,
        found_by=found_by,
        seed=seed,
    )
    stem = "".join(c if c.isalnum() else "_" for c in name)
    trace_path, test_path = out / f"{stem}_reduced.jsonl", out / f"test_{stem}.py"
    with common.complaining(OSError):
        write_text(trace_path, dump_trace(kept.trace))
        write_text(test_path, kept.test)
    return trace_path, test_path


def _is_of_vllm(path: Path, target: str | None) -> bool:
    """Whether a trace is one of real vLLM; complains of a target that it is not for."""
    with common.complaining(TraceError):
        found = is_vllm_trace(read_text(path))
    if found and target not in (None, VLLM):
        common.fail(f"--target {target}: {path} is a trace of vLLM; leave --target out")
    if not found and target == VLLM:
        common.fail(f"--target {VLLM}: {path} is a trace of the model; use torch or model")
    return found


def _read(path: Path) -> Trace:
    with common.complaining(TraceError):
        trace = read_trace(path)
    if trace.faults:
        typer.echo(
            f"note: recorded with fault {', '.join(trace.faults)}, which --fault gives again"
        )
    return trace


def _not_allowed(path: Path, trace: Trace, error: NotATrace) -> TraceError:
    older = "" if trace.model_digest == model_digest() else ", or it was recorded with other rules"
    return TraceError(
        f"{path}:{error.index + 2}: {error.guard}: the model does not allow it here; "
        f"mend the trace{older}"
    )
