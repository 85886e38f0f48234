"""The one optimisation behind both directions of a drawing: numbers as close as they may be.

Given variables x and demands ``x[after] - x[before] >= length``, each with a weight, find x that
minimises the weighted sum of all the differences. Layers are such numbers (an arrow points at
least one layer down, and should not be longer than it must), and so are horizontal positions.

The dual of this linear programme is a minimum-cost flow, which networkx solves exactly in
integers. The variables are then the longest paths in what the flow leaves over.

>>> lowest, highest = optimal_potentials(
...     3, [Demand(0, 1, 1, 5), Demand(1, 2, 1, 5), Demand(0, 2, 4, 1)])
>>> lowest[2] - lowest[0], highest[2] - highest[0]
(4, 4)
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import networkx as nx


@attrs.frozen
class Demand:
    """``x[after] - x[before] >= length``, and each unit of the difference costs ``weight``."""

    before: int
    after: int
    length: int
    weight: int = 0


def optimal_potentials(
    variables: int, demands: Sequence[Demand]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lowest and the highest of the optimal solutions between two common bounds.

    Both are optimal, and so is every mean of the two. The demands must have no cycle.

    Raises:
        networkx.NetworkXUnbounded: the demands contradict each other.
    """
    arcs: dict[tuple[int, int], Demand] = {}
    for demand in demands:
        ends = (demand.before, demand.after)
        same = arcs.get(ends, demand)
        weight = demand.weight + (same.weight if same is not demand else 0)
        arcs[ends] = Demand(*ends, max(same.length, demand.length), weight)

    network = nx.DiGraph()
    network.add_nodes_from(range(variables), demand=0)
    for (before, after), arc in arcs.items():
        network.nodes[after]["demand"] += arc.weight
        network.nodes[before]["demand"] -= arc.weight
        network.add_edge(before, after, weight=-arc.length)
    _, flow = nx.network_simplex(network)

    # A demand that carries flow is met exactly; any other may be exceeded.
    relations = [(arc.before, arc.after, arc.length) for arc in arcs.values()]
    relations += [
        (arc.after, arc.before, -arc.length)
        for (before, after), arc in arcs.items()
        if flow[before][after]
    ]
    lowest = _longest_paths(variables, relations)
    backward = _longest_paths(variables, [(after, before, n) for before, after, n in relations])
    top = max(lowest, default=0)
    return tuple(lowest), tuple(top - distance for distance in backward)


def _longest_paths(variables: int, relations: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the least x >= 0 with ``x[b] >= x[a] + n`` for every relation (a, b, n)."""
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(variables)]
    for before, after, length in relations:
        leaving[before].append((after, length))
    x = [0] * variables
    changed = list(range(variables))
    for _ in range(variables):  # enough: no cycle of relations has a positive length
        raised: dict[int, None] = {}
        for before in changed:
            for after, length in leaving[before]:
                if x[before] + length > x[after]:
                    x[after] = x[before] + length
                    raised[after] = None
        if not raised:
            break
        changed = list(raised)
    return x
