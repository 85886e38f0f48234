"""What came before a violation: the last lines about the blocks, requests and jobs involved."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any

from cowtail.spec.monitor.property import Subject

LINES = 12
"""The most lines of context."""
WINDOW = 5000
"""How many lines are kept for a context where the log cannot be read a second time."""
MAX_SHOWN = 160
"""The most characters of a line that are shown."""

_BLOCK_LISTS = ("blocks", "appended", "pins")
_BLOCKS = ("block", "source", "destination")


def context(
    lines: Iterable[tuple[int, str]], subjects: tuple[Subject, ...], until: int
) -> list[str]:
    """Return the last lines up to number ``until`` that concern a subject, as they are shown."""
    last: deque[tuple[int, str]] = deque(maxlen=LINES)
    for number, line in lines:
        if number > until:
            break
        if number == until or (number > 1 and _concerns(line, subjects)):
            last.append((number, line))
    return [f"{'>' if number == until else ' '} {number}: {_shown(line)}" for number, line in last]


def _concerns(line: str, subjects: tuple[Subject, ...]) -> bool:
    if not any(str(subject.number) in line for subject in subjects):
        return False
    value = json.loads(line)
    return any(_is_about(value, subject) for subject in subjects)


def _is_about(value: dict[str, Any], subject: Subject) -> bool:
    number = subject.number
    match subject.kind:
        case "request":
            lists = (value.get(name, ()) for name in ("requests", "preempted", "finished"))
            return value.get("request") == number or any(number in numbers for numbers in lists)
        case "job":
            return (value.get("job"), value.get("connector")) == (number, subject.connector)
        case _:
            pairs = [pair[1] for pair in value.get("changed", ())]
            puts = [put[1] for put in value.get("puts", ())]
            return (
                any(value.get(name) == number for name in _BLOCKS)
                or any(number in value.get(name, ()) for name in _BLOCK_LISTS)
                or number in pairs
                or number in puts
            )


def _shown(line: str) -> str:
    line = line.strip()
    return line if len(line) <= MAX_SHOWN else line[: MAX_SHOWN - 3] + "..."
