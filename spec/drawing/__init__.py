"""Drawings of small labelled graphs, made for lifecycles but knowing nothing of them.

A graph is a ``networkx.MultiDiGraph``. Its nodes may have the attributes ``label``, ``kind`` (a
colour class), ``initial`` and ``states`` (how many states they stand for); its edges ``action``,
``count`` and ``main`` (part of the main story, drawn straight and strong).
"""

from __future__ import annotations

from cowtail.spec.drawing.arrows import Arrow, merged_arrows
from cowtail.spec.drawing.formats import dot, graphml, mermaid
from cowtail.spec.drawing.geometry import Box, Layout, PlacedArrow, PlacedNode
from cowtail.spec.drawing.layout import CROSSING_COST, MAX_NODES, layout
from cowtail.spec.drawing.picture import svg

__all__ = [
    "CROSSING_COST",
    "MAX_NODES",
    "Arrow",
    "Box",
    "Layout",
    "PlacedArrow",
    "PlacedNode",
    "dot",
    "graphml",
    "layout",
    "merged_arrows",
    "mermaid",
    "svg",
]
