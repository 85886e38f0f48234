"""``cowtail finding``: a page about a finding, begun."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cowtail.cli import common
from cowtail.harness.findings.page import skeleton
from cowtail.spec.files import write_text
from cowtail.spec.traces import TraceError


def finding(
    folder: Annotated[Path, typer.Argument(help="Folder of a finding, as fuzz leaves it.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; printed if there is none.")
    ] = None,
) -> None:
    """Begin a page about a finding in vLLM: what its folder says, and what is left to write.

    \b
    cowtail finding out/findings/001 --out docs/findings/what-goes-wrong.md
    """
    with common.complaining(TraceError):
        page = skeleton(folder)
    if out is None:
        typer.echo(page, nl=False)
        return
    if out.exists():
        common.fail(f"--out {out}: is there already; choose another, or remove it")
    with common.complaining(OSError):
        write_text(out, page)
    typer.echo(f"wrote {out}")
