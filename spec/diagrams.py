"""The committed diagrams: ``python -m cowtail.spec.diagrams docs/diagrams``.

A test draws them again and compares, so that a change of the rules shows up as a changed picture
in review.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cowtail.spec import drawing
from cowtail.spec.exploration import Progress
from cowtail.spec.files import write_text
from cowtail.spec.lives import life_graph
from cowtail.spec.scopes import scope_named
from cowtail.spec.views import view_named

AMPLE = ("lone_producer", "shared_prefix")
"""Scopes whose pools are never short of blocks; together they reach every phase of a block."""

DIAGRAMS: dict[str, tuple[tuple[str, ...], str]] = {
    "block-life": (AMPLE, "block"),
    "block-life-under-pressure": ((*AMPLE, "preempt_under_pressure"), "block"),
    "request-life": (AMPLE, "request"),
    "job-life": (AMPLE, "job"),
    "handoff-life": (AMPLE, "handoff"),
}
"""File name without suffix: the scopes and the view."""


def draw_diagram(name: str) -> str:
    """Return a committed diagram as SVG."""
    scopes, view = DIAGRAMS[name]
    return render(scopes, view, "svg")


def render(
    scopes: Sequence[str],
    view: str,
    form: str,
    progress: Callable[[Progress], None] | None = None,
) -> str:
    """Return the view of the named scopes, drawn as one: svg, mermaid, dot or graphml."""
    seen = view_named(view)
    graph = life_graph([scope_named(name) for name in scopes], seen, progress=progress)
    caption = f"{seen.caption} Scopes: {', '.join(scopes)}, {graph.graph['states']:,} states."
    match form:
        case "mermaid":
            return drawing.mermaid(graph, title=seen.title)
        case "dot":
            return drawing.dot(graph, title=seen.title)
        case "graphml":
            return drawing.graphml(graph)
    return drawing.svg(graph, title=seen.title, caption=caption)


def main(folder: str) -> None:
    """Write every committed diagram to ``folder``."""
    for name in DIAGRAMS:
        write_text(Path(folder) / f"{name}.svg", draw_diagram(name))
        print(f"wrote {folder}/{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1])
