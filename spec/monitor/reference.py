"""Write the reference page of the log format: python -m cowtail.spec.monitor.reference FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import attrs

from cowtail.spec.files import write_text
from cowtail.spec.monitor.events import EVENTS, FORMAT
from cowtail.spec.monitor.monitor import PROPERTIES
from cowtail.spec.monitor.reading import SHAPES

PAGE = "log-format.md"
"""Name of the page."""


def page() -> str:
    """Return the page."""
    lines = [
        "# The format of a log from the field",
        "",
        "Generated from `spec/monitor/` by `python -m cowtail.spec.monitor.reference "
        "docs/reference`; do not edit.",
        "",
        f"Format {FORMAT}: JSON Lines, one object a line, in the order in which the scheduler's "
        "process does it. The first line is `log`; `settled` ends every call into the scheduler "
        "that changed something. Neither token ids nor block hashes are written down.",
        "",
        "## Events",
        "",
    ]
    for kind in EVENTS:
        sentence = (kind.__doc__ or "").strip()
        lines += [f"### `{kind.event}`", "", sentence, ""]
        if not attrs.fields(kind):
            continue
        lines += ["| log field | value | what it says | model | vLLM |", "|---|---|---|---|---|"]
        for field in attrs.fields(kind):
            about = field.metadata
            shape = SHAPES[about["shape"]][0]
            cells = (f"`{field.name}`", shape, about["doc"], about["model"], about["vllm"])
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [
        "## What `cowtail check` holds a log to",
        "",
        "| property | name | what must hold | source |",
        "|---|---|---|---|",
    ]
    for prop in PROPERTIES:
        lines.append(f"| {prop.identifier} | {prop.name} | {prop.sentence} | {prop.source} |")
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    """Write the page into a folder."""
    write_text(folder / PAGE, page())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
