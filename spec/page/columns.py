"""A state in columns: few distinct values each, so that a state is a row of small numbers.

Lists whose members change one at a time (blocks' keys and bytes, requests, ranks) are a column
for each member. Values are frozen and hashable; a column's table holds each once.

>>> from cowtail.models.lifecycle import initial
>>> from cowtail.spec.scopes import scope_named
>>> scope = scope_named("lone_producer")
>>> columns = Columns(scope)
>>> row = columns.row(initial(scope))
>>> columns.state(row) == initial(scope)
True
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import attrs
import cattrs

from cowtail.models.lifecycle import initial
from cowtail.models.scope import Scope
from cowtail.models.state import State

SPLIT = ("requests", "trackers", "ranks", "memory")
"""Fields of the state that are a column for each member."""

_CONVERTER = cattrs.Converter()
_WHOLE = tuple(field.name for field in attrs.fields(State) if field.name not in (*SPLIT, "pool"))


class Columns:
    """The columns of one scope's states, and the values met so far in each."""

    def __init__(self, scope: Scope) -> None:
        self.names = tuple(name for name, _ in _parts(initial(scope)))
        self.tables: list[list[Any]] = [[] for _ in self.names]
        self._numbers: list[dict[Hashable, int]] = [{} for _ in self.names]

    def row(self, state: State) -> list[int]:
        """Return the number of each column's value, in the order of ``names``."""
        row = []
        for (_, value), numbers, table in zip(
            _parts(state), self._numbers, self.tables, strict=True
        ):
            number = numbers.get(value)
            if number is None:
                number = numbers[value] = len(table)
                table.append(_CONVERTER.unstructure(value))
            row.append(number)
        return row

    def state(self, row: Sequence[int]) -> State:
        """Return the state of a row."""
        return state_of(self.names, self.tables, row)


def state_of(names: Sequence[str], tables: Sequence[Sequence[Any]], row: Sequence[int]) -> State:
    """Return the state of a row of value numbers, as the page decodes it."""
    plain: dict[str, Any] = {"pool": {"keys": []}, **{name: [] for name in SPLIT}}
    for name, table, number in zip(names, tables, row, strict=True):
        value = table[number]
        field, _, member = name.partition(".")
        if field == "pool":
            if member.startswith("keys."):
                plain["pool"]["keys"].append(value)
            else:
                plain["pool"][member] = value
        elif field in SPLIT:
            plain[field].append(value)
        else:
            plain[field] = value
    return _CONVERTER.structure(plain, State)


def _parts(state: State) -> Iterator[tuple[str, Hashable]]:
    pool = state.pool
    yield "pool.ref_counts", pool.ref_counts
    yield "pool.free", pool.free
    yield "pool.index", pool.index
    for block, keys in enumerate(pool.keys):
        yield f"pool.keys.{block}", keys
    for field in SPLIT:
        for member, value in enumerate(getattr(state, field)):
            yield f"{field}.{member}", value
    for field in _WHOLE:
        yield field, getattr(state, field)
