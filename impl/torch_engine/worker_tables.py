"""The workers' own block tables: what the scheduler tells them of a request's tables.

A step sends a whole table only when a request is admitted; afterwards it sends what was appended.
A column that the scheduler nulls or replaces later stays in the workers' table what it was. Steps
run on these tables.
"""

from __future__ import annotations

from cowtail.impl.torch_engine.request import Request

Tables = tuple[tuple[int, ...], ...]


class WorkerTables:
    """One table per group for each running request; all ranks' are the same."""

    def __init__(self, num_groups: int) -> None:
        self._none: Tables = ((),) * num_groups
        self._tables: dict[str, Tables] = {}

    def of(self, request_name: str) -> Tables:
        """Return the tables of a request, empty ones if the workers have none."""
        return self._tables.get(request_name, self._none)

    def send(self, request: Request, tables: Tables, *, admitted: bool) -> Tables:
        """Tell of the scheduler's ``tables``; return the workers' ones."""
        if admitted:
            self.replace(request, tables)
        else:
            self.append(request, tables)
        return self._tables[request.name]

    def replace(self, request: Request, tables: Tables) -> None:
        """Start a request's tables anew."""
        self._tables[request.name] = tables

    def append(self, request: Request, tables: Tables) -> None:
        """Append what is new, and nothing else."""
        self._tables[request.name] = tuple(
            old + new[len(old) :] for old, new in zip(self.of(request.name), tables, strict=True)
        )

    def forget(self, request: Request) -> None:
        """Forget a request that waits again or has finished."""
        self._tables.pop(request.name, None)
