"""SVG of a lifecycle graph: text that stays text, and colours that are readable everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import networkx as nx

from cowtail.spec.drawing import text
from cowtail.spec.drawing.arrows import is_initial, node_kind, node_label
from cowtail.spec.drawing.geometry import (
    START_REACH,
    Box,
    Layout,
    PlacedArrow,
    PlacedNode,
)
from cowtail.spec.drawing.layout import CROSSING_COST, layout
from cowtail.spec.drawing.palette import Colour, colours
from cowtail.spec.drawing.paths import arrow_path, short

_INK = "#1f2328"
_MAIN = "#1f2328"
_OTHER = "#6e7781"
_PAPER = "#ffffff"
_FRAME = "#d0d7de"
_MARGIN = 28
_TITLE_SIZE = 20
_CAPTION_SIZE = 13
_CAPTION_WIDTH = 640


def svg(
    graph: nx.MultiDiGraph,
    *,
    title: str,
    caption: str = "",
    legend: Mapping[str, str] | None = None,
    crossing_cost: int = CROSSING_COST,
) -> str:
    """Return the drawing of a graph as an SVG document.

    Args:
        graph: nodes with ``label``, ``kind``, ``initial`` and ``states``, edges with ``action``,
            ``count`` and ``main``; all of them are optional.
        title: the heading, and the accessible name of the picture.
        caption: a sentence or two below the heading; also the accessible description.
        legend: what each kind means, in the order that fixes the colours; kinds that do not occur
            keep their colour and are not shown. By default the kinds themselves.
        crossing_cost: how many layers longer arrows may be in sum to avoid one crossing.

    Raises:
        ValueError: the graph has no nodes, or more than a drawing can show.
    """
    placed = layout(graph, crossing_cost=crossing_cost)
    return _Picture(graph, placed, title, caption, legend).document()


class _Picture:
    """One drawing: the parts of the document in the order in which they are painted."""

    def __init__(
        self,
        graph: nx.MultiDiGraph,
        placed: Layout,
        title: str,
        caption: str,
        legend: Mapping[str, str] | None,
    ) -> None:
        self._graph = graph
        self._placed = placed
        self._title = title
        self._caption = caption
        self._colours = colours(graph, legend)
        self._meanings = {} if legend is None else legend
        self._body: list[str] = []

    def document(self) -> str:
        """Return the whole document, ending with a newline."""
        heading = text.wrapped(self._title.split(), _TITLE_SIZE, _CAPTION_WIDTH)
        caption = text.wrapped(self._caption.split(), _CAPTION_SIZE, _CAPTION_WIDTH)
        widths = [text.text_width(line, _TITLE_SIZE, bold=True) for line in heading]
        widths += [text.text_width(line, _CAPTION_SIZE) for line in caption]
        width = max(self._placed.width, 360, *widths)
        y = float(_MARGIN)
        y = self._lines(heading, _TITLE_SIZE, y, bold=True)
        y = self._lines(caption, _CAPTION_SIZE, y + 4) + 20
        self._graph_at(_MARGIN + (width - self._placed.width) / 2, y)
        y = self._legend(width, y + self._placed.height + 26)
        return self._wrapped(width + 2 * _MARGIN, y + _MARGIN)

    def _wrapped(self, width: float, height: float) -> str:
        size = f'width="{short(width)}" height="{short(height)}"'
        title = escape(self._title)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
                f'viewBox="0 0 {short(width)} {short(height)}" role="img" '
                f'aria-label="{title}" font-family="{text.FONT_FAMILY}" fill="{_INK}">',
                f"<title>{title}</title>",
                f"<desc>{escape(self._description())}</desc>",
                f'<rect x="0.5" y="0.5" width="{short(width - 1)}" '
                f'height="{short(height - 1)}" rx="8" '
                f'fill="{_PAPER}" stroke="{_FRAME}"/>',
                *self._body,
                "</svg>\n",
            ]
        )

    def _description(self) -> str:
        steps = "; ".join(self._told(arrow) for arrow in self._placed.arrows)
        return f"{self._caption} {steps}".strip()

    def _told(self, placed: PlacedArrow) -> str:
        arrow = placed.arrow
        source = node_label(self._graph, arrow.source)
        target = node_label(self._graph, arrow.target)
        return f"{source} → {target}: {', '.join(arrow.actions)}"

    def _lines(self, lines: tuple[str, ...], size: int, y: float, *, bold: bool = False) -> float:
        """Write left-aligned lines below y; return the y below them."""
        weight = ' font-weight="bold"' if bold else ""
        for line in lines:
            y += size * text.LINE_HEIGHT
            self._body.append(
                f'<text x="{_MARGIN}" y="{short(y - size * 0.3)}" font-size="{size}"{weight}>'
                f"{escape(line)}</text>"
            )
        return y

    def _graph_at(self, x: float, y: float) -> None:
        self._body.append(f'<g transform="translate({short(x)} {short(y)})" text-anchor="middle">')
        by_strength = sorted(self._placed.arrows, key=lambda placed: placed.arrow.main)
        for placed in by_strength:
            self._arrow(placed)
        for placed in by_strength:
            self._label(placed)
        for node in self._placed.nodes:
            self._node(node)
        self._body.append("</g>")

    def _arrow(self, placed: PlacedArrow) -> None:
        colour, width = (_MAIN, 2.6) if placed.arrow.main else (_OTHER, 1.4)
        path, head = arrow_path(placed)
        told = f"{self._told(placed)} ({placed.arrow.count:,} steps)"
        self._body.append(
            f'<g fill="none" stroke="{colour}"><title>{escape(told)}</title>'
            f'<path d="{path}" stroke-width="{width}"/>'
            f'<path d="{head}" fill="{colour}" stroke="none"/></g>'
        )

    def _label(self, placed: PlacedArrow) -> None:
        box = placed.label
        colour, weight = (_INK, ' font-weight="bold"') if placed.arrow.main else ("#424a53", "")
        self._body.append(f'<rect {_rectangle(box)} rx="4" fill="{_PAPER}"/>')
        self._centred(placed.lines, box, text.LABEL_SIZE, f'fill="{colour}"{weight}')

    def _node(self, placed: PlacedNode) -> None:
        colour = self._colours[node_kind(self._graph, placed.node)]
        initial = is_initial(self._graph, placed.node)
        states = int(self._graph.nodes[placed.node].get("states", 0))
        told = f"{node_label(self._graph, placed.node)}: {states:,} states"
        self._body.append(f"<g><title>{escape(told)}</title>")
        if initial:
            self._start(placed.box)
        self._body.append(
            f'<rect {_rectangle(placed.box)} rx="9" fill="{colour.fill}" '
            f'stroke="{colour.border}" stroke-width="{2.6 if initial else 1.6}"/>'
        )
        self._centred(placed.lines, placed.box, text.NODE_SIZE, f'fill="{_INK}" font-weight="600"')
        self._body.append("</g>")

    def _start(self, box: Box) -> None:
        x, y = box.left - START_REACH, box.centre[1]
        self._body.append(
            f'<circle cx="{short(x + 6)}" cy="{short(y)}" r="5.5" fill="{_MAIN}"/>'
            f'<path d="M{short(x + 10)} {short(y)}H{short(box.left - 7)}" stroke="{_MAIN}" '
            f'stroke-width="2"/><path d="M{short(box.left - 1)} {short(y)}l-8 -4.5v9z" '
            f'fill="{_MAIN}"/>'
        )

    def _centred(self, lines: tuple[str, ...], box: Box, size: int, style: str) -> None:
        x, y = box.centre
        first = y - (len(lines) - 1) * size * text.LINE_HEIGHT / 2 + size * 0.35
        for index, line in enumerate(lines):
            self._body.append(
                f'<text x="{short(x)}" y="{short(first + index * size * text.LINE_HEIGHT)}" '
                f'font-size="{size}" {style}>{escape(line)}</text>'
            )

    def _legend(self, width: float, y: float) -> float:
        """Write the kinds that occur and the two strengths of arrows; return the y below them."""
        occurring = {node_kind(self._graph, node) for node in self._graph}
        entries = [
            (_swatch(self._colours[kind]), self._meanings.get(kind, kind))
            for kind in self._colours
            if kind in occurring and kind
        ]
        if any(is_initial(self._graph, node) for node in self._graph):
            entries.append((f'<circle cx="8" cy="0" r="5.5" fill="{_MAIN}"/>', "starts here"))
        if len({placed.arrow.main for placed in self._placed.arrows}) == 2:
            entries.append((_stroke(_MAIN, 2.6), "usual life"))
            entries.append((_stroke(_OTHER, 1.4), "other steps"))
        x = float(_MARGIN)
        for drawn, meaning in entries:
            needed = 24 + text.text_width(meaning, text.LABEL_SIZE) + 18
            if x > _MARGIN and x + needed > _MARGIN + width:
                x, y = float(_MARGIN), y + 24
            self._body.append(
                f'<g transform="translate({short(x)} {short(y)})">{drawn}'
                f'<text x="24" y="4" font-size="{text.LABEL_SIZE}">{escape(meaning)}</text></g>'
            )
            x += needed
        return y


def _swatch(colour: Colour) -> str:
    return (
        f'<rect x="0" y="-7" width="16" height="14" rx="3" fill="{colour.fill}" '
        f'stroke="{colour.border}" stroke-width="1.6"/>'
    )


def _stroke(colour: str, width: float) -> str:
    return f'<path d="M0 0H16" stroke="{colour}" stroke-width="{width}"/>'


def _rectangle(box: Box) -> str:
    return (
        f'x="{short(box.left)}" y="{short(box.top)}" '
        f'width="{short(box.width)}" height="{short(box.height)}"'
    )
