"""A worker: one rank's memory, its streams, and the queue of store jobs that it carries out.

The rank's compute stream runs steps; its offload stream reads blocks to the host for store jobs.
A job's blocks are read when the job is carried out, not when it is made: a block that is reused
too early really is stored with the wrong bytes.
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
from cowtail.impl.torch_engine.loader import LoadQueue, SendQueue
from cowtail.impl.torch_engine.memory import PagedMemory, Pages
from cowtail.impl.torch_engine.retention import Retention
from cowtail.impl.torch_engine.scripted_store import ScriptedStore, StoreCheckFailed
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata, JobMetadata
from cowtail.impl.torch_engine.store_protocol import EXISTS, NO_SPACE, OK, StoreKey, Value
from cowtail.impl.torch_engine.streams import Event, Stream
from cowtail.models.actions import JobOutcome
from cowtail.models.observations import NULL_BLOCK, Put, RankView, StoreEntry
from cowtail.models.scope import Scope


@attrs.frozen(eq=False)
class Entry:
    """One value that a job stores: ``slots`` leading slots of ``block`` under ``key``.

    ``start``: the token at which the block begins.
    """

    key: StoreKey
    block: int
    slots: int
    start: int


@attrs.define(eq=False)
class QueuedJob:
    """A job on one rank, whose blocks may be read after ``step``.

    ``retired``: the request was preempted before the job ran, so it does nothing.
    """

    metadata: JobMetadata
    step: Event
    retired: bool = False

    @property
    def job(self) -> int:
        """The job's id."""
        return self.metadata.job.job

    @property
    def request(self) -> str:
        """The name of the job's request."""
        return self.metadata.job.request

    @property
    def save_to(self) -> int:
        """The length that the job's normal save should reach, 0 if it has none."""
        return self.metadata.job.save_to


@attrs.frozen(eq=False)
class SavePlan:
    """What a job has to put, in two batches: boundary puts, then the normal save from ``saved``."""

    boundary: list[Entry]
    normal: list[Entry]
    saved: int


class Worker:
    """Rank ``rank`` of a scope."""

    def __init__(
        self,
        scope: Scope,
        rank: int,
        memory: PagedMemory,
        store: ScriptedStore,
        compute: Stream,
        offload: Stream,
        loads: LoadQueue,
        sends: SendQueue,
        retention: Retention,
    ) -> None:
        self.scope = scope
        self.rank = rank
        self.memory = memory
        self.store = store
        self.retention = retention
        self.digests = DigestTable(scope, rank, memory.width)
        self.queue: deque[QueuedJob] = deque()
        self.outbox: list[int] = []
        self.saved: dict[str, int] = {}
        self.skipping: list[str] = []
        self.loads = loads
        self.sends = sends
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
        """Take a step's metadata in: retire, queue, send, and forget, in this order.

        Jobs of preempted requests that are still queued are retired; new jobs read their blocks
        after ``step``; the durable offset of a finished request is forgotten once no live job of
        it is queued.
        """
        for name in metadata.preempted:
            self.forget(name)
            for queued in self.queue:
                queued.retired |= queued.request == name
        for job in metadata.jobs:
            self.enqueue(QueuedJob(job, step))
        self.sends.start(metadata.sends)
        self._finished += metadata.finished
        live = {queued.request for queued in self.queue if not queued.retired}
        for name in [name for name in self._finished if name not in live]:
            self._finished.remove(name)
            self.forget(name)

    def forget(self, name: str) -> None:
        """Forget how far a request is saved, and that the store had no room for it."""
        self.saved.pop(name, None)
        if name in self.skipping:
            self.skipping.remove(name)

    def enqueue(self, queued: QueuedJob) -> None:
        """Queue a job."""
        self.queue.append(queued)

    def missing(self, queued: QueuedJob, entries: list[Entry]) -> list[Entry]:
        """Return the entries that the store does not have: the first write of a key wins.

        Raises StoreCheckFailed if the store does not say.
        """
        if not entries:
            return []
        codes = self.store.batch_is_exist([entry.key for entry in entries])
        if any(code < OK for code in codes):
            raise StoreCheckFailed(f"job {queued.job}: the store answered {min(codes)}; try later")
        return [e for e, code in zip(entries, codes, strict=True) if code != EXISTS]

    def boundary_entries(self, queued: QueuedJob) -> list[Entry]:
        """Return what the job's boundary puts store."""
        return [self._entry(queued, put) for put in queued.metadata.job.puts]

    def normal_entries(self, queued: QueuedJob) -> list[Entry]:
        """Return the blocks below where the job's normal save reaches, nulls included."""
        entries = []
        for index in self.groups_saved():
            table, size = queued.metadata.tables[index], self.scope.groups[index].block_size
            for position in range(queued.save_to // size):
                if self.is_retained(index, position, queued):
                    put = Put(index, table[position], (position + 1) * size)
                    entries.append(self._entry(queued, put))
        return entries

    def is_retained(self, group: int, position: int, queued: QueuedJob) -> bool:
        """Whether a normal save covers the block at ``position`` of a table.

        A rank does not know of junctions.
        """
        return self.retention.keeps(group, position, queued.metadata.request.prompt_length, 0)

    def groups_saved(self) -> list[int]:
        """Return the groups that a normal save covers: states are only ever handed over (R30)."""
        return [index for index, group in enumerate(self.scope.groups) if not group.is_mamba]

    def _entry(self, queued: QueuedJob, put: Put) -> Entry:
        group = self.scope.groups[put.group]
        first = (put.boundary - 1) // group.block_size * group.block_size
        slots = 1 if group.is_mamba else put.boundary - first
        prefix = queued.metadata.request.prefix(put.boundary)
        return Entry(StoreKey(self.rank, put.group, prefix), put.block, slots, first)

    def run_job(self, outcome: JobOutcome) -> tuple[StoreEntry, ...]:
        """Carry out the job at the head of the queue; return what was really put, in order.

        The store answers as ``outcome`` says. Raises EngineError if the queue is empty.
        """
        if not self.queue:
            raise EngineError(f"rank {self.rank} has no job queued; execute a step that brings one")
        queued = self.queue.popleft()
        puts: list[tuple[Entry, Value]] = []
        if not queued.retired and queued.request not in self.skipping:
            with self.store.answering(outcome):
                self._carry_out(queued, puts)
        self.outbox.append(queued.job)
        return self._entries(puts)

    def _carry_out(self, queued: QueuedJob, puts: list[tuple[Entry, Value]]) -> None:
        """Put the boundary, and only if that went well the normal save (R18, R19)."""
        try:
            plan = self.plan(queued)
        except StoreCheckFailed:
            self.put_failed(queued)
            return
        values = self._read(queued, plan.boundary + plan.normal)
        if not self._put(queued, plan.boundary, values[: len(plan.boundary)], puts):
            return
        if queued.save_to == 0:
            return
        self.saved[queued.request] = plan.saved
        if self._put(queued, plan.normal, values[len(plan.boundary) :], puts):
            # Everything below it is in the store, by whomever.
            self.saved[queued.request] = queued.save_to
            self.skipping.clear()

    def plan(self, queued: QueuedJob) -> SavePlan:
        """Return what the store lacks. Raises StoreCheckFailed if the store does not say.

        The normal save starts at the durable offset, or at the first block below it that the
        store has lost since. What the boundary puts will have put counts as there.
        """
        boundary = self.missing(queued, self.boundary_entries(queued))
        put = {entry.key for entry in boundary}
        normal = [e for e in self.normal_entries(queued) if e.key not in put]
        normal = self.missing(queued, normal)
        saved = self.durable_offset(queued, normal)
        normal = [e for e in normal if self.is_put(e) and e.start + self._size(e) > saved]
        return SavePlan(boundary, normal, saved)

    def durable_offset(self, queued: QueuedJob, missing: list[Entry]) -> int:
        """Return how far the request is in the store: what has gone missing lowers it."""
        saved = self.saved.get(queued.request, 0)
        return min([saved, *(e.start for e in missing if e.start + self._size(e) <= saved)])

    def is_put(self, entry: Entry) -> bool:
        """Whether an entry has bytes: the null block has none."""
        return entry.block != NULL_BLOCK

    def _size(self, entry: Entry) -> int:
        return self.scope.groups[entry.key.group].block_size

    def _read(self, queued: QueuedJob, entries: list[Entry]) -> list[Value]:
        """Read the blocks of all entries to the host, in one operation behind the job's step."""
        if not entries:
            return []
        blocks = torch.tensor([e.block for e in entries], device=self.memory.device)
        read: list[Pages] = []
        self._offload.submit(
            lambda: read.append(self.memory.read_pages(blocks)), after=(queued.step,)
        ).wait()
        (pages,) = read
        return [
            Value(pages.digests[row, : entry.slots], pages.payload[row, : entry.slots])
            for row, entry in enumerate(entries)
        ]

    def _put(
        self,
        queued: QueuedJob,
        entries: list[Entry],
        values: list[Value],
        puts: list[tuple[Entry, Value]],
    ) -> bool:
        """Put one batch, adding to ``puts`` what was written; return whether all went well."""
        if not entries:
            return True
        codes = self.store.batch_put_from([entry.key for entry in entries], values)
        pairs = zip(entries, values, codes, strict=True)
        puts += [(entry, value) for entry, value, code in pairs if code >= OK]
        if all(code >= OK for code in codes):
            return True
        if NO_SPACE in codes:
            self.store_is_full(queued)
        self.put_failed(queued)
        return False

    def store_is_full(self, queued: QueuedJob) -> None:
        """Skip the request's jobs until the store is seen to take saves again."""
        self.skipping.append(queued.request)

    def put_failed(self, queued: QueuedJob) -> None:
        """Note that a put failed: the durable offset stays where it is (R19)."""

    def _entries(self, put: Sequence[tuple[Entry, Value]]) -> tuple[StoreEntry, ...]:
        if not put:
            return ()
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
            tuple(job.load.request for job in self.loads.queue),
            tuple(self.loads.done),
            tuple(self.sends.sends),
            tuple(r.name for r in self.scope.requests if r.name in self.skipping),
        )
