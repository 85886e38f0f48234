"""Colours of kinds, the same in every format."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import networkx as nx

from cowtail.spec.drawing.arrows import node_kind


@attrs.frozen
class Colour:
    """A fill, with a border that also serves where the fill is too light to be seen."""

    fill: str
    border: str


PALETTE: tuple[Colour, ...] = (
    Colour("#f3f4f6", "#6b7280"),
    Colour("#dbeafe", "#2563eb"),
    Colour("#fef3c7", "#b45309"),
    Colour("#fce7f3", "#be185d"),
    Colour("#ede9fe", "#6d28d9"),
    Colour("#dcfce7", "#15803d"),
    Colour("#ffe4e6", "#b91c1c"),
    Colour("#cffafe", "#0e7490"),
    Colour("#ffedd5", "#9a3412"),
    Colour("#e0e7ff", "#3730a3"),
)
"""Colours of kinds in their order. Dark text on each fill has a contrast of at least 12 to 1."""


def colours(graph: nx.MultiDiGraph, legend: Mapping[str, str] | None = None) -> dict[str, Colour]:
    """Return the colour of each kind: those of the legend first, then as the graph has them."""
    kinds = [*(legend or {}), *(node_kind(graph, node) for node in graph)]
    return {kind: PALETTE[index % len(PALETTE)] for index, kind in enumerate(dict.fromkeys(kinds))}
