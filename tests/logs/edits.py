"""Write the broken sample logs that are good ones with one line edited: python tests/logs/edits.py

One for each property that no log of ``record.py`` breaks by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

HERE = Path(__file__).parent
Line = dict[str, Any]


@attrs.frozen
class Edit:
    """Of a good log, one line for which ``where`` holds is replaced, or left out.

    It is the first one, unless some are to be skipped; ``edit`` returns None to leave it out.
    """

    log: str
    where: Callable[[Line], bool]
    edit: Callable[[Line], Line | None]
    skip: int = 0


def is_event(name: str, **fields: Any) -> Callable[[Line], bool]:
    """Return whether a line is of an event, with these values in its fields."""
    return lambda line: (
        line["event"] == name and all(line[field] == value for field, value in fields.items())
    )


def but(**fields: Any) -> Callable[[Line], Line]:
    """Return the edit that gives fields other values."""
    return lambda line: {**line, **fields}


def instead(event: str, **fields: Any) -> Callable[[Line], Line]:
    """Return the edit that puts another line in the place."""
    return lambda line: {"event": event, **fields}


def _more_references(line: Line) -> Line:
    first, *others = line["references"]
    return {**line, "references": [first + 1, *others]}


def _fewer_keys(line: Line) -> Line:
    first, *others = line["keyed"]
    return {**line, "keyed": others, "keys": line["keys"][1:], "keyless": [first]}


def _null_key(line: Line) -> Line:
    return {**line, "blocks": [0, *line["blocks"][1:]]}


def _twice_in_a_row(line: Line) -> Line:
    return {**line, "blocks": [*line["blocks"], line["blocks"][-1]]}


COPY, FINISH, LOAD, TIGHT = "tail_by_copy", "tail_at_finish", "load_and_copy", "preempted"

EDITS: dict[str, Edit] = {
    "S1": Edit(COPY, is_event("settled"), _more_references),
    "S1.free": Edit(COPY, is_event("settled"), lambda line: {**line, "free": line["free"] + 1}),
    "S1.once": Edit(COPY, is_event("free"), _twice_in_a_row, skip=5),
    "S1.take": Edit(COPY, is_event("allocate", blocks=[6]), but(blocks=[4])),
    "S9.take": Edit(COPY, is_event("allocate", blocks=[4]), but(blocks=[1])),
    "S15": Edit(LOAD, is_event("update"), instead("allocate", blocks=[1])),
    "S6": Edit(COPY, is_event("touch"), instead("allocate", blocks=[6]), skip=1),
    "A4": Edit(COPY, is_event("key"), _null_key),
    "S2": Edit(COPY, is_event("settled"), _fewer_keys),
    "S2.take": Edit(TIGHT, is_event("unkey"), lambda line: None),
    "S13": Edit(COPY, is_event("reset"), but(succeeded=True)),
    "S7": Edit(COPY, is_event("job", job=1), but(puts=[[0, 4, 40], [1, 4, 40]])),
    "S8": Edit(COPY, is_event("job", job=1), but(prefill_end=36)),
    "S10": Edit(FINISH, is_event("job", job=1), but(puts=[[0, 4, 44], [1, 5, 32]])),
    "S10.table": Edit(COPY, is_event("mark"), but(block=4)),
    "S10.consumed": Edit(
        COPY,
        is_event("schedule", step=1),
        instead("unmark", request=0, group=1, block=5, tokens=40),
    ),
    "S10.finish": Edit(FINISH, is_event("job", job=1), but(in_flight=4)),
    "S9.reads": Edit(COPY, is_event("job"), but(pins=[3, 1])),
    "S9.end": Edit(COPY, is_event("release"), lambda line: None),
    "A14": Edit(COPY, is_event("report"), but(count=3)),
    "S8.live": Edit(COPY, is_event("touch"), instead("finish", request=0, status="STOPPED")),
    "S4": Edit(LOAD, is_event("lookup"), but(external=44)),
    "S15.own": Edit(LOAD, is_event("load"), but(blocks=[1, 2, 3, 9])),
}
"""By the property that the edited log breaks."""


def edited(edit: Edit) -> str:
    """Return a good log with one line edited."""
    lines = [json.loads(line) for line in (HERE / "good" / f"{edit.log}.jsonl").open()]
    found = [index for index, line in enumerate(lines) if edit.where(line)][edit.skip]
    replaced = edit.edit(lines[found])
    lines[found : found + 1] = [] if replaced is None else [replaced]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def main() -> None:
    """Write all of them."""
    for identifier, edit in EDITS.items():
        (HERE / "broken" / f"{identifier}.jsonl").write_text(edited(edit))


if __name__ == "__main__":
    main()
