"""What is drawn: the nodes of a graph, and its edges merged into one arrow per pair of nodes.

>>> graph = nx.MultiDiGraph()
>>> _ = graph.add_edge("free", "held", key="admit", action="admit", count=2)
>>> _ = graph.add_edge("free", "held", key="extend", action="extend", count=1)
>>> [(arrow.actions, arrow.count) for arrow in merged_arrows(graph)]
[(('admit', 'extend'), 3)]
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs
import networkx as nx


@attrs.frozen
class Arrow:
    """All edges from one node to another; ``actions`` in the order of the graph."""

    source: Hashable
    target: Hashable
    actions: tuple[str, ...]
    count: int
    main: bool

    @property
    def is_loop(self) -> bool:
        """Whether the arrow returns to the node it leaves."""
        return self.source == self.target


def merged_arrows(graph: nx.MultiDiGraph) -> tuple[Arrow, ...]:
    """Return one arrow per ordered pair of nodes that has an edge, in the order of the graph.

    An edge's action is its attribute ``action``, else its key. An arrow is of the main story if
    one of its edges has a true ``main``; its ``count`` is the sum of theirs (0 where not given).
    """
    edges: dict[tuple[Hashable, Hashable], list[tuple[str, int, bool]]] = {}
    for source, target, key, data in graph.edges(keys=True, data=True):
        action = str(data.get("action", key))
        edge = (action, int(data.get("count", 0)), bool(data.get("main", False)))
        edges.setdefault((source, target), []).append(edge)
    return tuple(
        Arrow(
            source,
            target,
            actions=tuple(dict.fromkeys(action for action, _, _ in parallel)),
            count=sum(count for _, count, _ in parallel),
            main=any(main for _, _, main in parallel),
        )
        for (source, target), parallel in edges.items()
    )


def node_label(graph: nx.MultiDiGraph, node: Hashable) -> str:
    """Return the attribute ``label`` of a node, else the node as a string."""
    return str(graph.nodes[node].get("label", node))


def node_kind(graph: nx.MultiDiGraph, node: Hashable) -> str:
    """Return the colour class of a node; empty if it has none."""
    return str(graph.nodes[node].get("kind", ""))


def is_initial(graph: nx.MultiDiGraph, node: Hashable) -> bool:
    """Return whether a life can start in a node."""
    return bool(graph.nodes[node].get("initial", False))
