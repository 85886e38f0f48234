"""Tables and paragraphs of the generated pages."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 120
"""Columns of prose; rows of tables are as long as they must be."""


def paragraph(text: str) -> str:
    """Return prose, wrapped; reStructuredText's double backticks become single ones."""
    joined = " ".join(text.split()).replace("``", "`")
    return textwrap.fill(joined, WIDTH, break_on_hyphens=False, break_long_words=False)


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table."""
    return "\n".join((row(titles), f"|{'---|' * len(titles)}", *map(row, rows)))


def row(cells: tuple[str, ...]) -> str:
    """Return one row of a table; a bar in a cell is escaped."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def listed(names: Iterable[str], nothing: str = "") -> str:
    """Return names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names) or nothing
