"""The differences between two models as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from cowtail.spec.comparison.differences import Comparison, ViewChanges

_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;"
    "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}td,th{padding:.2rem .8rem;"
    "text-align:left;border-bottom:1px solid #8888}ins,del{text-decoration:none}"
)


def as_html(found: Comparison) -> str:
    """Return the page; every change is marked with a word, not by colour alone."""
    title = f"{escape(found.old)} → {escape(found.new)}"
    lines = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        f"<p><strong>{escape(found.verdict())}</strong></p>",
        f"<p>Bounds of each scope: {escape(found.bounds)}.</p>",
        *(f"<p>{escape(line)}</p>" for line in found.catalogue),
    ]
    for scope in found.scopes:
        lines.append(f"<h2>{escape(scope.scope)}: {escape(scope.equivalence)}</h2>")
        lines += [f"<p>bound hit: {escape(hit)}</p>" for hit in scope.bounds_hit]
        lines += _table("constant", scope.constants)
        for view, changes in scope.views.items():
            lines += [f"<h3>The life of a {escape(view)}</h3><ul>", *_changes(changes), "</ul>"]
        figures = [(name, f"{was:,}", f"{now:,}") for name, was, now in scope.figures]
        lines += _table("figure", figures)
    return "\n".join([*lines, "</body></html>"]) + "\n"


def _changes(changes: ViewChanges) -> Iterator[str]:
    for tag, word, nodes, edges in (
        ("del", "removed", changes.nodes_removed, changes.edges_removed),
        ("ins", "added", changes.nodes_added, changes.edges_added),
    ):
        shown = [*nodes, *(f"{was} — {action} → {becomes}" for was, action, becomes in edges)]
        yield from (f"<li><{tag}><b>{word}</b>: {escape(what)}</{tag}></li>" for what in shown)


def _table(what: str, rows: list[tuple[str, str, str]]) -> list[str]:
    if not rows:
        return []
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return [f"<table><tr><th>{what}</th><th>old</th><th>new</th></tr>{body}</table>"]
