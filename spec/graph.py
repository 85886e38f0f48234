"""State graphs for people: the whole of a small one, and projections of a large one (R36).

A full graph of half a million states says nothing to a reader. Its projection onto the life of
one item (a block, a request, a job) has about a dozen nodes, because every state is looked at
as *this* item sees it: a *view* maps a state to what each tracked item is in, in a fixed order
of items, and the projection collects every step that some item takes.

>>> from cowtail.spec.explorer import explore
>>> class Lamps:
...     def initial(self): return (0, 0)
...     def successors(self, state):
...         for i in (0, 1):
...             yield f"press {i}", tuple(on ^ (i == j) for j, on in enumerate(state)), ()
...     def key(self, state): return tuple(sorted(state))
...     def action_name(self, action): return action.split()[0]
...     def is_quiescent(self, state): return False
>>> graph = explore(Lamps(), keep_graph=True).graph
>>> life = project(graph, lambda state: ["on" if on else "off" for on in state], Lamps())
>>> for before, after, data in life.edges(data=True): print(before, data["action"], after)
off press on
on press off
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import attrs
import networkx as nx

from cowtail.spec.exploration import A, Exploration, Machine, S, StateGraph

View = Callable[[S], Sequence[Hashable]]
Label = Callable[[A, tuple[str, ...]], str]


def to_networkx(exploration: Exploration[S, A], label: Callable[[S], str] = str) -> nx.MultiDiGraph:
    """Return the whole graph of an exploration, for a scope small enough to be drawn.

    Nodes are state numbers with attributes ``label`` and ``initial``; edges have ``action``
    (printed) and ``events``. The graph attribute ``complete`` says whether all of it was seen.

    Raises:
        ValueError: the exploration did not keep its graph.
    """
    states = exploration.graph
    if states is None:
        raise ValueError("the exploration has no graph: explore with keep_graph=True")
    graph: nx.MultiDiGraph = nx.MultiDiGraph(complete=states.complete)
    for number, state in enumerate(states.states):
        graph.add_node(number, label=label(state), initial=number == 0)
    for source, target, action, events in zip(
        states.sources, states.targets, states.action_of, states.events_of, strict=True
    ):
        graph.add_edge(
            source, target, action=str(states.actions[action]), events=states.events[events]
        )
    return graph


def project(
    graph: StateGraph[S, A],
    view: View[S],
    machine: Machine[S, A],
    *,
    label: Label[A] | None = None,
    self_loops: bool = False,
) -> nx.MultiDiGraph:
    """Return the quotient of a graph by a view of each tracked item.

    Nodes are the views that occur, with attributes ``states``, how many pairs of state and item
    have it, and ``initial``. For each transition and each item there is an edge from the view
    before to the view after, its key and its attribute ``action`` being the label, with the
    attribute ``count``; edges of equal ends and label are one. Everything is in the order in
    which the search met it first.

    With symmetry, the target that a graph stores for a transition may have its items in another
    order than the source. The machine is therefore asked again for the successors of every
    state, whose items are still those of the state.

    Args:
        graph: what was explored; if it is incomplete, so is the projection.
        view: what each item is in, in a fixed order of items. A state may have more items than
            another (jobs are born); an item that is not in both ends of a step is not followed.
        machine: the machine that was explored.
        label: names a transition; by default the action's name.
        self_loops: keep steps that an item takes no part in, as far as its view can tell.
    """
    (projection,) = project_each(graph, [view], machine, label=label, self_loops=self_loops)
    return projection


def project_each(
    graph: StateGraph[S, A],
    views: Sequence[View[S]],
    machine: Machine[S, A],
    *,
    label: Label[A] | None = None,
    self_loops: bool = False,
    watch: Callable[[int, S], None] | None = None,
) -> list[nx.MultiDiGraph]:
    """Return the projection by each of several views, asking for every successor only once.

    ``watch`` is called for each transition with the number of its edge and the concrete
    successor, whose parts are named as those of the source. For complete graphs.
    """
    named: Label[A] = label or (lambda action, events: machine.action_name(action))
    occurrences: list[Counter[Hashable]] = [Counter() for _ in views]
    steps: list[Counter[tuple[Hashable, Hashable, str]]] = [Counter() for _ in views]
    for number, state in enumerate(graph.states):
        befores = [tuple(view(state)) for view in views]
        for seen, before in zip(occurrences, befores, strict=True):
            seen.update(before)
        for edge, (action, successor, events) in enumerate(
            machine.successors(state), graph.first_edges[number]
        ):
            if watch is not None:
                watch(edge, successor)
            name = named(action, events)
            for view, before, counts in zip(views, befores, steps, strict=True):
                after = tuple(view(successor))
                if after == before and not self_loops:
                    continue
                for was, becomes in zip(before, after, strict=False):
                    if self_loops or was != becomes:
                        counts[was, becomes, name] += 1
    first = machine.initial()
    return [
        _quotient(frozenset(view(first)), seen, counts)
        for view, seen, counts in zip(views, occurrences, steps, strict=True)
    ]


def _quotient(
    initial: frozenset[Hashable],
    occurrences: Counter[Hashable],
    steps: Counter[tuple[Hashable, Hashable, str]],
) -> nx.MultiDiGraph:
    quotient: nx.MultiDiGraph = nx.MultiDiGraph()
    for node, states in occurrences.items():
        quotient.add_node(node, states=states, initial=node in initial)
    for (was, becomes, name), count in steps.items():
        if becomes not in quotient:  # beyond the bound of an incomplete graph
            quotient.add_node(becomes, states=0, initial=False)
        quotient.add_edge(was, becomes, key=name, action=name, count=count)
    return quotient


Edge = tuple[Hashable, str, Hashable]


@attrs.frozen
class Difference:
    """What a reviewer sees of a change: nodes and edges that appeared or disappeared.

    An edge is (from, action, to). Counts are not compared.
    """

    nodes_added: tuple[Hashable, ...]
    nodes_removed: tuple[Hashable, ...]
    edges_added: tuple[Edge, ...]
    edges_removed: tuple[Edge, ...]

    def __bool__(self) -> bool:
        """Whether anything appeared or disappeared."""
        return any(attrs.astuple(self, recurse=False))


def difference(before: nx.MultiDiGraph, after: nx.MultiDiGraph) -> Difference:
    """Compare two projections; each list is in the order of the graph that has its elements."""
    edges_before, edges_after = _edges(before), _edges(after)
    return Difference(
        nodes_added=tuple(node for node in after if node not in before),
        nodes_removed=tuple(node for node in before if node not in after),
        edges_added=tuple(edge for edge in edges_after if edge not in edges_before),
        edges_removed=tuple(edge for edge in edges_before if edge not in edges_after),
    )


def _edges(graph: nx.MultiDiGraph) -> dict[Edge, None]:
    return {(was, data["action"], becomes): None for was, becomes, data in graph.edges(data=True)}
