"""``cowtail vllm fetch`` and ``cowtail vllm matrix``: releases of vLLM, side by side."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cowtail.cli import common

vllm = typer.Typer(
    help="Releases of vLLM: fetch them, and see what each does.",
    epilog=common.EXITS,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@vllm.command(epilog=common.EXITS)
def fetch(
    releases: Annotated[
        list[str] | None, typer.Argument(help="Default: all that are driven.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Download releases of vLLM into the cache, for --release. What is there already stays."""
    from cowtail.impl.vllm_engine.fetch import FetchFailed
    from cowtail.impl.vllm_engine.fetch import fetch as run_fetch
    from cowtail.impl.vllm_engine.releases import RELEASES, VllmNotInstalled

    for version in releases or [release.version for release in RELEASES]:
        with common.complaining(VllmNotInstalled, FetchFailed, OSError):
            typer.echo(f"vLLM {version}: {run_fetch(version, quiet=quiet)}")


@vllm.command(epilog=common.EXITS)
def matrix(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Run the known scenarios on every release at hand: which one has which historical defect."""
    from cowtail.impl.vllm_engine.matrix import as_markdown, shown, tokens_found
    from cowtail.impl.vllm_engine.releases import VllmNotInstalled

    with common.complaining(VllmNotInstalled, RuntimeError):
        found = tokens_found()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif markdown:
        typer.echo(as_markdown(found), nl=False)
    else:
        header, rows = shown(found)
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
