"""``cowtail diff``: what a change of the model changes in its behaviour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import attrs
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cowtail.cli import common
from cowtail.harness import revisions
from cowtail.spec.broken_rules import broken_rule_named
from cowtail.spec.comparison.differences import Comparison, as_markdown, compare
from cowtail.spec.comparison.page import as_html
from cowtail.spec.names import unknown
from cowtail.spec.scopes import scope_named

DEFAULT_SCOPES = ("base_connector", "window_tail", "consumer_load", "same_pass", "lone_producer")
"""Small scopes that together have saves, loads, windows and tails."""

FORMATS = ("text", "markdown", "html", "json")
Source = Annotated[str, typer.Argument(help="., git:REVISION, rule:NAME, or a file.")]


def diff(
    old: Source,
    new: Source,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="Scope to compare; several times.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, markdown, html, json.", metavar="FORMAT")
    ] = "text",
    save: Annotated[
        Path | None, typer.Option("--save", help="Also write NEW's graph (.json, .json.gz).")
    ] = None,
    max_states: Annotated[int, typer.Option(min=1, help="Bound, for each scope.")] = 100_000,
    max_seconds: Annotated[float, typer.Option(min=0.001, help="Bound, for each scope.")] = 120.0,
) -> None:
    """Compare two models: their graphs, views, actions and properties.

    Exits with 0 if nothing changed, 1 if something did, 3 if a bound was hit. A revision is one
    of the git repository here; `rule:` is the model with a broken rule of `cowtail explore`.

    \b
    cowtail diff git:HEAD .
    cowtail diff . rule:tail_dropped_at_finish --format markdown
    """
    if form not in FORMATS:
        common.fail(unknown(form, "format", list(FORMATS)))
    with common.complaining(ValueError):
        rules = [
            broken_rule_named(each.removeprefix("rule:"))
            for each in (old, new)
            if each.startswith("rule:")
        ]
    default = tuple(dict.fromkeys(rule.scope for rule in rules)) or DEFAULT_SCOPES
    names = list(dict.fromkeys(scope or default))
    if "." in (old, new) or rules:
        with common.complaining(ValueError):
            for name in names:
                scope_named(name)
    with common.complaining(ValueError, OSError):
        before = revisions.record_of(old, names, max_states, max_seconds)
        after = revisions.record_of(new, names, max_states, max_seconds)
        if save is not None:
            revisions.write(save, after)
        found = compare(before, after, (old, new), f"{max_states:,} states, {max_seconds:g} s")
    match form:
        case "markdown":
            typer.echo(as_markdown(found), nl=False)
        case "html":
            typer.echo(as_html(found), nl=False)
        case "json":
            typer.echo(json.dumps({"verdict": found.verdict(), **attrs.asdict(found)}, indent=2))
        case _:
            _show(found)
    if found.undetermined:
        raise typer.Exit(common.UNDETERMINED)
    raise typer.Exit(common.VIOLATED if found.different else common.HOLDS)


def _show(found: Comparison) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for line in found.catalogue:
        console.print(Text(line))
    for scope in found.scopes:
        console.print(Text(f"{scope.scope}: {scope.equivalence}", style="bold"))
        for hit in scope.bounds_hit:
            console.print(Text(f"  bound hit: {hit}"))
        for name, was, now in scope.constants:
            console.print(Text(f"  {name}: was {was}, is {now}"))
        for view, changes in scope.views.items():
            marked = [("-", node) for node in changes.nodes_removed]
            marked += [("+", node) for node in changes.nodes_added]
            marked += [("-", f"{a} --{by}--> {b}") for a, by, b in changes.edges_removed]
            marked += [("+", f"{a} --{by}--> {b}") for a, by, b in changes.edges_added]
            for sign, what in marked:
                style = "red" if sign == "-" else "green"
                console.print(Text(f"  {sign} {view}: {what}", style=style))
        if scope.figures:
            figures = Table("figure", "old", "new", box=None)
            for figure, was_count, count in scope.figures:
                figures.add_row(figure, f"{was_count:,}", f"{count:,}")
            console.print(figures)
    console.print(Text(f"bounds of each scope: {found.bounds}"))
    console.print(Text(found.verdict(), style="bold"))
