"""Checking a log from the field, line by line."""

from __future__ import annotations

import gzip
import io
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from cowtail.spec.exploration import Verdict
from cowtail.spec.monitor.context import WINDOW, context
from cowtail.spec.monitor.monitor import Monitor, Violation
from cowtail.spec.monitor.reading import MAX_LINE, LogError, NotFollowed

STDIN = "-"
"""The name of the standard input."""
_TICK = 1000
"""Lines between two calls of ``progress``."""


@attrs.frozen
class Checked:
    """What a log says: the verdict, why it is undetermined, or the violation and its context."""

    verdict: Verdict
    lines: int
    steps: int
    requests: int
    why: str = ""
    violation: Violation | None = None
    context: tuple[str, ...] = ()


def check_log(name: str, progress: Callable[[int], None] = lambda lines: None) -> Checked:
    """Check a log: a path, gzipped if it ends in .gz, or ``-``.

    Raises LogError for what is not a log, OSError for what cannot be read.
    """
    window: deque[tuple[int, str]] | None = deque(maxlen=WINDOW) if name == STDIN else None
    lines = _numbered(name)
    _, first = next(lines, (1, ""))
    try:
        monitor = Monitor(first)
    except NotFollowed as other:
        return Checked(Verdict.UNDETERMINED, 1, 0, 0, str(other))
    cut = ""
    for number, line in lines:
        if number % _TICK == 0:
            progress(number)
        if window is not None:
            window.append((number, line))
        if not line.endswith("\n"):
            cut = f"the log ends in the middle of line {number}"
            break
        if (violation := monitor.feed(line)) is not None:
            return _violated(monitor, violation, name, window)
    if not cut and (violation := monitor.finish()) is not None:
        return _violated(monitor, violation, name, window)
    why = cut or monitor.why_undetermined
    verdict = Verdict.HOLDS if why is None else Verdict.UNDETERMINED
    return Checked(verdict, *_counts(monitor), why or "")


def _violated(
    monitor: Monitor, violation: Violation, name: str, window: deque[tuple[int, str]] | None
) -> Checked:
    again = _numbered(name) if window is None else iter(window)
    shown = context(again, violation.subjects, violation.line)
    return Checked(Verdict.VIOLATED, *_counts(monitor), violation=violation, context=tuple(shown))


def _counts(monitor: Monitor) -> tuple[int, int, int]:
    return monitor.lines, monitor.steps, monitor.state.next_request


def _numbered(name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a log with their numbers, newlines kept."""
    try:
        with _open(name) as file:
            for number in itertools.count(1):
                line = file.readline(MAX_LINE + 1)
                if not line:
                    return
                if len(line) > MAX_LINE:
                    raise LogError(f"line {number}: more than {MAX_LINE} characters: not a log")
                yield number, line
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise LogError(f"not readable as a log: {error}") from None


def _open(name: str) -> io.TextIOBase:
    if name == STDIN:
        return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
    if name.endswith(".gz"):
        return io.TextIOWrapper(gzip.open(name), encoding="utf-8")
    return Path(name).open(encoding="utf-8")
