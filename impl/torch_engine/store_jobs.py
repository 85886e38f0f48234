"""Store jobs: their pins, counted once per rank, and the metadata that carries them to workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.request import Request
from cowtail.models.observations import Pin, StoreJob

if TYPE_CHECKING:
    from cowtail.impl.torch_engine.loads import LoadJob

Tables = tuple[tuple[int, ...], ...]
"""Block ids of one request, group by group."""


@attrs.frozen(eq=False)
class JobMetadata:
    """One store job as workers get it: the tables as they were when it was made."""

    job: StoreJob
    request: Request
    tables: Tables


@attrs.frozen(eq=False)
class ConnectorMetadata:
    """What one step carries from the scheduler's connector to the workers'.

    ``sends``: finished requests that a connector saves, (request, child) each.
    """

    jobs: tuple[JobMetadata, ...] = ()
    loads: tuple[LoadJob, ...] = ()
    sends: tuple[tuple[str, int], ...] = ()
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()


@attrs.define(eq=False)
class PinEntry:
    """The pin of one job, and the ranks that have not reported it."""

    job: int
    request: Request
    blocks: tuple[int, ...]
    ranks_owed: list[int]


class PinLedger:
    """Which blocks each job keeps referenced, and which ranks have yet to report it (R6, R8).

    Entries are kept by job id, which is never used again: a request's name is no name for a job,
    because a request has many, and after a preemption another life.
    """

    def __init__(self, pool: BlockPool, num_ranks: int) -> None:
        self.pool = pool
        self.num_ranks = num_ranks
        self.entries: dict[int, PinEntry] = {}

    def pin(self, job: int, request: Request, blocks: tuple[int, ...]) -> None:
        """Reference ``blocks`` once each until every rank has reported the job."""
        self.pool.touch(blocks)
        self.entries[job] = PinEntry(job, request, blocks, list(range(self.num_ranks)))

    def report(self, job: int, rank: int) -> bool:
        """Count one rank's report, once; return whether the job's blocks were released."""
        entry = self.find(job)
        if entry is None or rank not in entry.ranks_owed:
            return False
        entry.ranks_owed.remove(rank)
        if not self.is_complete(entry):
            return False
        self.release(entry)
        return True

    def find(self, job: int) -> PinEntry | None:
        """Return the entry that a report of ``job`` counts for; None if the job is complete."""
        return self.entries.get(job)

    def is_complete(self, entry: PinEntry) -> bool:
        """Whether no rank owes a report any more."""
        return not entry.ranks_owed

    def release(self, entry: PinEntry) -> None:
        """Drop the references of a complete job, its last block first."""
        del self.entries[entry.job]
        self.pool.free(reversed(entry.blocks))

    def request_admitted(self, request: Request) -> None:
        """Note that a request starts a life; the jobs of earlier ones stay what they are."""

    def request_preempted(self, request: Request) -> None:
        """Note that a request lost its blocks; the pins of its jobs stay."""

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins, by job id."""
        entries = sorted(self.entries.values(), key=lambda entry: entry.job)
        return tuple(Pin(e.job, e.blocks, tuple(e.ranks_owed)) for e in entries)
