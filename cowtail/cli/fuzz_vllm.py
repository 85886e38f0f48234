"""``cowtail fuzz --target vllm``: real vLLM, at safety level, in an environment that has it."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import typer
from rich.console import Console
from rich.table import Table

from cowtail.cli import common
from cowtail.harness.findings.folder import PYTEST_INI, write_finding_folder
from cowtail.harness.findings.other_releases import NOT_SHOWN, SHOWN, answers, complete
from cowtail.spec.exploration import Verdict
from cowtail.spec.files import write_text

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.fuzz import Finding, Report

DEFAULT_SECONDS = 60.0
"""The bound of a run that is given none: long enough for all that must happen to happen."""
PLAIN_EVERY = 15.0
"""Seconds between two lines of progress where nobody watches a terminal."""
KNOWN_CHOICES = ("count", "ignore")
"""What ``--known`` takes: whether what docs/findings describes makes a run fail."""
LEVELS = ("contract", "safety")
"""What ``--level`` takes: the model follows every decision, or only the properties are checked."""
WRITTEN = ("finding.json", "trace.jsonl", "test_finding.py", "vllm_driver.py", "report.md")


def fuzz_vllm(
    seed: int,
    seconds: float | None,
    episodes: int | None,
    faults: list[str] | None,
    device: str,
    release: str | None,
    known: str,
    level: str,
    others: bool,
    out: Path,
    quiet: bool,
) -> NoReturn:
    """Fuzz vLLM until a bound is reached; group what fails by cause; exit.

    ``release`` runs in a subprocess if it is not the installed one. With ``others``, what is
    found is replayed on all other releases at hand.

    A run in which something that must happen never did is undetermined. Each finding is left
    under ``out/findings`` as a folder of its own.
    """
    from cowtail.harness.contract import contract_level
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
    if level not in LEVELS:
        common.fail(f"--level {level}: use one of {', '.join(LEVELS)}")
    if known not in KNOWN_CHOICES:
        common.fail(f"--known {known}: use one of {', '.join(KNOWN_CHOICES)}")
    if seconds is None and episodes is None:
        seconds = DEFAULT_SECONDS
    if release is not None and not is_installed(release):
        words: list[object] = ["-m", "cowtail", "fuzz", "--target", "vllm", "--release", release]
        words += ["--seed", seed, "--known", known, "--level", level, "--out", out, "--no-others"]
        words += [] if seconds is None else ["--seconds", seconds]
        words += [] if episodes is None else ["--examples", episodes]
        words += ["--quiet"] if quiet else []
        with common.complaining(VllmNotInstalled):
            code = run_in_release(release, [str(word) for word in words])
        if others:
            _ask_others(out, quiet)
        raise typer.Exit(code)
    with (
        common.complaining(VllmNotInstalled),
        contract_level() if level == "contract" else contextlib.nullcontext(),
        _progress(quiet, seconds, episodes) as (on_episode, on_reduction),
    ):
        report = run_fuzz(
            seed,
            seconds=seconds,
            episodes=episodes,
            on_episode=on_episode,
            on_reduction=on_reduction,
        )
    verdict = verdict_of(report, known)
    for title, counts in (
        ("events", report.statistics),
        ("configurations", report.configurations),
    ):
        typer.echo(f"{title}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items()))
    if report.missing:
        typer.echo(f"never happened: {', '.join(report.missing)}")
    facts = _write_findings(report, out)
    path = out / "fuzz-vllm.json"
    with common.complaining(OSError):
        write_text(path, json.dumps(_as_json(report, verdict, facts), indent=2) + "\n")
    typer.echo(f"wrote {path}" + (f" and {out / 'findings'}" if facts else ""))
    _print_findings(report)
    if others:
        _ask_others(out, quiet)
    again = ["fuzz", "--target", "vllm", "--release", report.release, "--seed", seed]
    again += ["--examples", report.episodes]
    again += ["--known", known] if known != "count" else []
    again += ["--level", level] if level != "contract" else []
    typer.echo(common.repeat_line(*again, "--out", out))
    typer.echo(
        f"vLLM {report.release}: seed {seed}, {report.episodes:,} episodes, "
        f"{report.actions:,} actions, {report.seconds:.1f} s: {_outcome(report, verdict, known)}"
    )
    common.exit_with(verdict)


def verdict_of(report: Report, known: str = "count") -> Verdict:
    """Violated on a finding; undetermined if too little happened, or interrupted; else holds.

    With ``known="ignore"`` only on one that docs/findings does not describe.
    """
    if report.new if known == "ignore" else report.findings:
        return Verdict.VIOLATED
    return Verdict.UNDETERMINED if report.missing or report.interrupted else Verdict.HOLDS


def _outcome(report: Report, verdict: Verdict, known: str) -> str:
    """Return the verdict in words, with what it leaves out."""
    words = verdict.value
    if report.interrupted:
        words += ", interrupted"
    elif verdict is Verdict.UNDETERMINED:
        words += ": too little happened to say that it holds; give it more examples"
    counted = f"{len(report.new)} new, {len(report.known)} known"
    ignored = ", known ones ignored" if known == "ignore" and report.known else ""
    return f"{words}; findings: {counted}{ignored}; {report.failed:,} episodes failed"


Callbacks = tuple[Callable[[int, int], None], Callable[[str, int], None]]
"""What is told of episodes (done, failed), and of reductions (of what, actions left)."""


@contextlib.contextmanager
def _progress(quiet: bool, seconds: float | None, episodes: int | None) -> Iterator[Callbacks]:
    """Show a progress bar on a terminal; elsewhere a plain line now and then, on stderr."""
    begin = time.monotonic()
    if quiet:
        yield (lambda done, failed: None), (lambda what, length: None)
    elif sys.stderr.isatty():
        with common.progress("episodes of vLLM", quiet) as update:

            def on_episode(done: int, failed: int) -> None:
                del failed
                update(done, episodes)

            def on_reduction(what: str, length: int) -> None:
                del what
                update(length, None)

            yield on_episode, on_reduction
    else:
        lines = _PlainLines(begin, seconds)
        yield lines.on_episode, lines.on_reduction


class _PlainLines:
    """Progress as lines on stderr, not more often than every PLAIN_EVERY seconds."""

    def __init__(self, begin: float, seconds: float | None) -> None:
        self._begin = begin
        self._of = "" if seconds is None else f" of {seconds:.0f}"
        self._next = begin + PLAIN_EVERY
        self._reducing = ""

    def on_episode(self, done: int, failed: int) -> None:
        """Say how far it is, if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PLAIN_EVERY
            spent = f"{now - self._begin:.0f}{self._of} s"
            typer.echo(f"{spent}: {done:,} episodes, {failed:,} failed", err=True)

    def on_reduction(self, what: str, length: int) -> None:
        """Say what is being reduced, once for each."""
        if what != self._reducing:
            self._reducing = what
            typer.echo(f"reducing, from {length} actions: {what}", err=True)


def _write_findings(report: Report, out: Path) -> list[dict[str, Any]]:
    """Write a folder for each finding; return what each finding.json says."""
    root = out / "findings"
    names = [f"{number:03d}" for number in range(1, len(report.findings) + 1)]
    with common.complaining(OSError):
        _remove_stale(root, names)
        if report.findings:
            write_text(root / "pytest.ini", PYTEST_INI)
        return [
            write_finding_folder(root / name, finding)
            for name, finding in zip(names, report.findings, strict=True)
        ]


def _remove_stale(root: Path, names: Sequence[str]) -> None:
    """Remove what an earlier run wrote under numbers that this one does not have."""
    folders = root.iterdir() if root.is_dir() else ()
    for folder in folders:
        if re.fullmatch(r"\d{3}", folder.name) and folder.name not in names:
            for written in WRITTEN:
                (folder / written).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody has put something else there
                folder.rmdir()


def _ask_others(out: Path, quiet: bool) -> None:
    """Replay what was found on all other releases at hand; note and print what they do."""
    folders = sorted(path.parent for path in (out / "findings").glob("*/finding.json"))
    facts = {each: json.loads((each / "finding.json").read_text("utf-8")) for each in folders}
    if not facts:
        return
    found_in = {str(each["release"]) for each in facts.values()}
    answered = answers(
        [each / "trace.jsonl" for each in folders],
        without=sorted(found_in),
        progress=None if quiet else lambda each: typer.echo(f"replaying on {each}", err=True),
    )
    rows = []
    for each in folders:
        with common.complaining(OSError):
            shown = complete(each, answered[each / "trace.jsonl"])
        rows.append((each.name, *(_in_short(what) for what in shown.values())))
    releases = sorted(found_in.union(*answered.values()))
    typer.echo(common.table([("", *releases), *rows]))


def _in_short(what: str) -> str:
    return {SHOWN: "shown", NOT_SHOWN: "-"}.get(what, what.partition(":")[0])


_HEADINGS = ("", "property", "finding", "seen", "actions", "consequence")


def _print_findings(report: Report) -> None:
    """Print the table of findings: as a rich table on a terminal, plainly elsewhere."""
    if not report.findings:
        return
    rows = [_row(number, each) for number, each in enumerate(report.findings, start=1)]
    if not sys.stdout.isatty():
        typer.echo(common.table([_HEADINGS, *rows]))
        return
    table = Table(*_HEADINGS, title=f"vLLM {report.release}")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _row(number: int, finding: Finding) -> tuple[str, ...]:
    then = " + rest" if finding.failure.in_drain else ""
    return (
        f"{number:03d}",
        finding.failure.identifier,
        finding.known or "NEW",
        f"{finding.times:,}",
        f"{len(finding.failure.actions)}{then}" + ("" if finding.minimal else " (not minimal)"),
        finding.consequence,
    )


def _as_json(
    report: Report, verdict: Verdict, findings: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the report in plain JSON types."""
    return {
        "verdict": verdict.value,
        "never_happened": list(report.missing),
        **attrs.asdict(report, filter=lambda field, _: field.name != "findings"),
        "findings": list(findings),
    }
