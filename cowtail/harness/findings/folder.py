"""The folder of a finding: finding.json, trace.jsonl, test_finding.py, vllm_driver.py, report.md.

Everything in it is made from the reduced trace; nothing of ours is needed to run the test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from cowtail.harness.findings.emitted_test import (
    DRIVER,
    NotEmitted,
    actions_text,
    driver_settings,
    driver_source,
    emitted_test,
)
from cowtail.harness.findings.other_releases import SHOWN, release_lines
from cowtail.harness.findings.places import places_of
from cowtail.harness.findings.story import tell
from cowtail.harness.findings.trace import VllmTrace, dump_vllm_trace
from cowtail.impl.vllm_engine.causes import Finding
from cowtail.impl.vllm_engine.known import KNOWN_FINDINGS
from cowtail.impl.vllm_engine.promises import PROPERTIES
from cowtail.spec.files import write_text

PYTEST_INI = "[pytest]\naddopts = --import-mode=importlib\n"
"""Written beside the folders: their tests have one name, so they are told apart by their paths."""


def trace_of(finding: Finding) -> VllmTrace:
    """Return the reduced trace of a finding, with where it comes from."""
    failure = finding.failure
    return VllmTrace(
        config=failure.config,
        actions=failure.actions,
        release=finding.release,
        property=failure.identifier,
        reason=failure.reason,
        known=failure.known or "",
        seed=failure.seed,
        episode=failure.episode,
        in_drain=failure.in_drain,
    )


def write_finding_folder(
    folder: Path, finding: Finding, releases: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write a finding's folder; return what finding.json says.

    ``releases`` says of other releases what they do with the trace. Raises OSError where nothing
    can be written.
    """
    trace = trace_of(finding)
    shown = {finding.release: SHOWN, **(releases or {})}
    try:
        test = emitted_test(trace)
        why_no_test = why_not_shown_by_driver(trace)
    except NotEmitted as lacking:
        test, why_no_test = "", str(lacking)
    facts = finding_as_json(finding, shown, why_no_test)
    write_text(folder / "finding.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "trace.jsonl", dump_vllm_trace(trace))
    if why_no_test is None:
        write_text(folder / "test_finding.py", test)
        write_text(folder / DRIVER, driver_source())
    write_text(folder / "report.md", report(finding, trace, shown, why_no_test))
    return facts


def why_not_shown_by_driver(trace: VllmTrace) -> str | None:
    """Run the trace on the driver of emitted tests; return why it would not fail, None if it does.

    A test that passes on the release that it was found in would say nothing.
    """
    from cowtail.impl.vllm_engine.emitted import vllm_driver

    def request(spec: Any) -> Any:
        fields = ("name", "prompt", "max_tokens", "output", "priority")
        return vllm_driver.Request(**{name: getattr(spec, name) for name in fields})

    settings = {
        name: getattr(value, "value", value) for name, value in driver_settings(trace).items()
    }
    for name in ("requests", "stored"):
        settings[name] = [request(spec) for spec in settings.get(name, ())]
    try:
        vllm_driver.Engine(**settings).run(actions_text(trace), watching=trace.property)
    except vllm_driver.Violation:
        return None
    except Exception as error:
        if trace.property == "A":
            return None
        return f"the driver of tests raises {type(error).__name__}: {error}"
    return "the driver of tests does not show it"


def finding_as_json(
    finding: Finding, releases: Mapping[str, str], why_no_test: str | None
) -> dict[str, Any]:
    """Return a finding in plain JSON types."""
    failure = finding.failure
    return {
        "property": failure.identifier,
        "sentence": sentence_of(failure.identifier),
        "reason": failure.reason,
        "known": failure.known,
        "consequence": finding.consequence,
        "release": finding.release,
        "releases": dict(releases),
        "times": finding.times,
        "seed": failure.seed,
        "episode": failure.episode,
        "found_after": len(finding.found.actions),
        "fails": "while all runs to rest" if failure.in_drain else "at the last action",
        "minimal": finding.minimal,
        "why_not_minimal": finding.why_not_minimal,
        "carried_out_to_reduce": finding.carried_out,
        "test": "test_finding.py" if why_no_test is None else None,
        "why_no_test": why_no_test,
        "config": json.loads(dump_vllm_trace(trace_of(finding)).splitlines()[0])["config"],
        "actions": [str(action) for action in failure.actions],
    }


def sentence_of(identifier: str) -> str:
    """Return what a property says."""
    for prop in PROPERTIES:
        if prop.identifier == identifier:
            return prop.sentence
    return "no action makes vLLM raise an exception"


def report(
    finding: Finding, trace: VllmTrace, releases: Mapping[str, str], why_no_test: str | None
) -> str:
    """Return the page that says what happened, to what, where, and in which releases."""
    story = tell(trace)
    known = next((each for each in KNOWN_FINDINGS if each.name == finding.known), None)
    title = known.name.capitalize() if known else f"New: {trace.property} does not hold"
    then = ", then all runs to rest" if trace.in_drain else ""
    lines = [
        f"# {title}",
        "",
        f"**Property** {trace.property}: {sentence_of(trace.property)}",
        "",
        f"**What failed** {trace.reason}",
        "",
        f"**Consequence** {finding.consequence}",
        "",
        *([known.sentence, ""] if known else []),
        f"**Seen** {finding.times:,} times, first in {len(finding.found.actions)} actions"
        + (f" (seed {trace.seed}, episode {trace.episode})" if trace.seed is not None else "")
        + f"; reduced to {len(trace.actions)}{then}. {_minimality(finding)}",
        "",
        "## Configuration",
        "",
        *_configuration(trace),
        "",
        "## Step by step",
        "",
        "```",
        *story.lines,
        f"=> {story.violation or 'holds: this replay does not show it'}",
        "```",
        "",
        "## Objects when it failed",
        "",
        *(f"- {line}" for line in story.objects),
        "",
        f"## Where, in vLLM {finding.release}",
        "",
        *([f"- {place}" for place in places_of(trace)] or ["- no line runs only here"]),
        *(["", f"Next to: {known.see}."] if known else []),
        "",
        "## Releases",
        "",
        *release_lines(releases),
        "",
        "## Run it",
        "",
        "`cowtail replay trace.jsonl`"
        + (", or `python -m pytest test_finding.py`" if why_no_test is None else "")
        + ".",
        *([f"There is no test that stands alone: {why_no_test}."] if why_no_test else []),
        "",
    ]
    return "\n".join(lines)


def _minimality(finding: Finding) -> str:
    if finding.minimal:
        return "No single action can be left out."
    return f"Not reduced to a minimum: {finding.why_not_minimal}."


def _configuration(trace: VllmTrace) -> list[str]:
    config = trace.config
    lines = [
        f"- {kind} {request.name}: a prompt of {len(request.prompt)} tokens "
        f"(`{request.prompt}`), {request.max_tokens} sampled"
        + (f", priority {request.priority}" if config.priority else "")
        for kind, requests in (("request", config.requests), ("stored before:", config.stored))
        for request in requests
    ]
    for field in attrs.fields(type(config)):
        value = getattr(config, field.name)
        if field.name not in ("requests", "stored"):
            default = "" if value != field.default else " (default)"
            lines.append(f"- {field.name}: {getattr(value, 'value', value)}{default}")
    return lines
