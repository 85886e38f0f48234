"""The order within each layer, with as few crossings as can be found.

A link that spans several layers is a chain of *strands*, each between neighbouring layers, over
points that stand for it in the layers between. Two strands between the same layers cross if and
only if their ends are in opposite orders; the drawing adds no other crossing.

From several deterministic starts, layers are sorted by the mean place of their neighbours, swept
down and up; then single items are moved to the places in their layers with the fewest crossings
(sifting), until none can be moved. Exhaustive search was left out: a layer of a dozen items has
too many orders.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import attrs

_ROUNDS = 24
_PATIENCE = 3
"""An order is given up after this many rounds that improve nothing."""

_CROSSING = 64
"""The cost of a crossing; to cross a strand of the main story costs one more."""

Order = tuple[tuple[int, ...], ...]


@attrs.frozen
class Strand:
    """The part of a link between an item of one layer and an item of the next."""

    link: int
    upper: int
    lower: int
    main: bool


@attrs.frozen
class Layered:
    """Items by layer, and for each layer but the last its strands to the next.

    Items below ``nodes`` are nodes; the others are points of long links.
    """

    nodes: int
    items: Order
    strands: tuple[tuple[Strand, ...], ...]


def crossings(layered: Layered, order: Order) -> int:
    """Return how many pairs of strands cross when the layers are in an order."""
    return _cost(layered, order)[0]


def strand_order(
    strands: Sequence[Strand], upper: Sequence[int], lower: Sequence[int]
) -> list[int]:
    """Return the indices of the strands between two ordered layers, from left to right.

    In this order no two strands with a common end cross.
    """
    above = {item: place for place, item in enumerate(upper)}
    below = {item: place for place, item in enumerate(lower)}
    return sorted(
        range(len(strands)),
        key=lambda index: (above[strands[index].upper], below[strands[index].lower], index),
    )


def good_orders(layered: Layered, starts: int, enough: int = 0) -> list[Order]:
    """Return the different orders with the fewest crossings found, from a number of starts.

    The search ends at the first order with at most ``enough`` crossings.
    """
    found: dict[Order, tuple[int, int]] = {}
    for start in itertools.islice(_starts(layered), starts):
        order = _improved(layered, start)
        found.setdefault(order, _cost(layered, order))
        if found[order][0] <= enough:
            break
    fewest = min(found.values())
    return [order for order, cost in found.items() if cost == fewest]


def _starts(layered: Layered) -> Iterator[Order]:
    """Yield orders without end: as the items come, that reversed, and seeded shuffles."""
    yield layered.items
    yield tuple(layer[::-1] for layer in layered.items)
    for seed in itertools.count():
        shuffle = random.Random(seed)
        yield tuple(tuple(shuffle.sample(layer, len(layer))) for layer in layered.items)


def _cost(layered: Layered, order: Order) -> tuple[int, int]:
    """Return the number of crossings, and the number of main strands crossed."""
    count, main = 0, 0
    for strands, upper, lower in zip(layered.strands, order, order[1:], strict=False):
        above = {item: place for place, item in enumerate(upper)}
        below = {item: place for place, item in enumerate(lower)}
        ends = sorted((above[s.upper], below[s.lower], s.main) for s in strands)
        for index, (left, left_below, left_main) in enumerate(ends):
            for right, right_below, right_main in ends[index + 1 :]:
                if left < right and left_below > right_below:
                    count += 1
                    main += left_main + right_main
    return count, main


def _improved(layered: Layered, start: Order) -> Order:
    """Return an order that no moving of one item within its layer improves."""
    neighbours = _neighbours(layered)
    best, best_cost = start, _cost(layered, start)
    order = [list(layer) for layer in start]
    idle = 0
    for round_number in range(_ROUNDS):
        downward = round_number % 2 == 0
        for depth in range(len(order)) if downward else reversed(range(len(order))):
            _sort_by_means(order, depth, neighbours, downward)
        frozen, cost = _frozen(layered, order)
        if cost < best_cost:
            best, best_cost, idle = frozen, cost, 0
        else:
            idle += 1
        if best_cost == (0, 0) or idle == _PATIENCE:
            break
    order = [list(layer) for layer in best]
    while best_cost > (0, 0):  # ends: every round but the last has a lower cost
        for depth in range(len(order)):
            _sift(order, depth, neighbours)
        frozen, cost = _frozen(layered, order)
        if cost >= best_cost:
            break
        best, best_cost = frozen, cost
    return best


def _frozen(layered: Layered, order: list[list[int]]) -> tuple[Order, tuple[int, int]]:
    frozen = tuple(tuple(layer) for layer in order)
    return frozen, _cost(layered, frozen)


@attrs.frozen
class _Neighbours:
    """For each item, its neighbours above and below, with whether the strand is main."""

    above: dict[int, list[tuple[int, bool]]]
    below: dict[int, list[tuple[int, bool]]]


def _neighbours(layered: Layered) -> _Neighbours:
    items = [item for layer in layered.items for item in layer]
    result = _Neighbours({item: [] for item in items}, {item: [] for item in items})
    for strands in layered.strands:
        for strand in strands:
            result.above[strand.lower].append((strand.upper, strand.main))
            result.below[strand.upper].append((strand.lower, strand.main))
    return result


def _sort_by_means(
    order: list[list[int]], depth: int, neighbours: _Neighbours, downward: bool
) -> None:
    """Sort a layer by the mean place of the neighbours on one side; those without any stay."""
    beside = depth - 1 if downward else depth + 1
    if not 0 <= beside < len(order):
        return
    place = {item: index for index, item in enumerate(order[beside])}
    ends = neighbours.above if downward else neighbours.below
    layer = order[depth]
    scale = max(1, len(order[beside]) - 1) / max(1, len(layer) - 1)
    mean = {
        item: sum(place[end] for end, _ in ends[item]) / len(ends[item])
        if ends[item]
        else index * scale
        for index, item in enumerate(layer)
    }
    layer.sort(key=mean.__getitem__)


def _sift(order: list[list[int]], depth: int, neighbours: _Neighbours) -> None:
    """Move each item of a layer to where it costs least, the layers beside it being fixed."""
    layer = order[depth]
    before = _pair_costs(order, depth, neighbours)
    for item in list(layer):
        current = layer.index(item)
        layer.remove(item)
        costs = [0]  # of each place, relative to the leftmost: passing an item swaps the pair
        for other in layer:
            costs.append(costs[-1] + before[other, item] - before[item, other])
        least = min(costs)
        layer.insert(current if costs[current] == least else costs.index(least), item)


def _pair_costs(
    order: list[list[int]], depth: int, neighbours: _Neighbours
) -> dict[tuple[int, int], int]:
    """Return, for each pair of items of a layer, the cost of having the first to the left."""
    layer = order[depth]
    costs = {(left, right): 0 for left in layer for right in layer}
    for beside, ends in ((depth - 1, neighbours.above), (depth + 1, neighbours.below)):
        if not 0 <= beside < len(order):
            continue
        place = {item: index for index, item in enumerate(order[beside])}
        placed = [(item, [(place[end], main) for end, main in ends[item]]) for item in layer]
        for index, (left, left_ends) in enumerate(placed):
            for right, right_ends in placed[index + 1 :]:
                as_is, swapped = _pair_cost(left_ends, right_ends)
                costs[left, right] += as_is
                costs[right, left] += swapped
    return costs


def _pair_cost(
    left_ends: Sequence[tuple[int, bool]], right_ends: Sequence[tuple[int, bool]]
) -> tuple[int, int]:
    """Return the cost of two items' strands crossing, as the items are and after a swap."""
    as_is = swapped = 0
    for left, left_main in left_ends:
        for right, right_main in right_ends:
            if left > right:
                as_is += _CROSSING + left_main + right_main
            elif left < right:
                swapped += _CROSSING + left_main + right_main
    return as_is, swapped
