"""A worker: one rank's memory, its streams, and the queue of store jobs that it carries out.

The rank's compute stream runs steps; its offload stream reads blocks to the host for store jobs.
A job's blocks are read when the read takes effect, not when the job is made: a block that is
reused too early really is stored with the wrong bytes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import attrs
import torch

from cowtail.impl.torch_engine.digests import DigestTable
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.forward import StepInputs, forward
from cowtail.impl.torch_engine.memory import PagedMemory, Pages
from cowtail.impl.torch_engine.store import EXISTS, OK, InMemoryStore, StoreKey, Value
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata, JobMetadata
from cowtail.impl.torch_engine.streams import Event, Stream
from cowtail.models.observations import Put, RankView, StoreEntry
from cowtail.models.scope import Scope


@attrs.frozen(eq=False)
class Entry:
    """One value that a job stores: ``slots`` leading slots of ``block`` under ``key``."""

    key: StoreKey
    block: int
    slots: int


@attrs.define(eq=False)
class QueuedJob:
    """A job on one rank. ``boundary`` and ``normal`` are what was missing when it was read.

    ``pages`` holds the blocks of both, in that order. ``retired``: the request was preempted
    before the job ran, so it does nothing.
    """

    metadata: JobMetadata
    retired: bool = False
    boundary: list[Entry] = attrs.field(factory=list)
    normal: list[Entry] = attrs.field(factory=list)
    pages: Pages | None = None
    read: Event | None = None

    @property
    def job(self) -> int:
        """The job's id."""
        return self.metadata.job.job

    @property
    def request(self) -> str:
        """The name of the job's request."""
        return self.metadata.job.request


class Worker:
    """Rank ``rank`` of a scope."""

    def __init__(
        self,
        scope: Scope,
        rank: int,
        memory: PagedMemory,
        store: InMemoryStore,
        compute: Stream,
        offload: Stream,
    ) -> None:
        self.scope = scope
        self.rank = rank
        self.memory = memory
        self.store = store
        self.digests = DigestTable(scope, rank, memory.width)
        self.queue: deque[QueuedJob] = deque()
        self.outbox: list[int] = []
        self.saved: dict[str, int] = {}
        self._compute = compute
        self._offload = offload
        self._finished: list[str] = []

    def submit_step(self, inputs: StepInputs) -> Event:
        """Put a step's device work on the compute stream."""
        return self._compute.submit(lambda: self.run_step(inputs))

    def run_step(self, inputs: StepInputs) -> None:
        """Zero, copy, move states to their columns, compute, and settle, in this order."""
        self.zero_new_blocks(inputs)
        self.copy_blocks(inputs)
        if inputs.state_copies is not None:
            self.memory.copy(*inputs.state_copies)
        for wave in inputs.waves:
            forward(self.memory, wave, self.rank)
        self.settle_states(inputs)

    def zero_new_blocks(self, inputs: StepInputs) -> None:
        """Zero the blocks that were allocated for the step: nobody's bytes may show through."""
        if inputs.new_blocks is not None:
            self.memory.zero(inputs.new_blocks)

    def copy_blocks(self, inputs: StepInputs) -> None:
        """Carry out the step's copies-on-write, all in one."""
        if inputs.copies is not None:
            self.memory.copy(*inputs.copies)

    def settle_states(self, inputs: StepInputs) -> None:
        """Move states on block boundaries, that drafts have passed, to their own columns."""
        if inputs.settled_copies is not None:
            self.memory.copy(*inputs.settled_copies)

    def start_jobs(self, metadata: ConnectorMetadata, step: Event) -> None:
        """Take a step's metadata in: retire, queue, and forget, in this order.

        Jobs of preempted requests that are still queued are retired; new jobs read their blocks
        after ``step``; the durable offset of a finished request is forgotten once no live job of
        it is queued.
        """
        for name in metadata.preempted:
            self.saved.pop(name, None)
            for queued in self.queue:
                queued.retired |= queued.request == name
        for job in metadata.jobs:
            self.enqueue(QueuedJob(job), step)
        self._finished += metadata.finished
        live = {queued.request for queued in self.queue if not queued.retired}
        for name in [name for name in self._finished if name not in live]:
            self._finished.remove(name)
            self.saved.pop(name, None)

    def enqueue(self, queued: QueuedJob, step: Event) -> None:
        """Queue a job, and its read on the offload stream."""
        queued.read = self._offload.submit(lambda: self._read(queued), after=(step,))
        self.queue.append(queued)

    def _read(self, queued: QueuedJob) -> None:
        """Find out what is missing in the store, and gather its blocks in one read."""
        if queued.retired:
            return
        queued.boundary = self.missing(queued, self.boundary_entries(queued))
        known = {entry.key for entry in queued.boundary}
        normal = [e for e in self.normal_entries(queued) if e.key not in known]
        queued.normal = self.missing(queued, normal)
        entries = queued.boundary + queued.normal
        if entries:
            blocks = torch.tensor([e.block for e in entries], device=self.memory.device)
            queued.pages = self.memory.read_pages(blocks)

    def missing(self, queued: QueuedJob, entries: list[Entry]) -> list[Entry]:
        """Return the entries that the store does not have: the first write of a key wins."""
        exist = self.store.batch_is_exist([entry.key for entry in entries])
        return [e for e, code in zip(entries, exist, strict=True) if code != EXISTS]

    def boundary_entries(self, queued: QueuedJob) -> list[Entry]:
        """Return what the job's boundary puts store."""
        return [self._entry(queued, put) for put in queued.metadata.job.puts]

    def normal_entries(self, queued: QueuedJob) -> list[Entry]:
        """Return the full attention blocks from the durable offset to where the save reaches."""
        save_to = queued.metadata.job.save_to
        saved = self.saved.get(queued.request, 0)
        entries = []
        for index in self.groups_saved():
            table, size = queued.metadata.tables[index], self.scope.groups[index].block_size
            for position in range(saved // size, save_to // size):
                put = Put(index, table[position], (position + 1) * size)
                entries.append(self._entry(queued, put))
        return entries

    def groups_saved(self) -> list[int]:
        """Return the groups that a normal save covers: states are only ever handed over (R30)."""
        return [index for index, group in enumerate(self.scope.groups) if not group.is_mamba]

    def _entry(self, queued: QueuedJob, put: Put) -> Entry:
        group = self.scope.groups[put.group]
        first = (put.boundary - 1) // group.block_size * group.block_size
        slots = 1 if group.is_mamba else put.boundary - first
        prefix = queued.metadata.request.prefix(put.boundary)
        return Entry(StoreKey(self.rank, put.group, prefix), put.block, slots)

    def run_job(self, *, fail: bool) -> tuple[StoreEntry, ...]:
        """Carry out the job at the head of the queue; return what was really put, in order.

        With ``fail`` the store fails every put. Raises EngineError if the queue is empty.
        """
        if not self.queue:
            raise EngineError(f"rank {self.rank} has no job queued; execute a step that brings one")
        queued = self.queue.popleft()
        assert queued.read is not None
        queued.read.wait()
        puts: tuple[StoreEntry, ...] = ()
        if not queued.retired:
            if fail:
                with self.store.failing():
                    puts = self._put(queued)
            else:
                puts = self._put(queued)
        self.outbox.append(queued.job)
        return puts

    def _put(self, queued: QueuedJob) -> tuple[StoreEntry, ...]:
        """Put the boundary, and only if that went well the normal save (R18, R19)."""
        if queued.pages is None:
            return self._all_saved(queued, ())
        rows = [
            (
                entry,
                Value(
                    queued.pages.digests[row, : entry.slots],
                    queued.pages.payload[row, : entry.slots],
                ),
            )
            for row, entry in enumerate(queued.boundary + queued.normal)
        ]
        put: list[tuple[Entry, Value]] = []
        for staged in (rows[: len(queued.boundary)], rows[len(queued.boundary) :]):
            missing = self.missing(queued, [entry for entry, _ in staged])
            wanted = [(entry, value) for entry, value in staged if entry in missing]
            codes = self.store.batch_put_from([e.key for e, _ in wanted], [v for _, v in wanted])
            put += [pair for pair, code in zip(wanted, codes, strict=True) if code >= OK]
            if any(code < OK for code in codes):
                self.put_failed(queued)
                return self._entries(put)
        return self._all_saved(queued, self._entries(put))

    def _all_saved(self, queued: QueuedJob, puts: tuple[StoreEntry, ...]) -> tuple[StoreEntry, ...]:
        """Move the durable offset: everything below it is in the store, by whomever."""
        if queued.metadata.job.save_to > 0:
            self.saved[queued.request] = queued.metadata.job.save_to
        return puts

    def put_failed(self, queued: QueuedJob) -> None:
        """Note that a put failed: the durable offset stays where it is (R19)."""

    def _entries(self, put: Sequence[tuple[Entry, Value]]) -> tuple[StoreEntry, ...]:
        contents = self.contents([value for _, value in put])
        return tuple(
            StoreEntry(*entry.key, content)
            for (entry, _), content in zip(put, contents, strict=True)
        )

    def contents(self, values: Sequence[Value]) -> list[tuple[str, ...]]:
        """Return for each value what its slots stand for, as this rank's bytes."""
        if not values:
            return []
        digests = torch.cat([value.digests for value in values]).unsqueeze(0)
        payload = torch.cat([value.payload for value in values]).unsqueeze(0)
        prefixes = iter(self.digests.decode(digests, payload)[0])
        return [tuple(itertools.islice(prefixes, len(value.digests))) for value in values]

    def take_report(self, job: int, *, again: bool) -> None:
        """Take a job out of the outbox, unless it will be reported again.

        Raises EngineError for a job that is not there.
        """
        if job not in self.outbox:
            raise EngineError(f"rank {self.rank} has no report of job {job}; run the job first")
        if not again:
            self.outbox.remove(job)

    def view(self) -> RankView:
        """Return what can be observed of the rank."""
        return RankView(
            tuple(queued.job for queued in self.queue),
            tuple(self.outbox),
            tuple(self.saved.get(request.name, 0) for request in self.scope.requests),
        )
