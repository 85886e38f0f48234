"""The layout of a projection as plain values, which the page turns into a clickable SVG."""

from __future__ import annotations

import networkx as nx

from cowtail.spec.drawing.arrows import is_initial, node_kind, node_label
from cowtail.spec.drawing.geometry import Box
from cowtail.spec.drawing.layout import layout
from cowtail.spec.drawing.palette import colours
from cowtail.spec.drawing.paths import arrow_path
from cowtail.spec.page.dataset import Json


def picture(graph: nx.MultiDiGraph) -> Json:
    """Return where nodes, arrows and labels are (pixels), and what each says.

    Raises:
        ValueError: the graph has more nodes than a drawing can show.
    """
    placed = layout(graph)
    kinds = list(colours(graph))
    return {
        "width": placed.width,
        "height": placed.height,
        "kinds": kinds,
        "nodes": [
            {
                "name": node_label(graph, node.node),
                "lines": node.lines,
                "box": _box(node.box),
                "kind": kinds.index(node_kind(graph, node.node)),
                "initial": is_initial(graph, node.node),
            }
            for node in placed.nodes
        ],
        "arrows": [
            {
                "source": node_label(graph, arrow.arrow.source),
                "target": node_label(graph, arrow.arrow.target),
                "actions": arrow.arrow.actions,
                "count": arrow.arrow.count,
                "main": arrow.arrow.main,
                "lines": arrow.lines,
                "label": _box(arrow.label),
                "paths": arrow_path(arrow),
            }
            for arrow in placed.arrows
        ],
    }


def _box(box: Box) -> list[float]:
    return [round(side, 2) for side in (box.left, box.top, box.width, box.height)]
