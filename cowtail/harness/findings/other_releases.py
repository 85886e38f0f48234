"""Which releases show a finding: its reduced trace, replayed on every release at hand.

Each release runs once, in a subprocess of its own, on all traces:
``python -m cowtail.harness.findings.other_releases TRACE...`` prints what the release that is
imported there does with each, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cowtail.harness.findings.trace import VllmTrace, read_vllm_trace
from cowtail.impl.vllm_engine.failures import Failure, abstract, attempt
from cowtail.impl.vllm_engine.launch import output_in_release, runnable_releases
from cowtail.spec.files import write_text

SHOWN, NOT_SHOWN = "shows it", "does not show it"
"""What a release does with a reduced trace; a sentence is the third answer."""
_MODULE = "cowtail.harness.findings.other_releases"
TIMEOUT = 300.0
"""Seconds after which a release has not answered. Importing it takes most of the time."""


def answer(trace: VllmTrace) -> str:
    """Return what the release that is imported here does with a trace."""
    failure = attempt(trace.config, trace.actions).failure
    if failure is None:
        return NOT_SHOWN
    if _alike(failure, trace):
        return SHOWN
    return f"fails otherwise: {failure.identifier}: {failure.reason}"


def _alike(failure: Failure, trace: VllmTrace) -> bool:
    names = [request.name for request in (*trace.config.requests, *trace.config.stored)]
    return failure.identifier == trace.property and (
        abstract(failure.reason, names) == abstract(trace.reason, names)
    )


def answers(
    traces: Sequence[Path],
    *,
    without: Sequence[str] = (),
    ask: Callable[[str, Sequence[str]], str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[Path, dict[str, str]]:
    """Return what each release at hand does with each trace file, oldest release first.

    ``without`` are releases that are not asked; a release that cannot be run answers why.
    ``progress`` is told which release is being asked.
    """
    found: dict[Path, dict[str, str]] = {path: {} for path in traces}
    words = ["-m", _MODULE, *map(str, traces)]
    for release in runnable_releases() if traces else ():
        if release in without:
            continue
        if progress is not None:
            progress(release)
        try:
            output = (ask or _ask)(release, words)
            said = json.loads(output.splitlines()[-1])
        except (RuntimeError, ValueError, IndexError) as error:
            why = f"not run: {' '.join(str(error).split())[-200:]}"
            said = {str(path): why for path in traces}
        for path in traces:
            found[path][release] = said[str(path)]
    return found


def _ask(release: str, words: Sequence[str]) -> str:
    return output_in_release(release, words, timeout=TIMEOUT)


def complete(folder: Path, releases: Mapping[str, str]) -> dict[str, str]:
    """Write what releases answered into a finding's folder; return all that it now says.

    Raises OSError where it cannot be written.
    """
    facts = json.loads((folder / "finding.json").read_text("utf-8"))
    shown: dict[str, str] = dict(sorted({**facts["releases"], **releases}.items()))
    facts["releases"] = shown
    write_text(folder / "finding.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    report = folder / "report.md"
    if report.exists():
        head, heading, rest = report.read_text("utf-8").partition("## Releases\n\n")
        _, _, tail = rest.partition("\n\n")
        write_text(report, head + heading + "\n".join(release_lines(shown)) + "\n\n" + tail)
    return shown


def release_lines(releases: Mapping[str, str]) -> list[str]:
    """Return a line for each release."""
    return [f"- {release}: {what}" for release, what in sorted(releases.items())]


def _main(paths: Sequence[str]) -> None:
    said = {}
    for path in paths:
        try:
            said[path] = answer(read_vllm_trace(Path(path)))
        except ValueError as error:
            said[path] = f"not run: {error}"
    print(json.dumps(said))


if __name__ == "__main__":
    _main(sys.argv[1:])
