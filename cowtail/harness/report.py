"""A fuzzing run's report: JSON for machines, Markdown for people."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from cowtail.harness.fuzz import FuzzReport
from cowtail.harness.reducer import Reduced
from cowtail.spec.traces import model_digest


@attrs.frozen
class FuzzOutcome:
    """A run, what its finding was reduced to, if there was one, and how to run it again."""

    report: FuzzReport
    reduced: Reduced | None
    again: str


def as_json(outcome: FuzzOutcome) -> dict[str, object]:
    """Return the outcome in plain JSON types; ``seconds`` differs between equal runs."""
    report = outcome.report
    return {
        "verdict": report.verdict.value,
        "target": report.target,
        "faults": list(report.faults),
        "seed": report.seed,
        "profile": report.profile,
        "model_digest": model_digest(),
        "examples": report.examples,
        "lives": report.lives,
        "actions": report.actions,
        "refused": report.refused,
        "seconds": round(report.seconds, 2),
        "action_counts": report.action_counts,
        "event_counts": report.event_counts,
        "never_happened": list(report.missing),
        "too_seldom_for_this_run": list(report.seldom),
        "finding": _finding(outcome),
        "again": outcome.again,
    }


def _finding(outcome: FuzzOutcome) -> dict[str, object] | None:
    found = outcome.report.finding
    if found is None:
        return None
    reduced = outcome.reduced
    return {
        "found_after": len(found.actions),
        "divergence": (reduced or found).divergence.explain(),
        "actions": [repr(action) for action in (reduced or found).actions],
        "minimal": reduced is not None and reduced.minimal,
    }


def as_markdown(outcome: FuzzOutcome) -> str:
    """Return the outcome as a page."""
    report = outcome.report
    started_with = f", started with {', '.join(report.faults)}" if report.faults else ""
    lines = [
        f"# Fuzzing {report.target} in lockstep with the model: {report.verdict.value}",
        "",
        f"{report.target}{started_with}; seed {report.seed}; {report.profile} scopes; "
        f"model {model_digest()}.",
        f"{report.examples:,} examples, {report.lives:,} lives, {report.actions:,} actions in "
        f"{report.seconds:.1f} s. After each action everything that can be observed was equal"
        + (", until the last." if report.finding else "."),
        *([f"{report.refused:,} wrong actions were refused."] if report.refused else []),
        "",
        f"Again: `{outcome.again}`",
        "",
    ]
    if report.finding is not None:
        found = outcome.reduced or report.finding
        lines += ["## The finding", "", "```", found.divergence.explain(), "```", ""]
        lines += [f"{i}. `{action}`" for i, action in enumerate(found.actions, start=1)]
        lines.append("")
    if report.missing:
        lines += ["## Never happened", "", *(f"- {name}" for name in report.missing), ""]
    if report.seldom:
        lines += ["## Too seldom for a run of this length", ""]
        lines += [*(f"- {name}" for name in report.seldom), ""]
    lines += ["## Actions taken", "", *_table("action", report.action_counts), ""]
    lines += ["## What happened", "", *_table("event", report.event_counts), ""]
    return "\n".join(lines)


def _table(heading: str, counts: Mapping[str, int]) -> list[str]:
    rows = [f"| {heading} | times |", "|---|---:|"]
    return rows + [f"| {name} | {count:,} |" for name, count in counts.items()]
