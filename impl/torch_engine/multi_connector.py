"""Several connectors behind one: everybody hears everything, and one of them loads.

Whether blocks are kept is counted, not or-ed: two connectors that save a request asynchronously
are two delays, and the blocks go after both.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from cowtail.impl.torch_engine.connector_base import Connector, PassResult
from cowtail.impl.torch_engine.loads import Supply
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata, Tables
from cowtail.models.observations import Handoff, Pin, StoreJob


class MultiConnector(Connector):
    """The connectors ``children``, in order. ``looks_up`` is the one that asks a store, if any."""

    def __init__(self, children: Sequence[Connector], looks_up: Connector | None) -> None:
        super().__init__()
        self.children = tuple(children)
        self.looks_up = looks_up or Connector()

    def look_up(self, request: Request, *, failed: bool) -> None:
        """Hand the answer to the one that asked."""
        self.looks_up.look_up(request, failed=failed)

    def expire_lease(self, request: Request) -> None:
        """Tell the one that has it."""
        self.looks_up.expire_lease(request)

    def found(self, name: str) -> int | None:
        """Return the one answer that there may be."""
        return self.looks_up.found(name)

    def leased(self, name: str) -> bool:
        """Whether the one answer is leased."""
        return self.looks_up.leased(name)

    def supply(self, request: Request, beyond: int, *, failed: bool) -> Supply | None:
        """Ask each in order; the first that has more than ``beyond`` wins.

        All are asked: one whose answer has not come keeps the request waiting, whoever wins.
        """
        supplies = [child.supply(request, beyond, failed=failed) for child in self.children]
        return next((supply for supply in supplies if supply is not None), None)

    def admitted(self, request: Request, winner: Supply | None) -> None:
        """Tell all who won, the others included: their answers are used up too."""
        for child in self.children:
            child.admitted(request, winner)

    def load_finished(self, request: Request) -> None:
        """Tell all."""
        for child in self.children:
            child.load_finished(request)

    def reset_cache(self) -> None:
        """Reset all."""
        for child in self.children:
            child.reset_cache()

    def build_metadata(self, result: PassResult) -> ConnectorMetadata:
        """Let each build its own; jobs are those of the store, sends those of all.

        Sends come request by request, in the order in which they finished.
        """
        each = [child.build_metadata(result) for child in self.children]
        sends = [send for metadata in each for send in metadata.sends]
        return attrs.evolve(
            super().build_metadata(result),
            jobs=tuple(job for metadata in each for job in metadata.jobs),
            sends=tuple(sorted(sends, key=lambda send: result.finished.index(send[0]))),
        )

    def register_finished_partial_tail(
        self, request: Request, tables: Tables, tails: Sequence[Handoff]
    ) -> bool:
        """Offer the tails to all; return whether any took them. Being taken delays no free."""
        taken = [
            child.register_finished_partial_tail(request, tables, tails) for child in self.children
        ]
        return any(taken)

    def request_finished(self, request: Request, tables: Tables) -> int:
        """Tell all; return how many of them save it asynchronously."""
        return sum(child.request_finished(request, tables) for child in self.children)

    def request_preempted(self, request: Request) -> None:
        """Tell all."""
        for child in self.children:
            child.request_preempted(request)

    def report(self, job: int, rank: int) -> bool:
        """Count a report where the job is known."""
        released = [child.report(job, rank) for child in self.children]
        return any(released)

    def drain_registered(self) -> tuple[StoreJob, ...]:
        """Return the jobs of all."""
        return tuple(job for child in self.children for job in child.drain_registered())

    @property
    def queued_tails(self) -> tuple[int, ...]:
        """Those of all."""
        return tuple(job for child in self.children for job in child.queued_tails)

    def pins(self) -> tuple[Pin, ...]:
        """Return those of all."""
        return tuple(pin for child in self.children for pin in child.pins())
