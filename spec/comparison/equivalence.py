"""How equal two recorded graphs are: equal up to renaming, bisimilar, different, undetermined.

Two states are *bisimilar* if the views see the same of both, and whatever edge (action, events,
moves) leaves one, an equal one leaves the other, to states that are bisimilar again. It is
computed by partition refinement over both graphs together: states begin in one class if they
are seen alike, and classes are split by the labels and classes that their edges lead to, until
none splits. Each round costs the number of edges, and there are about as many as the graph is
deep; a worklist would need fewer steps and more lines.
"""

from __future__ import annotations

import enum
from typing import Any

Record = dict[str, Any]


class Equivalence(enum.Enum):
    """What was established of two graphs, the strongest that could be."""

    EQUAL = "equality of the full graph up to renaming"
    BISIMILAR = "bisimulation of the projection"
    DIFFERENT = "different behaviour"
    UNDETERMINED = "undetermined"


def compare_graphs(old: Record, new: Record) -> Equivalence:
    """Return how equal two scopes' graphs are (see ``recorder`` for their fields)."""
    if old["bound_hit"] or new["bound_hit"]:
        return Equivalence.UNDETERMINED
    if old["fingerprint"] == new["fingerprint"]:
        return Equivalence.EQUAL
    classes_old, classes_new = _refine(old, new)
    if classes_old[0] != classes_new[0]:
        return Equivalence.DIFFERENT
    if _one_to_one(old, new, classes_old, classes_new):
        return Equivalence.EQUAL
    return Equivalence.BISIMILAR


def _refine(old: Record, new: Record) -> tuple[list[int], list[int]]:
    """Return the class of every state of both graphs in their coarsest bisimulation."""
    border = len(old["seen_of"])
    labels: dict[Any, int] = {}
    edges = []
    for graph, offset in ((old, 0), (new, border)):
        names = [labels.setdefault(_plain(label), len(labels)) for label in graph["labels"]]
        for leaving in graph["out"]:
            edges.append([(names[label], target + offset) for label, target in leaving])
    signatures: list[Any] = [
        _plain(graph["seen"][number]) for graph in (old, new) for number in graph["seen_of"]
    ]
    count = 0
    while True:
        numbers: dict[Any, int] = {}
        classes = [numbers.setdefault(signature, len(numbers)) for signature in signatures]
        if len(numbers) == count:
            return classes[:border], classes[border:]
        count = len(numbers)
        signatures = [
            (own, frozenset((label, classes[target]) for label, target in leaving))
            for own, leaving in zip(classes, edges, strict=True)
        ]


def _one_to_one(old: Record, new: Record, mine: list[int], theirs: list[int]) -> bool:
    """Whether every class has one state of each graph, with as many edges in both.

    Then the classes are the renaming. More could be found by telling the states of one class
    apart by the edges that come in; not being found is no proof that there is none.
    """
    if len(set(mine)) != len(mine) or sorted(mine) != sorted(theirs):
        return False
    return _edges(old, mine) == _edges(new, theirs)


def _edges(graph: Record, classes: list[int]) -> list[Any]:
    labels = [_plain(label) for label in graph["labels"]]
    return sorted(
        (classes[source], labels[label], classes[target])
        for source, leaving in enumerate(graph["out"])
        for label, target in leaving
    )


def _plain(value: Any) -> Any:
    """Return lists as tuples: JSON has no tuples."""
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
