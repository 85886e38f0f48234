"""The search for a good drawing: few crossings first, then short arrows that point down.

>>> graph = nx.MultiDiGraph()
>>> _ = graph.add_edge("free", "held", action="admit")
>>> _ = graph.add_edge("held", "free", action="abort")
>>> drawing = layout(graph)
>>> drawing.crossings, [placed.node for placed in drawing.nodes]
(0, ['free', 'held'])
"""

from __future__ import annotations

from itertools import pairwise

import attrs
import networkx as nx

from cowtail.spec.drawing.geometry import Layout
from cowtail.spec.drawing.layers import MAIN_WEIGHT
from cowtail.spec.drawing.ordering import Order, crossings, good_orders
from cowtail.spec.drawing.placing import place
from cowtail.spec.drawing.sketch import Sketch, sketches

MAX_NODES = 40
"""More than this cannot be read, whatever the layout."""

CROSSING_COST = 60
"""A crossing is avoided unless that makes the arrows longer by more than this many layers."""

_LAYER_HEIGHT = 120
_LAYERINGS = 6
_DRAWN = 4
_ORDERS = 2
_QUICK_STARTS = 3
_THOROUGH_STARTS = 30
_WORK = 600_000
"""Bound of either round of the search: pairs of items in a layer, summed over all starts."""


def layout(graph: nx.MultiDiGraph, *, crossing_cost: int = CROSSING_COST) -> Layout:
    """Return where everything in the drawing of a graph is; the same graph gives the same layout.

    Args:
        graph: what to draw.
        crossing_cost: how many layers longer arrows may be in sum to avoid one crossing. Less
            than the default keeps nodes nearer to where the story has them.

    Raises:
        ValueError: the graph has no nodes, or more than ``MAX_NODES``.
    """
    if not 1 <= len(graph) <= MAX_NODES:
        raise ValueError(
            f"a graph of {len(graph):,} nodes cannot be drawn: from 1 to {MAX_NODES} nodes can; "
            "draw a projection, or write GraphML or DOT"
        )
    promising = _promising(graph, crossing_cost)
    drawings = [place(attempt.sketch, order) for attempt in promising for order in attempt.orders]
    return min(drawings, key=lambda drawing: _badness(drawing, crossing_cost))


@attrs.frozen
class _Attempt:
    """A layering, and its best orders; ``cost`` counts crossings and the length of arrows."""

    length: int
    sketch: Sketch
    orders: list[Order]
    cost: int


def _promising(graph: nx.MultiDiGraph, crossing_cost: int) -> list[_Attempt]:
    """Return the layerings of least cost, at most ``_LAYERINGS``, with their best orders.

    All are tried quickly, until the length of arrows alone makes the rest worse than what was
    found, or the work is too much; the best of them are then tried from more starts.
    """
    enough = _crossings_at_least(graph)

    def attempt(length: int, sketch: Sketch, starts: int) -> _Attempt:
        orders = good_orders(sketch.layered, starts, enough)
        cost = length + crossing_cost * crossings(sketch.layered, orders[0])
        return _Attempt(length, sketch, orders[:_ORDERS], cost)

    quick: list[_Attempt] = []
    least, work = 0, 0
    for length, sketch in sketches(graph):
        if quick and (length + crossing_cost * enough > least or work > _WORK):
            break
        quick.append(attempt(length, sketch, _QUICK_STARTS))
        least = min(quick[-1].cost, least) if len(quick) > 1 else quick[-1].cost
        work += _QUICK_STARTS * _pairs(sketch)
    best = sorted(quick, key=lambda tried: tried.cost)[:_LAYERINGS]
    thorough = []
    for tried in best:
        affordable = _WORK // (len(best) * _pairs(tried.sketch))
        starts = max(_QUICK_STARTS, min(_THOROUGH_STARTS, affordable))
        thorough.append(attempt(tried.length, tried.sketch, starts))
    return sorted(thorough, key=lambda tried: tried.cost)[:_DRAWN]


def _pairs(sketch: Sketch) -> int:
    """Return how many pairs of items share a layer, the unit of the search's work."""
    return sum(len(layer) ** 2 for layer in sketch.layered.items)


def _crossings_at_least(graph: nx.MultiDiGraph) -> int:
    """Return a number of crossings that no drawing can be below: 0 for a planar graph."""
    simple = nx.Graph((source, target) for source, target in graph.edges() if source != target)
    planar, _ = nx.check_planarity(simple)
    return 0 if planar else max(1, simple.number_of_edges() - 3 * len(simple) + 6)


def _badness(placed: Layout, crossing_cost: int) -> float:
    """Return what makes one of two drawings the worse, in pixels."""
    total = 4 * placed.width + _LAYER_HEIGHT * crossing_cost * placed.crossings
    for arrow in placed.arrows:
        for (from_x, from_y), (to_x, to_y) in pairwise(arrow.corners):
            total += abs(to_x - from_x) * (MAIN_WEIGHT if arrow.arrow.main else 1)
            total += max(to_y - from_y, 2 * (from_y - to_y))
    return total
