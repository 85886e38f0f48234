"""Pin ledgers that somebody got wrong: what is counted, for whom, and when it is over."""

from __future__ import annotations

from collections import Counter

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.store_jobs import PinEntry, PinLedger


class UnpinsAtPreemption(PinLedger):
    """A preempted request's jobs are taken for over, though ranks have yet to read the blocks."""

    def request_preempted(self, request: Request) -> None:
        """Release every pin of the request."""
        for entry in [e for e in self.entries.values() if e.request is request]:
            self.release(entry)


class NumbersJobsPerLife(PinLedger):
    """Jobs are told apart by request and ordinal, and ordinals start again with every life.

    A report of a job of the life before counts for the job of the next life that has its name:
    that one is released before every rank has read it, and the pin of the other stays for ever.
    """

    def __init__(self, pool: BlockPool, num_ranks: int) -> None:
        super().__init__(pool, num_ranks)
        self._ordinals: Counter[str] = Counter()
        self._names: dict[int, tuple[str, int]] = {}
        self._current: dict[tuple[str, int], int] = {}

    def pin(self, job: int, request: Request, blocks: tuple[int, ...]) -> None:
        """Pin under the request's next ordinal."""
        name = (request.name, self._ordinals[request.name])
        self._ordinals[request.name] += 1
        self._names[job] = name
        self._current[name] = job
        super().pin(job, request, blocks)

    def find(self, job: int) -> PinEntry | None:
        """Return the entry of the job that has this job's name now."""
        name = self._names.get(job)
        return None if name is None else super().find(self._current[name])

    def request_preempted(self, request: Request) -> None:
        """Start counting afresh."""
        self._ordinals[request.name] = 0


class OwesAgainAfterReadmission(PinLedger):
    """A request admitted again has its outstanding jobs owed by every rank once more."""

    def request_admitted(self, request: Request) -> None:
        """Expect one more report of each outstanding job from each rank."""
        for entry in self.entries.values():
            if entry.request is request:
                entry.ranks_owed = sorted([*entry.ranks_owed, *range(self.num_ranks)])


class IgnoresFinishedRequests(PinLedger):
    """A report for a request that has finished is taken for one that came twice."""

    def find(self, job: int) -> PinEntry | None:
        """Look the job up among those of unfinished requests."""
        entry = super().find(job)
        return None if entry is None or entry.request.finished else entry


class ReleasesAfterFirstRank(PinLedger):
    """The first rank's report is taken for the whole job's."""

    def is_complete(self, entry: PinEntry) -> bool:
        """Do not wait for the other ranks."""
        return True


class ExpectsOneRankMore(PinLedger):
    """The number of ranks is taken from the wrong place: one more is waited for than there is."""

    def pin(self, job: int, request: Request, blocks: tuple[int, ...]) -> None:
        """Owe a report by a rank that does not exist."""
        super().pin(job, request, blocks)
        self.entries[job].ranks_owed.append(self.num_ranks)


class ReleasesTwice(PinLedger):
    """Two places give a finished job's references back, and each believes to be the only one."""

    def release(self, entry: PinEntry) -> None:
        """Free once more what others still hold."""
        super().release(entry)
        self.pool.free([block for block in entry.blocks if not self.pool.is_free(block)])
