"""``cowtail draw``: the life of a block, request, store job or handoff, as a diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.spec.files import write_text
from cowtail.spec.names import unknown
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
        common.fail(unknown(form, "format", list(SUFFIXES)))
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

    with common.progress("exploring: states", quiet) as update:
        text = render(scope, view, form, lambda progress: update(progress.states, None))
    if to_stdout:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    with common.complaining(OSError):
        write_text(path, text)
    typer.echo(f"wrote {path}")
