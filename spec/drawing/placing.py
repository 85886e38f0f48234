"""From an order within layers to pixels: rows, ports, columns, and the paths of arrows.

Rows alternate. Even rows hold the nodes of a layer, and points where long arrows pass; odd rows
hold the labels, one box for each arrow, so that no label can be on a node or on another label.
Within a row arrows run straight down; they shift sideways only in the gaps between rows, where
there are no boxes. So no arrow runs through a node or a foreign label, and arrows cross exactly
where the orders of two rows differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs

from cowtail.spec.drawing.geometry import (
    LOOP_REACH,
    START_REACH,
    Box,
    Layout,
    PlacedArrow,
    PlacedNode,
    Point,
)
from cowtail.spec.drawing.ordering import Order, crossings, strand_order
from cowtail.spec.drawing.potentials import Demand, optimal_potentials
from cowtail.spec.drawing.sketch import COLUMN_GAP, NODE_PADDING, Sketch

_PORT_DISTANCE = 15
_PASSING = 4
_ROW_GAP = 22
_ROW_SLOPE = 0.16
_MAX_ROW_GAP = 96


def place(sketch: Sketch, order: Order) -> Layout:
    """Give everything a place, the order within layers being chosen."""
    return _Placing(sketch, order).layout()


@attrs.frozen
class _Item:
    """What a row holds: a node, a label, or the passing of an arrow; extents from its x."""

    left: int
    right: int
    height: int


class _Placing:
    """The placing of one sketch in one order.

    Items of the even rows keep their numbers. The passing of a strand through an odd row, with
    or without the label, is a further item, numbered after them.
    """

    def __init__(self, sketch: Sketch, order: Order) -> None:
        self._sketch = sketch
        self._order = order
        self._rows: list[list[int]] = []
        self._slots: dict[tuple[int, int], int] = {}
        self._number_rows()
        self._ports = {
            **self._ports_of_side(leaving_down=True),
            **self._ports_of_side(leaving_down=False),
        }
        self._items = self._measure()
        self._x = self._columns()
        self._tops, self._heights = self._bands()

    def _number_rows(self) -> None:
        """Fill ``_rows`` with items from left to right; ``_slots`` by arrow and layer."""
        layered = self._sketch.layered
        following = len(self._sketch.depth)
        for depth, layer in enumerate(self._order):
            self._rows.append(list(layer))
            if depth == len(layered.strands):
                break
            strands = layered.strands[depth]
            row = []
            for index in strand_order(strands, layer, self._order[depth + 1]):
                self._slots[strands[index].link, depth] = following
                row.append(following)
                following += 1
            self._rows.append(row)

    def _ports_of_side(self, leaving_down: bool) -> dict[tuple[int, int, bool], int]:
        """Return where arrows touch the lower (or upper) side of nodes, from the node's x.

        The key is (node, arrow, whether at the lower side). A main arrow touches the middle,
        so that the main story can be straight; the others keep their distance on either side.
        """
        sketch = self._sketch
        touching: dict[int, list[tuple[int, int]]] = {}
        for index, chain in sketch.chains.items():
            node = chain[0] if leaving_down else chain[-1]
            depth = sketch.depth[node] if leaving_down else sketch.depth[node] - 1
            touching.setdefault(node, []).append((self._slots[index, depth], index))
        ports: dict[tuple[int, int, bool], int] = {}
        for node, ends in touching.items():
            ends.sort()
            middle: float = (len(ends) - 1) / 2
            for place, (_, index) in enumerate(ends):
                if sketch.arrows[index].main and index not in sketch.upward:
                    middle = place
            for place, (_, index) in enumerate(ends):
                ports[node, index, leaving_down] = round((place - middle) * _PORT_DISTANCE)
        return ports

    def _measure(self) -> dict[int, _Item]:
        sketch = self._sketch
        items = {item: _Item(_PASSING, _PASSING, 0) for row in self._rows for item in row}
        reach: dict[int, int] = {}
        for (node, _, _), port in self._ports.items():
            reach[node] = max(reach.get(node, 0), abs(port))
        for node, (width, height) in enumerate(sketch.node_sizes):
            half = max(width // 2, reach.get(node, 0) + NODE_PADDING)
            left = half + (START_REACH if node in sketch.started else 0)
            right = half
            if node in sketch.loops:
                loop_width, loop_height = sketch.label_sizes[sketch.loops[node]]
                right += LOOP_REACH + loop_width
                height = max(height, loop_height)
            items[node] = _Item(left, right, height)
        for index, depth in sketch.labelled.items():
            width, height = sketch.label_sizes[index]
            items[self._slots[index, depth]] = _Item(width // 2, width // 2, height)
        return items

    def _half(self, node: int) -> int:
        """Return half of the width of a node's own box."""
        item = self._items[node]
        return item.left - (START_REACH if node in self._sketch.started else 0)

    def _path(self, index: int) -> list[tuple[int, int]]:
        """Return (item, x from the item's) for the whole of an arrow, from the upper end."""
        sketch = self._sketch
        chain = sketch.chains[index]
        path = [(chain[0], self._ports[chain[0], index, True])]
        for above, below in pairwise(chain):
            path += [(self._slots[index, sketch.depth[above]], 0), (below, 0)]
        path[-1] = (chain[-1], self._ports[chain[-1], index, False])
        return path

    def _columns(self) -> dict[int, int]:
        """Return the x of every item: in order, apart, and arrows as straight as can be.

        The sum of all sideways shifts is the least possible, those of the main story and within
        long arrows counting more. Of all such solutions the mean of the leftmost and the
        rightmost is taken, which centres what is free to move.
        """
        demands = [
            Demand(
                left,
                right,
                length=self._items[left].right + self._items[right].left + COLUMN_GAP,
            )
            for row in self._rows
            for left, right in pairwise(row)
        ]
        variables = len(self._items)
        for index in self._sketch.chains:
            path = self._path(index)
            main = self._sketch.arrows[index].main and index not in self._sketch.upward
            for (above, from_above), (below, from_below) in pairwise(path):
                inner = above >= self._sketch.layered.nodes and below >= self._sketch.layered.nodes
                weight = (8 if inner else 1) * (16 if main else 1)
                demands += [
                    Demand(variables, above, -from_above, weight),
                    Demand(variables, below, -from_below, weight),
                ]
                variables += 1
        lowest, highest = optimal_potentials(variables, demands)
        middle = {item: (lowest[item] + highest[item]) // 2 for item in self._items}
        left = min(x - self._items[item].left for item, x in middle.items())
        return {item: x - left for item, x in middle.items()}

    def _bands(self) -> tuple[list[float], list[float]]:
        """Return the top and the height of every row; a gap is higher where arrows shift far."""
        heights = [float(max(self._items[item].height for item in row)) for row in self._rows]
        row_of = {item: index for index, row in enumerate(self._rows) for item in row}
        shift = [0] * len(self._rows)
        for index in self._sketch.chains:
            path = self._path(index)
            for (above, from_above), (below, from_below) in pairwise(path):
                distance = abs(self._x[above] + from_above - self._x[below] - from_below)
                shift[row_of[above]] = max(shift[row_of[above]], distance)
        tops = [0.0]
        for height, distance in zip(heights, shift, strict=True):
            gap = min(_ROW_GAP + _ROW_SLOPE * distance, _MAX_ROW_GAP)
            tops.append(tops[-1] + height + round(gap))
        return tops[:-1], heights

    def layout(self) -> Layout:
        """Return the finished layout."""
        sketch = self._sketch
        row_of = {item: index for index, row in enumerate(self._rows) for item in row}
        nodes = []
        for node, name in enumerate(sketch.names):
            row, half, height = row_of[node], self._half(node), sketch.node_sizes[node][1]
            top = self._tops[row] + (self._heights[row] - height) / 2
            box = Box(self._x[node] - half, top, 2 * half, height)
            nodes.append(PlacedNode(name, sketch.node_lines[node], box))
        arrows = []
        for index, arrow in enumerate(sketch.arrows):
            if arrow.is_loop:
                arrows.append(self._loop(index, nodes))
            else:
                arrows.append(self._arrow(index, row_of, nodes))
        return Layout(
            nodes=tuple(nodes),
            arrows=tuple(arrows),
            width=float(max(x + self._items[item].right for item, x in self._x.items())),
            height=self._tops[-1] + self._heights[-1],
            crossings=crossings(sketch.layered, self._order),
        )

    def _loop(self, index: int, nodes: list[PlacedNode]) -> PlacedArrow:
        sketch = self._sketch
        arrow = sketch.arrows[index]
        box = nodes[sketch.names.index(arrow.source)].box
        width, height = sketch.label_sizes[index]
        middle = box.centre[1]
        label = Box(box.right + LOOP_REACH, middle - height / 2, width, height)
        corners = ((box.right, middle - 8), (box.right, middle + 8))
        return PlacedArrow(arrow, sketch.arrow_lines[index], label, corners)

    def _arrow(self, index: int, row_of: dict[int, int], nodes: list[PlacedNode]) -> PlacedArrow:
        sketch = self._sketch
        path = self._path(index)
        corners: list[Point] = []
        for item, offset in path:
            x, top = float(self._x[item] + offset), self._tops[row_of[item]]
            corners += [(x, top), (x, top + self._heights[row_of[item]])]
        # At its ends the path stops at the node, which may be lower than its row is high.
        corners[0] = (corners[0][0], nodes[path[0][0]].box.bottom)
        corners[-1] = (corners[-1][0], nodes[path[-1][0]].box.top)
        if index in sketch.upward:
            corners.reverse()
        slot = self._slots[index, sketch.labelled[index]]
        width, height = sketch.label_sizes[index]
        top = self._tops[row_of[slot]] + (self._heights[row_of[slot]] - height) / 2
        label = Box(self._x[slot] - width / 2, top, width, height)
        return PlacedArrow(
            sketch.arrows[index], sketch.arrow_lines[index], label, _without_repeats(corners)
        )


def _without_repeats(corners: Sequence[Point]) -> tuple[Point, ...]:
    """Drop corners in the middle of a vertical line."""
    kept: list[Point] = []
    for corner in corners:
        if kept and corner == kept[-1]:
            continue
        if len(kept) > 1 and kept[-1][0] == kept[-2][0] == corner[0]:
            kept.pop()
        kept.append(corner)
    return tuple(kept)
