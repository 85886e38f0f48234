"""Life graphs: scopes explored, projected by a view, and decorated for the drawing (R36).

>>> from cowtail.spec.scopes import scope_named
>>> from cowtail.spec.views import view_named
>>> graph = life_graph([scope_named("cow_decode")], view_named("block"))
>>> graph.nodes["free"]["initial"], sorted(graph["free"])
(True, ['allocated', 'copied-on-write', 'tail-registered'])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import networkx as nx

from cowtail.models.scope import Scope
from cowtail.spec.exploration import Progress
from cowtail.spec.explorer import DEFAULT_MAX_STATES, explore
from cowtail.spec.graph import project
from cowtail.spec.machine import LifecycleMachine
from cowtail.spec.views import View


class Unfinished(Exception):
    """A scope is too large to be drawn within the bound; the message names both."""


def life_graph(
    scopes: Sequence[Scope],
    view: View,
    *,
    max_states: int = DEFAULT_MAX_STATES,
    progress: Callable[[Progress], None] | None = None,
) -> nx.MultiDiGraph:
    """Return the view's projection of the scopes, one graph for all of them.

    Nodes carry ``label``, ``kind``, ``states`` and ``initial``; edges ``action``, ``count`` and
    ``main`` (between neighbours in the view's story). The graph attribute ``states`` is the
    number of states projected.

    Raises:
        Unfinished: a scope has more than ``max_states`` states.
    """
    merged: nx.MultiDiGraph = nx.MultiDiGraph(states=0)
    for scope in scopes:
        machine = LifecycleMachine(scope)
        exploration = explore(
            machine, max_states=max_states, max_seconds=None, keep_graph=True, progress=progress
        )
        if exploration.graph is None or not exploration.complete:
            raise Unfinished(
                f"{scope.name} has more than max_states={max_states:,} states: a drawing of part "
                "of them would mislead; raise the bound"
            )
        merged.graph["states"] += exploration.states

        def items(state: object, scope: Scope = scope) -> tuple[str, ...]:
            return view.items(scope, state)  # type: ignore[arg-type]

        _merge(merged, project(exploration.graph, items, machine))
    decorate(merged, view)
    return merged


def _merge(merged: nx.MultiDiGraph, part: nx.MultiDiGraph) -> None:
    """Add a projection to another: nodes and edges united, counts summed."""
    for node, data in part.nodes(data=True):
        if node not in merged:
            merged.add_node(node, states=0, initial=False)
        merged.nodes[node]["states"] += data["states"]
        merged.nodes[node]["initial"] |= data["initial"]
    for before, after, key, data in part.edges(keys=True, data=True):
        if not merged.has_edge(before, after, key):
            merged.add_edge(before, after, key=key, action=data["action"], count=0)
        merged.edges[before, after, key]["count"] += data["count"]


def decorate(graph: nx.MultiDiGraph, view: View) -> None:
    """Add to a projection what its drawing needs: labels, kinds, and the usual way of a life."""
    steps = {step for way in view.story for step in pairwise(way)}
    for node, data in graph.nodes(data=True):
        data["label"] = str(node)
        data["kind"] = view.kinds[node]
    for before, after, data in graph.edges(data=True):
        data["main"] = (before, after) in steps
