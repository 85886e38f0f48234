"""Worker ranks and the external store: take a step's metadata, run a job, report it (domain.md f).

A rank reads block contents when the job *runs*, however late that is. The first write of a
key wins. Only a fully persisted range moves the rank's durable offset, and tail puts never do
(R19). Every job is reported in the end, whatever became of its puts (R18).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import attrs

from cowtail.models.actions import JobOutcome
from cowtail.models.errors import NotEnabled
from cowtail.models.memories import memory_of, slots_of
from cowtail.models.observations import NULL_BLOCK, Effects, StoreEntry
from cowtail.models.retention import is_retained
from cowtail.models.scope import Scope
from cowtail.models.state import DeviceStep, JobMeta, RankWorker, State, with_rank
from cowtail.models.transition import Transition

Wanted = tuple[int, int, int]
"""Group, block and number of tokens of something that a job stores."""


def tell(state: State, step: DeviceStep) -> State:
    """Let every rank hear of a step: jobs to store, requests that ended or were preempted."""
    ranks = tuple(receive_metadata(rank, step) for rank in state.ranks)
    return attrs.evolve(state, ranks=ranks)


def receive_metadata(rank: RankWorker, step: DeviceStep) -> RankWorker:
    """Retire jobs of preempted generations, queue the step's jobs, close finished requests."""
    queue = tuple(
        attrs.evolve(job, live=False) if job.request in step.preempted else job
        for job in rank.queue
    )
    queue += step.jobs
    closing = dict.fromkeys((*rank.closing, *step.finished))
    closed = tuple(index for index in closing if not _has_live_job(queue, index))
    forgotten = (*step.preempted, *closed)
    return attrs.evolve(
        rank,
        queue=queue,
        saved=_cleared(rank.saved, forgotten),
        closing=tuple(index for index in closing if index not in closed),
        skipping=tuple(index for index in rank.skipping if index not in forgotten),
    )


def _has_live_job(queue: tuple[JobMeta, ...], index: int) -> bool:
    return any(job.request == index and job.live for job in queue)


def _cleared(saved: tuple[int, ...], indices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(0 if index in indices else offset for index, offset in enumerate(saved))


def run_job_guard(scope: Scope, state: State, rank: int, outcome: JobOutcome) -> str:
    """Return why a rank cannot run its next job with this outcome, or an empty string."""
    if not 0 <= rank < len(state.ranks):
        return f"there is no rank {rank}"
    worker = state.ranks[rank]
    if not worker.queue:
        return f"rank {rank} has no job queued"
    waits = (step.jobs for step in state.steps if not step.executed)
    if any(job.job == worker.queue[0].job for jobs in waits for job in jobs):
        return "the step of the job has not run"
    if outcome is JobOutcome.OK:
        return ""
    if state.spent.failed_jobs >= scope.max_failed_jobs:
        return f"max_failed_jobs={scope.max_failed_jobs} are spent"
    if outcome not in scope.put_failures:
        return f"{outcome.value} is not among put_failures"
    job = worker.queue[0]
    if not job.live or job.request in worker.skipping:
        return "the job is skipped, so nothing can fail"
    needed = len(_first_batch(scope, state, rank, job).puts)
    if not needed:
        return "nothing has to be put, so nothing can fail"
    if outcome is JobOutcome.PARTIAL and needed < 2:
        return "a single put cannot fail in part"
    return ""


def run_job(scope: Scope, state: State, rank: int, outcome: JobOutcome) -> Transition:
    """Let a rank carry out the job at the head of its queue."""
    guard = run_job_guard(scope, state, rank, outcome)
    if guard:
        raise NotEnabled(guard)
    worker = state.ranks[rank]
    job = worker.queue[0]
    done = attrs.evolve(worker, queue=worker.queue[1:], outbox=(*worker.outbox, job.job))
    if not job.live:
        return Transition(with_rank(state, rank, done), Effects(), ("retired job skipped",))
    if job.request in worker.skipping:
        return Transition(with_rank(state, rank, done), Effects(), ("job skipped: store is full",))
    if outcome is not JobOutcome.OK:
        return _fail(scope, state, rank, job, done, outcome)
    offset = durable_offset(scope, state, rank, job)
    wanted = boundary_puts(job) + prefix_puts(scope, job, offset)
    entries = put_entries(scope, state, rank, job, wanted)
    events = ["put succeeded" if entries else "everything exists already"]
    if offset < worker.saved[job.request]:
        events.append("durable offset fell")
    tried = job.save_to if scope.behaviours.pressure_ends_with_a_save else entries
    if tried and worker.skipping:
        events.append("store has space again")
    done = attrs.evolve(
        done,
        saved=saved_after(worker, job),
        skipping=() if tried else worker.skipping,
    )
    return _put(state, rank, done, entries, events)


def _fail(
    scope: Scope, state: State, rank: int, job: JobMeta, done: RankWorker, outcome: JobOutcome
) -> Transition:
    """Let the first batch that needs a put fail: a miss later on, never wrong bytes (R18).

    A batch of the prefix save has lowered the durable offset to what is really there, unless it
    was that very check which failed.
    """
    batch = _first_batch(scope, state, rank, job)
    events = [_STORY[outcome]]
    if batch.of_prefix:
        events.append("prefix save failed")
    if batch.of_prefix and outcome is not JobOutcome.CHECK_FAILED:
        done = attrs.evolve(done, saved=_with_offset(done.saved, job.request, batch.offset))
    if outcome is JobOutcome.NO_SPACE:
        done = attrs.evolve(done, skipping=tuple(sorted((*done.skipping, job.request))))
    entries: list[StoreEntry] = []
    if outcome is JobOutcome.PARTIAL:
        entries = put_entries(scope, state, rank, job, batch.puts[:1])
    spent = attrs.evolve(state.spent, failed_jobs=state.spent.failed_jobs + 1)
    return _put(attrs.evolve(state, spent=spent), rank, done, entries, events)


_STORY = {
    JobOutcome.FAILED: "put failed",
    JobOutcome.PARTIAL: "put failed in part",
    JobOutcome.NO_SPACE: "put failed: store is full",
    JobOutcome.CHECK_FAILED: "existence check failed",
}


def _put(
    state: State, rank: int, worker: RankWorker, entries: list[StoreEntry], events: list[str]
) -> Transition:
    state = attrs.evolve(with_rank(state, rank, worker), store=merged(state.store, entries))
    return Transition(state, Effects(puts=tuple(entries)), tuple(events))


@attrs.frozen
class _Batch:
    """Puts that a job needs at once; for those of the prefix save, the offset they start from."""

    puts: list[Wanted]
    of_prefix: bool = False
    offset: int = 0


def _first_batch(scope: Scope, state: State, rank: int, job: JobMeta) -> _Batch:
    """Return the first batch of a job that has to put something; an empty one if none has."""
    missing = _missing(scope, state, rank, job, boundary_puts(job))
    if missing:
        return _Batch(missing)
    offset = durable_offset(scope, state, rank, job)
    missing = _missing(scope, state, rank, job, prefix_puts(scope, job, offset))
    return _Batch(missing, True, offset)


def boundary_puts(job: JobMeta) -> list[Wanted]:
    """Return the exact blocks that were handed over or belong to the tail."""
    return [(put.group, put.block, put.boundary) for put in job.puts]


def durable_offset(scope: Scope, state: State, rank: int, job: JobMeta) -> int:
    """Return how far a rank's prefix of the job's request is really stored, in whole blocks.

    What was stored may have been evicted since: the offset falls to the first block that is gone.
    """
    saved = state.ranks[rank].saved[job.request]
    if not job.save_to or not saved or not scope.behaviours.offsets_checked:
        return saved
    spec = scope.requests[job.request]
    present = {(e.group, e.prefix) for e in state.store if e.rank == rank}
    return min(
        (
            column * group.block_size
            for index, group in enumerate(scope.groups)
            if not group.is_mamba
            for column in range(saved // group.block_size)
            if is_retained(scope, spec, index, column, junction=0)
            and (index, spec.tokens[: (column + 1) * group.block_size]) not in present
        ),
        default=saved,
    )


def prefix_puts(scope: Scope, job: JobMeta, saved: int) -> list[Wanted]:
    """Return the full blocks between this rank's durable offset and ``save_to``.

    Of every attention group, and of window groups what is retained; a rank does not know the
    junction. Blocks that the window has left behind are null by now, and left out.
    """
    wanted = []
    spec = scope.requests[job.request]
    for index, group in enumerate(scope.groups):
        if group.is_mamba:
            continue
        size = group.block_size
        for column in range(saved // size, job.save_to // size):
            block = job.tables[index][column]
            if block != NULL_BLOCK and is_retained(scope, spec, index, column, junction=0):
                wanted.append((index, block, (column + 1) * size))
    return wanted


def saved_after(worker: RankWorker, job: JobMeta) -> tuple[int, ...]:
    """Return the durable offsets once everything a live job wanted is persisted."""
    if not job.save_to:
        return worker.saved
    return _with_offset(worker.saved, job.request, job.save_to)


def _with_offset(saved: tuple[int, ...], request: int, offset: int) -> tuple[int, ...]:
    return (*saved[:request], offset, *saved[request + 1 :])


def _missing(
    scope: Scope, state: State, rank: int, job: JobMeta, wanted: list[Wanted]
) -> list[Wanted]:
    """Return what is not in the store yet, each key once."""
    tokens = scope.requests[job.request].tokens
    present = {(e.rank, e.group, e.prefix) for e in state.store}
    missing = []
    for group, block, length in wanted:
        key = (rank, group, tokens[:length])
        if key not in present:
            present.add(key)
            missing.append((group, block, length))
    return missing


def put_entries(
    scope: Scope, state: State, rank: int, job: JobMeta, wanted: list[Wanted]
) -> list[StoreEntry]:
    """Read the blocks as they are now, and return what is written for every missing key."""
    tokens = scope.requests[job.request].tokens
    memory = memory_of(state, rank)
    entries = []
    for group, block, length in _missing(scope, state, rank, job, wanted):
        slots = slots_of(scope.groups[group], length)
        entries.append(StoreEntry(rank, group, tokens[:length], memory[block][:slots]))
    return entries


def merged(store: tuple[StoreEntry, ...], entries: Iterable[StoreEntry]) -> tuple[StoreEntry, ...]:
    """Return the store, which is sorted, with new entries."""
    result = list(store)
    for entry in entries:
        result.insert(bisect_left(result, entry), entry)
    return tuple(result)


def report_guard(scope: Scope, state: State, rank: int, job: int, again: bool) -> str:
    """Return why a rank cannot report a job, or an empty string."""
    if not 0 <= rank < len(state.ranks):
        return f"there is no rank {rank}"
    if job not in state.ranks[rank].outbox:
        return f"job {job} is not in the outbox of rank {rank}"
    if again and state.spent.repeated_reports >= scope.max_repeated_reports:
        return f"max_repeated_reports={scope.max_repeated_reports} are spent"
    return ""


def report(scope: Scope, state: State, rank: int, job: int, again: bool) -> Transition:
    """Send a completion to the scheduler; with ``again`` the rank will send it once more.

    Reports of all ranks are aggregated on the way, so what has arrived is kept sorted.
    """
    guard = report_guard(scope, state, rank, job, again)
    if guard:
        raise NotEnabled(guard)
    worker = state.ranks[rank]
    events: tuple[str, ...] = ()
    if worker.outbox[0] != job:
        events = ("reported out of order",)
    if again:
        spent = state.spent
        state = attrs.evolve(
            state, spent=attrs.evolve(spent, repeated_reports=spent.repeated_reports + 1)
        )
    else:
        outbox = tuple(done for done in worker.outbox if done != job)
        state = with_rank(state, rank, attrs.evolve(worker, outbox=outbox))
    inbox = (*state.inbox, (job, rank))
    if scope.behaviours.reports_sorted:
        inbox = tuple(sorted(inbox))
    return Transition(attrs.evolve(state, inbox=inbox), Effects(), events)
