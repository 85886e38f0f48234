"""Where everything is: a layered layout with room reserved for every label.

Rows alternate. Even rows hold the nodes of a layer, and points where long arrows pass; odd rows
hold the labels, one box for each arrow, so that no label can be on a node or on another label.
Within a row arrows run straight down; they shift sideways only in the gaps between rows, where
there are no boxes. So no arrow runs through a node or a foreign label, and arrows cross exactly
where the orders of two rows differ.

All lengths are pixels; x grows to the right, y grows downward.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import attrs
import networkx as nx

from cowtail.spec.drawing import text
from cowtail.spec.drawing.arrows import Arrow, is_initial, merged_arrows, node_label
from cowtail.spec.drawing.layers import Link, layers, reading_order
from cowtail.spec.drawing.ordering import (
    Layered,
    Order,
    Strand,
    crossings,
    good_orders,
    strand_order,
)
from cowtail.spec.drawing.potentials import Demand, optimal_potentials

MAX_NODES = 40
"""More than this cannot be read, whatever the layout."""

LOOP_REACH = 24
"""How far a loop reaches out of the right side of its node."""

START_REACH = 30
"""Room at the left of an initial node for the dot and the arrow that mark it."""

_NODE_WIDTH = 170
_NODE_PADDING = 14
_LABEL_PADDING = 4
_PORT_DISTANCE = 18
_COLUMN_GAP = 16
_PASSING = 4
_ROW_GAP = 22
_ROW_SLOPE = 0.16
_MAX_ROW_GAP = 64
_ORDERS_TRIED = 4

Point = tuple[float, float]


@attrs.frozen
class Box:
    """A rectangle by its left upper corner and its size."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The x of the right side."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The y of the lower side."""
        return self.top + self.height

    @property
    def centre(self) -> Point:
        """The middle."""
        return self.left + self.width / 2, self.top + self.height / 2

    def overlaps(self, other: Box) -> bool:
        """Whether the two have more than an edge in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


@attrs.frozen
class PlacedNode:
    """A node: the lines of its label, and its box."""

    node: Hashable
    lines: tuple[str, ...]
    box: Box


@attrs.frozen
class PlacedArrow:
    """An arrow: the lines of its label, their box, and the corners of its path.

    The path leads from the source's border to the target's, through ``corners``: neighbours with
    the same x are joined by a vertical line, others by a curve that leaves both vertically. A
    loop has two corners, both on the right side of its node.
    """

    arrow: Arrow
    lines: tuple[str, ...]
    label: Box
    corners: tuple[Point, ...]


@attrs.frozen
class Layout:
    """A drawing's geometry; everything lies between (0, 0) and (width, height)."""

    nodes: tuple[PlacedNode, ...]
    arrows: tuple[PlacedArrow, ...]
    width: float
    height: float
    crossings: int


def layout(graph: nx.MultiDiGraph) -> Layout:
    """Return where everything in the drawing of a graph is; the same graph gives the same layout.

    Raises:
        ValueError: the graph has no nodes, or more than ``MAX_NODES``.
    """
    if not 1 <= len(graph) <= MAX_NODES:
        raise ValueError(
            f"a graph of {len(graph):,} nodes cannot be drawn: from 1 to {MAX_NODES} nodes can; "
            "draw a projection, or write GraphML or DOT"
        )
    sketch = _sketch(graph)
    best: Layout | None = None
    shortest = 0.0
    for order in good_orders(sketch.layered, keep=_ORDERS_TRIED):
        placed = _placed(sketch, order)
        length = _length(placed)
        if best is None or length < shortest:
            best, shortest = placed, length
    if best is None:
        raise AssertionError("a layered graph has at least one order")
    return best


def _length(placed: Layout) -> float:
    """Return what makes one of two drawings worse: sideways shifts, the main story's above all."""
    sideways = sum(
        abs(after[0] - before[0]) * (8 if arrow.arrow.main else 1)
        for arrow in placed.arrows
        for before, after in zip(arrow.corners, arrow.corners[1:], strict=False)
    )
    return sideways + 4 * placed.width


@attrs.frozen
class _Item:
    """What a row holds: a node, a label, or the passing of an arrow; extents from its x."""

    left: int
    right: int
    height: int


@attrs.frozen
class _Sketch:
    """A graph in layers, before anything has a place.

    ``chains`` has for each arrow that is no loop the items of the layers that it passes, from the
    upper to the lower end; ``labelled`` the layer below which it has its label.
    """

    names: tuple[Hashable, ...]
    node_lines: tuple[tuple[str, ...], ...]
    node_sizes: tuple[tuple[int, int], ...]
    arrows: tuple[Arrow, ...]
    arrow_lines: tuple[tuple[str, ...], ...]
    loops: dict[int, int]
    started: frozenset[int]
    chains: dict[int, tuple[int, ...]]
    depth: dict[int, int]
    upward: frozenset[int]
    labelled: dict[int, int]
    layered: Layered


def _sketch(graph: nx.MultiDiGraph) -> _Sketch:
    names = tuple(graph)
    number = {name: index for index, name in enumerate(names)}
    arrows = merged_arrows(graph)
    started = [index for index, name in enumerate(names) if is_initial(graph, name)]
    plain = [index for index, arrow in enumerate(arrows) if not arrow.is_loop]
    links = [
        Link(number[arrows[i].source], number[arrows[i].target], arrows[i].main) for i in plain
    ]
    depths = layers(reading_order(len(names), links, started), links, started)
    chains, depth, layered = _in_layers(depths, dict(zip(plain, links, strict=True)))
    arrow_lines = tuple(text.stacked(arrow.actions) for arrow in arrows)
    node_lines = tuple(
        text.wrapped(node_label(graph, name).split(), text.NODE_SIZE, _NODE_WIDTH)
        for name in names
    )
    return _Sketch(
        names=names,
        node_lines=node_lines,
        node_sizes=tuple(_node_size(lines) for lines in node_lines),
        arrows=arrows,
        arrow_lines=arrow_lines,
        loops={number[arrow.source]: i for i, arrow in enumerate(arrows) if arrow.is_loop},
        started=frozenset(started),
        chains=chains,
        depth=depth,
        upward=frozenset(
            index
            for index, chain in chains.items()
            if names[chain[0]] != arrows[index].source
        ),
        labelled=_label_layers(chains, depth, arrow_lines),
        layered=layered,
    )


def _node_size(lines: tuple[str, ...]) -> tuple[int, int]:
    width = max(text.text_width(line, text.NODE_SIZE, bold=True) for line in lines)
    return width + 2 * _NODE_PADDING, text.text_height(len(lines), text.NODE_SIZE) + 14


def _label_size(lines: tuple[str, ...]) -> tuple[int, int]:
    width = max((text.text_width(line, text.LABEL_SIZE) for line in lines), default=0)
    return width + 2 * _LABEL_PADDING, text.text_height(len(lines), text.LABEL_SIZE) + 2


def _in_layers(
    depths: Sequence[int], links: dict[int, Link]
) -> tuple[dict[int, tuple[int, ...]], dict[int, int], Layered]:
    """Cut links into strands; return the chain of each link, the depth of each item, the layers."""
    depth = dict(enumerate(depths))
    chains: dict[int, tuple[int, ...]] = {}
    strands: list[list[Strand]] = [[] for _ in range(max(depths))]
    for index, link in links.items():
        upper, lower = sorted((link.source, link.target), key=depth.__getitem__)
        chain = [upper]
        for layer in range(depth[upper] + 1, depth[lower]):
            chain.append(len(depth))
            depth[chain[-1]] = layer
        chain.append(lower)
        chains[index] = tuple(chain)
        for above, below in zip(chain, chain[1:], strict=False):
            strands[depth[above]].append(Strand(index, above, below, link.main))
    items = tuple(
        tuple(item for item, layer in depth.items() if layer == at)
        for at in range(max(depths) + 1)
    )
    return chains, depth, Layered(len(depths), items, tuple(map(tuple, strands)))


def _label_layers(
    chains: dict[int, tuple[int, ...]],
    depth: dict[int, int],
    lines: Sequence[tuple[str, ...]],
) -> dict[int, int]:
    """Choose the row of each label: the emptiest that its arrow passes, short arrows first."""
    used: dict[int, int] = {}
    chosen: dict[int, int] = {}
    for index, chain in sorted(chains.items(), key=lambda entry: len(entry[1])):
        rows = range(depth[chain[0]], depth[chain[-1]])
        row = min(rows, key=lambda row: (used.get(row, 0), row))
        chosen[index] = row
        used[row] = used.get(row, 0) + _label_size(lines[index])[0] + _COLUMN_GAP
    return chosen


def _placed(sketch: _Sketch, order: Order) -> Layout:
    """Give everything a place, the order within layers being chosen."""
    return _Placing(sketch, order).layout()


class _Placing:
    """The placing of one sketch in one order.

    Items of the even rows keep their numbers. The passing of a strand through an odd row, with
    or without the label, is a further item, numbered after them.
    """

    def __init__(self, sketch: _Sketch, order: Order) -> None:
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
            middle = (len(ends) - 1) / 2
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
            half = max(width // 2, reach.get(node, 0) + _NODE_PADDING)
            left = half + (START_REACH if node in sketch.started else 0)
            right = half
            if node in sketch.loops:
                loop_width, loop_height = _label_size(sketch.arrow_lines[sketch.loops[node]])
                right += LOOP_REACH + loop_width
                height = max(height, loop_height)
            items[node] = _Item(left, right, height)
        for index, depth in sketch.labelled.items():
            width, height = _label_size(sketch.arrow_lines[index])
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
        for above, below in zip(chain, chain[1:], strict=False):
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
                length=self._items[left].right + self._items[right].left + _COLUMN_GAP,
            )
            for row in self._rows
            for left, right in zip(row, row[1:], strict=False)
        ]
        variables = len(self._items)
        for index in self._sketch.chains:
            path = self._path(index)
            main = self._sketch.arrows[index].main and index not in self._sketch.upward
            for (above, from_above), (below, from_below) in zip(path, path[1:], strict=False):
                inner = above >= self._sketch.layered.nodes and below >= self._sketch.layered.nodes
                weight = (4 if inner else 1) * (16 if main else 1)
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
        heights = [float(max((self._items[i].height for i in row), default=0)) for row in self._rows]
        row_of = {item: index for index, row in enumerate(self._rows) for item in row}
        shift = [0] * len(self._rows)
        for index in self._sketch.chains:
            path = self._path(index)
            for (above, from_above), (below, from_below) in zip(path, path[1:], strict=False):
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
                arrows.append(self._loop(arrow, sketch.arrow_lines[index], nodes))
            else:
                arrows.append(self._arrow(index, row_of, nodes))
        return Layout(
            nodes=tuple(nodes),
            arrows=tuple(arrows),
            width=float(max(x + self._items[item].right for item, x in self._x.items())),
            height=self._tops[-1] + self._heights[-1],
            crossings=crossings(sketch.layered, self._order),
        )

    def _loop(self, arrow: Arrow, lines: tuple[str, ...], nodes: list[PlacedNode]) -> PlacedArrow:
        box = nodes[self._sketch.names.index(arrow.source)].box
        width, height = _label_size(lines)
        middle = box.centre[1]
        label = Box(box.right + LOOP_REACH, middle - height / 2, width, height)
        corners = ((box.right, middle - 8), (box.right, middle + 8))
        return PlacedArrow(arrow, lines, label, corners)

    def _arrow(
        self, index: int, row_of: dict[int, int], nodes: list[PlacedNode]
    ) -> PlacedArrow:
        sketch = self._sketch
        path = self._path(index)
        upper, lower = nodes[path[0][0]].box, nodes[path[-1][0]].box
        corners: list[Point] = []
        for item, offset in path:
            row, x = row_of[item], float(self._x[item] + offset)
            top, bottom = self._tops[row], self._tops[row] + self._heights[row]
            first, last = item == path[0][0], item == path[-1][0]
            corners.append((x, upper.bottom if first else top))
            corners.append((x, lower.top if last else bottom))
            if first:
                corners[-1] = (x, bottom)
        if index in sketch.upward:
            corners.reverse()
        lines = sketch.arrow_lines[index]
        slot = self._slots[index, sketch.labelled[index]]
        width, height = _label_size(lines)
        row = row_of[slot]
        top = self._tops[row] + (self._heights[row] - height) / 2
        label = Box(self._x[slot] - width / 2, top, width, height)
        return PlacedArrow(sketch.arrows[index], lines, label, tuple(_without_repeats(corners)))


def _without_repeats(corners: Sequence[Point]) -> list[Point]:
    """Drop corners in the middle of a vertical line."""
    kept: list[Point] = []
    for corner in corners:
        if kept and corner == kept[-1]:
            continue
        if len(kept) > 1 and kept[-1][0] == kept[-2][0] == corner[0]:
            kept.pop()
        kept.append(corner)
    return kept
