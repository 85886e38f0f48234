"""``cowtail fuzz``: fuzz a target, reduce what is found, write it down."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.cli.fuzz_vllm import fuzz_vllm
from cowtail.cli.replay import write_finding
from cowtail.harness.fuzz import FuzzReport
from cowtail.harness.fuzz import fuzz as run_fuzz
from cowtail.harness.lockstep import Finding, Kind
from cowtail.harness.reducer import Reduced, shortest_known
from cowtail.harness.report import FuzzOutcome, as_json, as_markdown
from cowtail.harness.scope_strategies import PROFILES, SMALL
from cowtail.harness.target import Target
from cowtail.spec.diagrams import draw_diagram
from cowtail.spec.files import write_text
from cowtail.spec.names import unknown

DEFAULT_EXAMPLES = 300
"""Examples of a run without a bound of its own: about half a minute on the torch engine."""


def fuzz(
    target: Annotated[str, typer.Option("--target", help="torch, model or vllm.")] = "torch",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same run.")] = 1,
    examples: Annotated[
        int | None,
        typer.Option("--examples", help=f"Bound on examples [{DEFAULT_EXAMPLES}]."),
    ] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Bound on seconds.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Bound on minutes.")] = None,
    profile: Annotated[str, typer.Option("--profile", help="Scopes: small or large.")] = "small",
    refusals: Annotated[
        bool,
        typer.Option(
            "--refusals/--no-refusals",
            help="Now and then send what the target must refuse, changing nothing.",
        ),
    ] = True,
    fault: common.Faults = None,
    device: common.Device = "cpu",
    release: Annotated[
        str | None, typer.Option("--release", help="vLLM release; default: the installed one.")
    ] = None,
    known: Annotated[
        str,
        typer.Option("--known", help="Whether known findings of vLLM fail: count or ignore."),
    ] = "count",
    level: Annotated[
        str,
        typer.Option(
            "--level", help="Hold vLLM to the model (contract), or to its properties (safety)."
        ),
    ] = "contract",
    others: Annotated[
        bool,
        typer.Option("--others/--no-others", help="Replay findings on the other vLLM releases."),
    ] = True,
    out: common.Out = Path("out"),
    quiet: common.Quiet = False,
) -> None:
    """Fuzz a target in lockstep with the model; reduce and keep what is found.

    A run that never saw an action or an event that must happen is undetermined. A bound in
    time decides only how many examples there are: --examples repeats a run exactly.

    \b
    cowtail fuzz --target torch --seed 1
    cowtail fuzz --target torch --fault K03 --out out/k03
    cowtail fuzz --target torch --profile large --minutes 20
    cowtail fuzz --target vllm --minutes 1 --known ignore
    """
    if examples is not None and examples < 1:
        common.fail(f"--examples {examples}: must be 1 or more; raise it")
    if profile not in PROFILES:
        common.fail(unknown(profile, "profile", list(PROFILES)))
    max_seconds = _seconds(seconds, minutes)
    common.writable(out)
    if target == "vllm":
        fuzz_vllm(
            seed, max_seconds, examples, fault, device, release, known, level, others, out, quiet
        )
    if release is not None:
        common.fail(f"--release {release}: only vLLM has releases; use --target vllm")
    if examples is None and max_seconds is None:
        examples = DEFAULT_EXAMPLES
    chosen = common.open_target(target, fault, device)
    bound = f"{examples} examples" if max_seconds is None else f"{max_seconds:g} s"
    typer.echo(f"fuzzing {target} in lockstep with the model: seed {seed}, at most {bound}")
    with common.progress("actions in lockstep", quiet) as update:
        report = run_fuzz(
            chosen,
            seed=seed,
            profile=PROFILES[profile],
            refusals=refusals,
            max_examples=examples,
            max_seconds=max_seconds,
            progress=lambda actions, _: update(actions, None),
        )
    words = ["--target", target, "--seed", seed, "--examples", report.examples]
    words += ["--profile", profile] if profile != SMALL.name else []
    words += [] if refusals else ["--no-refusals"]
    words += common.fault_options(chosen.faults)
    words += ["--device", device] if device != "cpu" else []
    again = common.command("fuzz", *words, "--out", out)
    _print_statistics(report)
    reduced = None
    if report.finding is not None:
        reduced = _reduce(report.finding, chosen, quiet)
        found_by = common.command("fuzz", *words)
        _keep(report.finding, reduced, chosen, found_by, seed, out)
    _write_report(FuzzOutcome(report, reduced, again), out)
    if report.finding is None:
        with common.complaining(OSError):
            write_text(out / "block-life.svg", draw_diagram("block-life"))
        typer.echo(f"wrote {out / 'block-life.svg'}")
    typer.echo(f"again: {again}")
    typer.echo(_last_line(report))
    common.exit_with(report.verdict)


def _seconds(seconds: float | None, minutes: float | None) -> float | None:
    if seconds is not None and minutes is not None:
        common.fail(f"--seconds {seconds:g} and --minutes {minutes:g}: give one of them")
    for option, value in (("--seconds", seconds), ("--minutes", minutes)):
        if value is not None and not 0 < value < math.inf:
            common.fail(f"{option} {value:g}: must be above 0 and finite; change it")
    return seconds if minutes is None else 60 * minutes


def _reduce(finding: Finding, target: Target, quiet: bool) -> Reduced | None:
    """Return the reduced finding; None for one that no list of actions repeats."""
    if finding.divergence.kind is Kind.NO_DRAIN:
        return None
    with common.progress("reducing: actions left", quiet) as update:
        return shortest_known(
            finding.scope,
            finding.actions,
            target,
            progress=lambda length: update(length, None),
        )


def _keep(
    finding: Finding,
    reduced: Reduced | None,
    target: Target,
    found_by: str,
    seed: int,
    out: Path,
) -> None:
    """Print a finding, and write it as a trace and as a test."""
    kept = finding
    if reduced is not None:
        kept = Finding(reduced.scope, reduced.actions, reduced.divergence)
        typer.echo(
            f"reduced from {len(finding.actions)} actions to {len(reduced.actions)}"
            + (": none can be left out" if reduced.minimal else " (stopped at the bound)")
        )
    for number, action in enumerate(kept.actions, start=1):
        typer.echo(f"  {number:4d}  {action}")
    typer.echo(kept.divergence.explain())
    name = "_".join((target.name, *target.faults, f"seed{seed}"))
    trace, test = write_finding(kept, target.name, target.faults, found_by, out, name, seed)
    typer.echo(f"wrote {trace}")
    typer.echo(f"wrote {test}; run it: python -m pytest {test}")


def _print_statistics(report: FuzzReport) -> None:
    for title, counts in (("actions", report.action_counts), ("events", report.event_counts)):
        typer.echo(f"{title}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items()))
    if report.missing and report.finding is None:
        typer.echo(f"never happened: {', '.join(report.missing)}")
    if report.seldom and report.finding is None:
        typer.echo(f"too seldom for a run of this length: {', '.join(report.seldom)}")


def _write_report(outcome: FuzzOutcome, out: Path) -> None:
    with common.complaining(OSError):
        write_text(out / "fuzz.json", json.dumps(as_json(outcome), indent=2) + "\n")
        write_text(out / "fuzz.md", as_markdown(outcome))
    typer.echo(f"wrote {out / 'fuzz.md'} and {out / 'fuzz.json'}")


def _last_line(report: FuzzReport) -> str:
    rate = report.actions / report.seconds if report.seconds else 0.0
    verdict = report.verdict.value
    if report.missing and report.finding is None:
        verdict += ": too little happened to say that it holds; give it more examples"
    refused = f", {report.refused:,} refusals" if report.refused else ""
    return (
        f"{report.target}: seed {report.seed}, {report.examples:,} examples, "
        f"{report.lives:,} lives, {report.actions:,} actions{refused}, {report.seconds:.1f} s "
        f"({rate:,.0f} actions/s): {verdict}"
    )
