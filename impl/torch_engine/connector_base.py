"""The connector's side of the scheduler: every hook there is, and a base class that does nothing.

A connector moves blocks out of the cache and into it. The scheduler calls the same hooks of every
kind: the store's (``connector``), a peer engine's (``peer_connector``), or several of them behind
one (``multi_connector``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.loads import LoadJob, Supply
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata, Tables
from cowtail.models.observations import Handoff, Pin, StoreJob


@attrs.frozen(eq=False)
class PassResult:
    """What one pass did, as all connectors are told.

    ``chunks`` in the order scheduled, ``tables`` those of the requests scheduled. ``preempted``
    and ``finished`` name requests since the last step.
    """

    chunks: tuple[ScheduledChunk, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    requests: Mapping[str, Request] = attrs.field(factory=dict)
    tables: Mapping[str, Tables] = attrs.field(factory=dict)
    loads: tuple[LoadJob, ...] = ()
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()


class Connector:
    """A connector that moves nothing: it takes no handoff and delays no free (R5).

    ``child`` is its position among the connectors of the engine.
    """

    def __init__(self, child: int = 0) -> None:
        self.child = child

    # Lookups and loads.

    def look_up(self, request: Request, *, failed: bool) -> None:
        """Take in the answer of an asynchronous lookup. Raises EngineError if none is expected."""
        raise EngineError(f"look_up({request.name}): no connector looks anything up here")

    def expire_lease(self, request: Request) -> None:
        """Let the lease of a lookup run out. Raises EngineError if there is none."""
        raise EngineError(f"expire_lease({request.name}): no connector leases anything here")

    def found(self, name: str) -> int | None:
        """Return the tokens of the answer that a request holds, None without one."""
        return None

    def leased(self, name: str) -> bool:
        """Whether what a request's lookup found is protected from eviction."""
        return False

    def supply(self, request: Request, beyond: int, *, failed: bool) -> Supply | None:
        """Return what can be loaded if it is more than ``beyond`` tokens.

        ``failed``: a lookup that is done now answers with an error.
        """
        return None

    def admitted(self, request: Request, winner: Supply | None) -> None:
        """Note that a request was admitted, and what it loads: its answer is used up."""

    def load_finished(self, request: Request) -> None:
        """Note that a load is over, well or not."""

    def reset_cache(self) -> None:
        """Forget what is known of caches elsewhere: they are emptied."""

    # Saves.

    def build_metadata(self, result: PassResult) -> ConnectorMetadata:
        """Return what the workers need to know with the pass's step."""
        return ConnectorMetadata(
            loads=result.loads, preempted=result.preempted, finished=result.finished
        )

    def register_finished_partial_tail(
        self, request: Request, tables: Tables, tails: Sequence[Handoff]
    ) -> bool:
        """Return whether the tails of a finishing request are taken (R5): here never."""
        return False

    def request_finished(self, request: Request, tables: Tables) -> int:
        """Return how many asynchronous saves keep the blocks of a finishing request."""
        return 0

    def request_preempted(self, request: Request) -> None:
        """Note, as it happens, that a request loses its blocks."""

    def report(self, job: int, rank: int) -> bool:
        """Count one rank's report of a job; return whether its blocks were released."""
        return False

    # What can be observed.

    def drain_registered(self) -> tuple[StoreJob, ...]:
        """Return, once, the jobs registered at finish."""
        return ()

    @property
    def queued_tails(self) -> tuple[int, ...]:
        """Jobs registered at finish that no metadata has carried yet."""
        return ()

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins of jobs that some rank has not reported, by job id."""
        return ()
