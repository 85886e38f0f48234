"""Which arrows point down, and in which layer each node is.

Nodes and arrows are numbers here. A life is a graph with cycles: a block is freed and allocated
again. An order of the nodes decides which arrows are drawn upward, those to an earlier node. As
few as can be found are, and none of the main story that can be helped; then each node gets a
layer such that the arrows are short in sum.

Orders that are almost as good often allow drawings with fewer crossings, so several layerings
are returned for the caller to choose from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from cowtail.spec.drawing.potentials import Demand, optimal_potentials

MAIN_WEIGHT = 8
"""A step of the main story counts as much as this many others."""

_SLACK = 3
"""How many more arrows than in the best order may point upward."""

_ORDERS_SEEN = 12_000
_DIRECTIONS_SEEN = 120

Layering = tuple[int, ...]
"""The layer of every node, from 0 at the top."""


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


def layerings(
    nodes: int, links: Sequence[Link], initial: Sequence[int]
) -> list[tuple[int, Layering]]:
    """Return different layerings with the length of their links, the shortest first.

    No link is within a layer, and no node is above the initial ones. The length is counted in
    layers, weighted, and double for a link that points upward.
    """
    found: dict[Layering, int] = {}
    for order in _orders(nodes, links, initial):
        for layering in _layers(order, links, initial):
            found.setdefault(layering, _length(layering, links))
    return sorted((length, layering) for layering, length in found.items())


def _length(layering: Layering, links: Sequence[Link]) -> int:
    total = 0
    for link in links:
        span = layering[link.target] - layering[link.source]
        total += link.weight * (span if span > 0 else -2 * span)
    return total


def _orders(nodes: int, links: Sequence[Link], initial: Sequence[int]) -> Iterator[list[int]]:
    """Yield orders with few links back, initial nodes first, no two with the same links back."""
    start = _reading_order(nodes, links, initial)
    most = _weight_back(start, links) + _SLACK
    seen = {_links_back(start, links)}
    queue = [start]
    examined = 0
    for order in queue:  # grows while it is read
        yield order
        for candidate in _moved(order, len(initial)):
            examined += 1
            if len(queue) == _DIRECTIONS_SEEN or examined > _ORDERS_SEEN:
                break
            back = _links_back(candidate, links)
            if back not in seen and sum(links[index].weight for index in back) <= most:
                seen.add(back)
                queue.append(candidate)


def _reading_order(nodes: int, links: Sequence[Link], initial: Sequence[int]) -> list[int]:
    """Return an order in which few links lead back.

    A depth-first search that follows the main story first gives an order; nodes then move one by
    one to where the fewest links lead back, until none can be moved. Not the minimum, which is
    NP-hard to find, but no single move improves it.
    """
    order = _depth_first(nodes, links, initial)
    for _ in range(nodes * nodes):
        better = min(
            _moved(order, len(initial)), key=lambda moved: _weight_back(moved, links), default=order
        )
        if _weight_back(better, links) >= _weight_back(order, links):
            break
        order = better
    return order


def _moved(order: Sequence[int], fixed: int) -> Iterator[list[int]]:
    """Yield the orders in which one node is elsewhere, the first ``fixed`` staying first."""
    for node in order[fixed:]:
        rest = [other for other in order if other != node]
        for place in range(fixed, len(order)):
            if order[place] != node:
                yield [*rest[:place], node, *rest[place:]]


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


def _links_back(order: Sequence[int], links: Sequence[Link]) -> frozenset[int]:
    place = {node: index for index, node in enumerate(order)}
    return frozenset(
        index for index, link in enumerate(links) if place[link.target] < place[link.source]
    )


def _weight_back(order: Sequence[int], links: Sequence[Link]) -> int:
    return sum(links[index].weight for index in _links_back(order, links))


def _layers(
    order: Sequence[int], links: Sequence[Link], initial: Sequence[int]
) -> tuple[Layering, Layering]:
    """Return the highest-lying and the lowest-lying layerings of least length for an order."""
    place = {node: index for index, node in enumerate(order)}
    demands = []
    for link in links:
        upper, lower = sorted((link.source, link.target), key=place.__getitem__)
        weight = link.weight if upper == link.source else 1
        demands.append(Demand(upper, lower, length=1, weight=weight))
    demands += [
        Demand(first, node, length=0) for first in initial for node in order if node not in initial
    ]
    up, down = optimal_potentials(len(order), demands)
    return _from_zero(up), _from_zero(down)


def _from_zero(layering: Layering) -> Layering:
    top = min(layering)
    return tuple(layer - top for layer in layering)
