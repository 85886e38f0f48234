"""``cowtail draw``: the life of a block, request, store job or handoff, as a diagram."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.spec.files import write_text
from cowtail.spec.scopes import scope_named
from cowtail.spec.views import view_named

SUFFIXES = {"svg": ".svg", "mermaid": ".mmd", "dot": ".dot", "graphml": ".graphml"}
"""Every format, with the suffix of its files."""


def draw(
    scope: Annotated[
        list[str], typer.Option("--scope", help="Scope to draw; several are drawn as one.")
    ],
    view: Annotated[str, typer.Option("--view", help="block, request, job, handoff.")] = "block",
    form: Annotated[
        str, typer.Option("--format", help="svg, mermaid, dot or graphml.", metavar="FORMAT")
    ] = "svg",
    out: Annotated[
        Path, typer.Option("--out", help="Folder, a file with the format's suffix, or - (stdout).")
    ] = Path("out"),
    quiet: common.Quiet = False,
) -> None:
    """Draw how one thing lives: every reachable state of a scope, seen from it.

    \b
    cowtail draw --scope cow_decode --view block --format svg
    cowtail draw --scope cow_decode --view handoff --format mermaid --out -
    """
    with common.complaining(ValueError):
        for name in scope:
            scope_named(name)
        view_named(view)
    if form not in SUFFIXES:
        common.fail(common.nearest(form, "format", list(SUFFIXES)))
    to_stdout = str(out) == "-"
    is_file = out.suffix == SUFFIXES[form]
    if out.suffix and not is_file and not out.is_dir():
        common.fail(
            f"--out {out}: a file of format {form} ends in {SUFFIXES[form]}; rename it, or name a "
            "folder"
        )
    path = out if is_file else out / f"{'-'.join(scope)}-{view}{SUFFIXES[form]}"
    if not to_stdout:
        common.writable(path.parent)
    text = render(scope, view, form, quiet)
    if to_stdout:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    with common.complaining(OSError):
        write_text(path, text)
    typer.echo(f"wrote {path}")


def render(scopes: Sequence[str], view: str, form: str, quiet: bool = True) -> str:
    """Return the diagram of scopes and a view that exist, in a format of ``SUFFIXES``."""
    from cowtail.spec import drawing
    from cowtail.spec.lives import life_graph

    seen = view_named(view)
    with common.progress("exploring: states", quiet) as update:
        graph = life_graph(
            [scope_named(name) for name in scopes],
            seen,
            progress=lambda progress: update(progress.states, None),
        )
    caption = f"{seen.caption} Scopes: {', '.join(scopes)}, {graph.graph['states']:,} states."
    match form:
        case "mermaid":
            return drawing.mermaid(graph, title=seen.title)
        case "dot":
            return drawing.dot(graph, title=seen.title)
        case "graphml":
            return drawing.graphml(graph)
    return drawing.svg(graph, title=seen.title, caption=caption)
