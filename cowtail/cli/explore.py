"""``cowtail explore``: establish what holds of the model in named scopes, completely."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.cli.replay import write_finding
from cowtail.harness.target import Target
from cowtail.harness.tours import TooLarge, tour
from cowtail.models.scope import Scope
from cowtail.spec.broken_rules import broken_rule, broken_rule_named
from cowtail.spec.checks import ScopeReport, check_scope
from cowtail.spec.exploration import Verdict
from cowtail.spec.explorer import DEFAULT_MAX_SECONDS, DEFAULT_MAX_STATES
from cowtail.spec.files import write_text
from cowtail.spec.scopes import SCOPES, scope_named
from cowtail.spec.traces import Trace, write_trace


def explore(
    scope: Annotated[
        str | None, typer.Argument(help="Name of a scope.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every named scope.")] = False,
    fault: Annotated[
        str | None, typer.Option("--fault", help="Break this rule of the model.")
    ] = None,
    max_states: Annotated[int, typer.Option(min=1, help="Bound on states.")] = DEFAULT_MAX_STATES,
    max_seconds: Annotated[
        float, typer.Option(min=0.001, help="Bound on seconds, for each scope and each tour.")
    ] = DEFAULT_MAX_SECONDS,
    no_symmetry: Annotated[
        bool, typer.Option("--no-symmetry", help="Tell interchangeable blocks and ranks apart.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option("--target", help="Then take every edge in lockstep with this target."),
    ] = None,
    out: common.Out = Path("out"),
    quiet: common.Quiet = False,
) -> None:
    """Explore scopes completely: invariants, what must happen sometimes, liveness.

    A bound that is reached makes a scope undetermined. With --fault a rule of the model is
    broken, and a shortest trace to the violation is printed and written. With --target tours
    take every edge of each scope's graph, or as many as time allows.

    \b
    cowtail explore lone_producer
    cowtail explore --all --out out
    cowtail explore --fault job_not_pinned
    cowtail explore lone_producer --target torch
    """
    scopes = _scopes(scope, every, fault)
    toured = None if target is None else common.open_target(target, None)
    if fault is not None and toured is not None:
        common.fail(f"--fault {fault} breaks the model, and --target holds to it: give one of them")
    common.writable(out)
    started = time.perf_counter()
    reports = []
    with contextlib.ExitStack() as broken:
        if fault is not None:
            broken.enter_context(broken_rule(fault))
        for each in scopes:
            reports.append(_check(each, not no_symmetry, max_states, max_seconds, quiet))
            typer.echo(reports[-1].summary())
            _show_violation(reports[-1], fault, out)
    verdicts = [report.verdict for report in reports]
    if toured is not None:
        verdicts += [
            _tour(report, toured, not no_symmetry, max_seconds, out, quiet) for report in reports
        ]
    verdict = _overall(verdicts)
    seconds = time.perf_counter() - started
    with common.complaining(OSError):
        write_text(out / "explore.json", json.dumps(_as_json(reports, fault), indent=2) + "\n")
    words: list[object] = ["explore", *(["--all"] if every else [scopes[0].name])]
    words += ["--fault", fault] if fault else []
    words += ["--max-states", max_states, "--max-seconds", f"{max_seconds:g}"]
    words += ["--no-symmetry"] if no_symmetry else []
    words += ["--target", target] if target else []
    typer.echo(common.repeat_line(*words, "--out", out))
    typer.echo(
        f"{len(reports)} scope{'s' * (len(reports) != 1)}, "
        f"{sum(r.exploration.states for r in reports):,} states, "
        f"{sum(r.exploration.edges for r in reports):,} edges, {seconds:.1f} s: {verdict.value}"
    )
    common.exit_with(verdict)


def _scopes(scope: str | None, every: bool, fault: str | None) -> list[Scope]:
    with common.complaining(ValueError):
        rule = None if fault is None else broken_rule_named(fault)
        if scope is not None and every:
            raise ValueError(f"scope {scope!r} and --all: give one of them")
        if every:
            return list(SCOPES.values())
        if scope is not None:
            return [scope_named(scope)]
        if rule is not None:
            return [scope_named(rule.scope)]
    common.fail(f"no scope: give --all or one of {', '.join(SCOPES)}")


def _check(
    scope: Scope, symmetry: bool, max_states: int, max_seconds: float, quiet: bool
) -> ScopeReport:
    with common.progress(f"exploring {scope.name}: states", quiet) as update:
        return check_scope(
            scope,
            symmetry=symmetry,
            max_states=max_states,
            max_seconds=max_seconds,
            progress=lambda seen: update(seen.states, None),
        )


def _show_violation(report: ScopeReport, fault: str | None, out: Path) -> None:
    violation = report.violation
    if violation is None:
        return
    for number, action in enumerate(violation.path, start=1):
        typer.echo(f"  {number:4d}  {action}")
    if violation.cycle:
        typer.echo(f"  and for ever: {', '.join(map(repr, violation.cycle))}")
    path = out / f"{'-'.join(filter(None, (report.scope.name, fault)))}.jsonl"
    trace = Trace(
        report.scope,
        (*violation.path, *violation.cycle),
        target="model",
        faults=() if fault is None else (fault,),
        note=str(violation),
    )
    with common.complaining(OSError):
        write_trace(path, trace)
    typer.echo(f"  trace: {path}")


def _tour(
    checked: ScopeReport, target: Target, symmetry: bool, max_seconds: float, out: Path, quiet: bool
) -> Verdict:
    """Take every edge of a scope in lockstep; print, and keep what is found."""
    scope = checked.scope
    if not checked.exploration.complete:
        typer.echo(f"tour of {scope.name}: not begun, since the search is not complete")
        return Verdict.UNDETERMINED
    graph = checked.exploration.graph if symmetry else None
    try:
        with common.progress(f"touring {scope.name}: edges", quiet) as update:
            report = tour(scope, target, max_seconds=max_seconds, graph=graph, progress=update)
    except TooLarge as error:
        typer.echo(f"tour of {error}")
        return Verdict.UNDETERMINED
    typer.echo(f"tour of {report.summary()}")
    if report.finding is None:
        return Verdict.HOLDS if report.complete else Verdict.UNDETERMINED
    typer.echo(report.finding.divergence.explain())
    found_by = common.command("explore", scope.name, "--target", target.name)
    name = f"{target.name}_{scope.name}"
    for path in write_finding(report.finding, target.name, target.faults, found_by, out, name):
        typer.echo(f"wrote {path}")
    return Verdict.VIOLATED


def _overall(verdicts: list[Verdict]) -> Verdict:
    for verdict in (Verdict.VIOLATED, Verdict.UNDETERMINED):
        if verdict in verdicts:
            return verdict
    return Verdict.HOLDS


def _as_json(reports: list[ScopeReport], fault: str | None) -> list[dict[str, object]]:
    return [
        {
            "scope": report.scope.name,
            "fault": fault,
            "verdict": report.verdict.value,
            "states": report.exploration.states,
            "edges": report.exploration.edges,
            "depth": report.exploration.depth,
            "seconds": round(report.exploration.seconds, 2),
            "bounds": str(report.exploration.bounds),
            "bound_hit": report.exploration.bound_hit,
            "actions": report.exploration.action_counts,
            "events": report.exploration.event_counts,
            "violation": None if report.violation is None else str(report.violation),
        }
        for report in reports
    ]
