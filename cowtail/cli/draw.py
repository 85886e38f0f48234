"""``cowtail draw``: the life of a block, request, store job or handoff, as a diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.spec.files import write_text
from cowtail.spec.names import unknown
from cowtail.spec.scopes import scope_named
from cowtail.spec.traces import TraceError, read_trace
from cowtail.spec.views import view_named

SUFFIXES = {
    "svg": ".svg",
    "mermaid": ".mmd",
    "dot": ".dot",
    "graphml": ".graphml",
    "html": ".html",
}
"""Every format, with the suffix of its files."""


def draw(
    scope: Annotated[
        list[str], typer.Option("--scope", help="Scope to draw; several are drawn as one.")
    ],
    view: Annotated[
        str, typer.Option("--view", help="block, request, job, handoff, scope.")
    ] = "block",
    form: Annotated[
        str, typer.Option("--format", help="svg, mermaid, dot, graphml or html.", metavar="FORMAT")
    ] = "svg",
    trace: Annotated[
        list[Path] | None,
        typer.Option("--trace", help="Trace to load beside the page; html only, repeatable."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder, a file with the format's suffix, or - (stdout).")
    ] = Path("out"),
    quiet: common.Quiet = False,
) -> None:
    """Draw how one thing lives: every reachable state of a scope, seen from it.

    Format html is one page for a browser: the diagram, the states behind it, and every step.

    \b
    cowtail draw --scope cow_decode --view block --format svg
    cowtail draw --scope cow_decode --view handoff --format mermaid --out -
    cowtail draw --scope cow_decode --format html --trace out/finding.jsonl
    """
    with common.complaining(ValueError):
        for name in scope:
            scope_named(name)
        view_named(view)
    if form not in SUFFIXES:
        common.fail(unknown(form, "format", list(SUFFIXES)))
    if form == "html" and len(scope) > 1:
        common.fail(
            f"--scope {' '.join(scope)}: a page has one scope, the states of which it shows"
        )
    if form != "html" and trace:
        common.fail(f"--trace {trace[0]}: a drawing of format {form} has no traces; use html")
    with common.complaining(TraceError):
        traces = [(path.name, read_trace(path)) for path in trace or ()]
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
    from cowtail.spec.diagrams import render  # here, because networkx takes a while
    from cowtail.spec.page.document import page

    with common.progress("exploring: states", quiet) as update, common.complaining(ValueError):
        if form == "html":
            text = page(scope_named(scope[0]), view, traces, lambda seen: update(seen.states, None))
        else:
            text = render(scope, view, form, lambda seen: update(seen.states, None))
    if to_stdout:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    with common.complaining(OSError):
        write_text(path, text)
    typer.echo(f"wrote {path}")
