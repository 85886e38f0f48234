"""A scope's whole graph for the page: states, transitions, projections, what is violated."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import networkx as nx

from cowtail.models.actions import Action
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.exploration import Progress, StateGraph
from cowtail.spec.explorer import DEFAULT_MAX_STATES, explore
from cowtail.spec.graph import project_each
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.lives import Unfinished, decorate
from cowtail.spec.machine import LifecycleMachine
from cowtail.spec.page.dataset import Json, encode_states
from cowtail.spec.page.pictures import picture
from cowtail.spec.views import VIEWS


def encode_scope(
    scope: Scope,
    *,
    symmetry: bool = True,
    max_states: int = DEFAULT_MAX_STATES,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Json, StateGraph[State, Action], LifecycleMachine]:
    """Return the encoded graph of a scope, the graph itself, and the machine that has made it.

    ``renamed`` lists the edges whose target is shown under other names of blocks, ranks, jobs or
    requests than the source, because interchangeable states are explored once. ``violated`` has
    for each invariant the states that it does not hold in.

    Raises:
        Unfinished: the scope has more than ``max_states`` states.
    """
    machine = LifecycleMachine(scope, symmetry=symmetry)
    exploration = explore(
        machine, max_states=max_states, max_seconds=None, keep_graph=True, progress=progress
    )
    graph = exploration.graph
    if graph is None or not exploration.complete:
        raise Unfinished(
            f"{scope.name} has more than max_states={max_states:,} states: a page of part of them "
            "would mislead; raise the bound"
        )
    data = encode_states(scope, graph.states, graph.tree.parents.tolist())
    renamed: list[int] = []

    def watch(edge: int, successor: State) -> None:
        if graph.states[graph.targets[edge]] != successor:
            renamed.append(edge)

    items = [_items(scope, name) for name in VIEWS]
    lives = project_each(graph, items, machine, watch=watch)
    data |= {
        "actions": [str(action) for action in graph.actions],
        "names": [action.name for action in graph.actions],
        "events": [list(events) for events in graph.events],
        "first_edges": _list(graph.first_edges),
        "targets": _list(graph.targets),
        "action_of": _list(graph.action_of),
        "events_of": _list(graph.events_of),
        "renamed": renamed,
        "violated": _violated(scope, graph.states),
        "pictures": {name: _drawn(life, name) for name, life in zip(VIEWS, lives, strict=True)},
        "depth": exploration.depth,
    }
    return data, graph, machine


def _items(scope: Scope, view: str) -> Callable[[State], tuple[str, ...]]:
    return lambda state: VIEWS[view].items(scope, state)


def _drawn(life: nx.MultiDiGraph, view: str) -> Json | None:
    """Return the drawing of a projection; None if nothing is in it (no Mamba group, no tails)."""
    if not len(life):
        return None
    decorate(life, VIEWS[view])
    return {"title": VIEWS[view].title, "caption": VIEWS[view].caption, **picture(life)}


def _violated(scope: Scope, states: list[State]) -> list[Json]:
    """Return every invariant, and in which states it fails."""
    return [
        {
            "identifier": prop.identifier,
            "name": prop.name,
            "sentence": prop.sentence,
            "states": [n for n, state in enumerate(states) if prop.check(scope, state)],
        }
        for prop in PROPERTIES
    ]


def _list(numbers: array[int]) -> list[int]:
    return numbers.tolist()
