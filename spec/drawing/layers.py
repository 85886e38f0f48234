"""Which arrows point down, and in which layer each node is.

Nodes and arrows are numbers here. A life is a graph with cycles: a block is freed and allocated
again. An order of the nodes decides which arrows are drawn upward (those to an earlier node, as
few as can be found, and none of the main story that can be avoided); then each node gets the
layer that makes the arrows short in sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from cowtail.spec.drawing.potentials import Demand, optimal_potentials

MAIN_WEIGHT = 8
"""A step of the main story counts as much as this many others."""


@attrs.frozen
class Link:
    """An arrow between two different nodes, given by their numbers."""

    source: int
    target: int
    main: bool

    @property
    def weight(self) -> int:
        """What one layer of length, or pointing upward, costs."""
        return MAIN_WEIGHT if self.main else 1


def reading_order(nodes: int, links: Sequence[Link], initial: Sequence[int]) -> tuple[int, ...]:
    """Return an order of the nodes, initial ones first, in which few links lead back.

    A depth-first search that follows the main story first gives an order; nodes then move one by
    one to where the fewest links lead back, until none can be moved. Not the minimum, which is
    NP-hard, but no single move improves it.
    """
    order = _depth_first(nodes, links, initial)
    fixed = len(initial)
    cost = _weight_back(order, links)
    for _ in range(nodes * nodes):
        best = cost
        moved = order
        for node in order[fixed:]:
            rest = [other for other in order if other != node]
            for place in range(fixed, nodes):
                candidate = [*rest[:place], node, *rest[place:]]
                weight = _weight_back(candidate, links)
                if weight < best:
                    best, moved = weight, candidate
        if moved is order:
            break
        order, cost = moved, best
    return tuple(order)


def _depth_first(nodes: int, links: Sequence[Link], initial: Sequence[int]) -> list[int]:
    """Return the initial nodes, then the others in reverse postorder, main story first."""
    leaving: list[list[Link]] = [[] for _ in range(nodes)]
    for link in links:
        leaving[link.source].append(link)
    for own in leaving:
        own.sort(key=lambda link: not link.main)
    seen: set[int] = set()
    finished: list[int] = []

    def visit(node: int) -> None:
        seen.add(node)
        for link in leaving[node]:
            if link.target not in seen:
                visit(link.target)
        finished.append(node)

    for root in [*initial, *range(nodes)]:
        if root not in seen:
            visit(root)
    return [*initial, *(node for node in reversed(finished) if node not in initial)]


def _weight_back(order: Sequence[int], links: Sequence[Link]) -> int:
    place = {node: index for index, node in enumerate(order)}
    return sum(link.weight for link in links if place[link.target] < place[link.source])


def layers(order: Sequence[int], links: Sequence[Link], initial: Sequence[int]) -> tuple[int, ...]:
    """Return the layer of every node, from 0 at the top; no node is above the initial ones.

    Each link spans at least one layer, downward or upward as the order says, and the weighted sum
    of the spans is the least possible.
    """
    place = {node: index for index, node in enumerate(order)}
    demands = []
    for link in links:
        upper, lower = sorted((link.source, link.target), key=place.__getitem__)
        weight = link.weight if upper == link.source else 1
        demands.append(Demand(upper, lower, length=1, weight=weight))
    demands += [
        Demand(first, node, length=0) for first in initial for node in order if node not in initial
    ]
    lowest, _ = optimal_potentials(len(order), demands)
    return lowest
