"""Parts that somebody got wrong: where chunks stop, what is kept, what workers know of tables."""

from __future__ import annotations

from cowtail.impl.torch_engine.chunking import Chunking
from cowtail.impl.torch_engine.layout import LookupSet
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.retention import Retention
from cowtail.impl.torch_engine.scheduler import Scheduler
from cowtail.impl.torch_engine.state_columns import Move, StateColumns
from cowtail.impl.torch_engine.worker_tables import Tables, WorkerTables


class StopsAtBlocksOnly(Chunking):
    """A chunk runs over the replay boundary, so that the state there is never seen."""

    def mandatory_stops(self, request: Request, start: int, block: int) -> list[int]:
        """Leave out what is not on a block boundary."""
        return [
            stop for stop in super().mandatory_stops(request, start, block) if stop % block == 0
        ]


class KeepsNoProof(Retention):
    """The window block that proves an EAGLE hit gets no key; it looks like one too many."""

    def blocks_beyond(self, each: LookupSet) -> int:
        """Return none."""
        return 0


class AppendsOnResume(WorkerTables):
    """A request that resumes has its new blocks appended to those of the life before."""

    def __init__(self, num_groups: int) -> None:
        super().__init__(num_groups)
        self._before: dict[str, Tables] = {}

    def replace(self, request: Request, tables: Tables) -> None:
        """Start with the blocks of the life before."""
        before = self._before.pop(request.name, self.of(request.name))
        super().replace(request, tuple(old + new for old, new in zip(before, tables, strict=True)))

    def forget(self, request: Request) -> None:
        """Keep the blocks in mind."""
        self._before[request.name] = self.of(request.name)
        super().forget(request)


class ForgetsAcceptedDrafts(StateColumns):
    """The state is looked for in the running column, however many drafts were accepted."""

    def settle(self, chunk: ScheduledChunk, running: int) -> tuple[int, Move | None]:
        """Return the running column."""
        return running, super().settle(chunk, running)[1]


class KeepsWithdrawnKeys(Scheduler):
    """The keys of a chunk that is withdrawn from its pass stay, and promise bytes never written."""

    def withdraw(self, request: Request) -> None:
        """Forget which keys the chunk registered."""
        self.cache.record.registered.pop(request.name, None)
        super().withdraw(request)
