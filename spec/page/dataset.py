"""States and transitions as plain lists of numbers: what the page reads.

A state is kept as what differs from the state that the search came to it from; the page applies
the differences along that path, which is no longer than the scope is deep, when it shows a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.page.columns import Columns, state_of
from cowtail.spec.views import VIEWS

Json = dict[str, Any]


def encode_states(scope: Scope, states: Iterable[State], parents: Sequence[int]) -> Json:
    """Return states of a scope, each as its difference from an earlier one, its parent.

    ``starts[n]`` to ``starts[n + 1]`` are state n's pairs in ``changes``: column, value. The
    first state has every column. ``views`` has for each view the phases of the items of every
    state, as an index into ``tuples``, whose entries index ``phases``.
    """
    columns = Columns(scope)
    views = {name: _Phases() for name in VIEWS}
    rows: list[tuple[int, ...]] = []
    starts, changes = [0], []
    for number, state in enumerate(states):
        row = tuple(columns.row(state))
        before = rows[parents[number]] if number else (-1,) * len(row)
        for column, (old, new) in enumerate(zip(before, row, strict=True)):
            if old != new:
                changes += [column, new]
        rows.append(row)
        starts.append(len(changes))
        for name, phases in views.items():
            phases.add(VIEWS[name].items(scope, state))
    return {
        "scope": _outline(scope),
        "columns": list(columns.names),
        "tables": columns.tables,
        "parents": list(parents),
        "starts": starts,
        "changes": changes,
        "views": {name: phases.encoded() for name, phases in views.items()},
    }


def decode_state(data: Json, number: int) -> State:
    """Return a state, decoded as the page does it. Raises IndexError for a number out of range."""
    chain = [number]
    while chain[-1]:
        chain.append(data["parents"][chain[-1]])
    row = [0] * len(data["columns"])
    for each in reversed(chain):
        pairs = data["changes"][data["starts"][each] : data["starts"][each + 1]]
        for column, value in zip(pairs[::2], pairs[1::2], strict=True):
            row[column] = value
    return state_of(data["columns"], data["tables"], row)


def address_of(data: Json, state: int) -> list[int]:
    """Return the address of a state: which action to take, by its index among those enabled."""
    address = []
    while state:
        parent = data["parents"][state]
        first, end = data["first_edges"][parent], data["first_edges"][parent + 1]
        address.append(data["targets"][first:end].index(state))
        state = parent
    return address[::-1]


def state_at(data: Json, address: Sequence[int]) -> int:
    """Return the state at an address. Raises ValueError where an action is not enabled."""
    state = 0
    for place, choice in enumerate(address):
        first, end = data["first_edges"][state], data["first_edges"][state + 1]
        if not 0 <= choice < end - first:
            raise ValueError(
                f"action {choice} at place {place}: the state there has {end - first} actions, "
                "counted from 0; use one of them"
            )
        state = data["targets"][first + choice]
    return state


class _Phases:
    """The phases of the items of each state, numbered twice: phases, and tuples of them."""

    def __init__(self) -> None:
        self._phases: dict[str, int] = {}
        self._tuples: dict[tuple[int, ...], int] = {}
        self._of: list[int] = []

    def add(self, items: tuple[str, ...]) -> None:
        numbers = tuple(self._phases.setdefault(str(item), len(self._phases)) for item in items)
        self._of.append(self._tuples.setdefault(numbers, len(self._tuples)))

    def encoded(self) -> Json:
        return {"phases": list(self._phases), "tuples": list(self._tuples), "of": self._of}


def _outline(scope: Scope) -> Json:
    """Return what the page says of a scope."""
    return {
        "name": scope.name,
        "groups": [
            {"kind": group.kind.value, "block_size": group.block_size} for group in scope.groups
        ],
        "requests": [attrs.asdict(request) for request in scope.requests],
    }
