"""Worker ranks and the external store: take a step's metadata, run a job, report it (domain.md f).

A rank reads block contents when the job *runs*, however late that is. The first write of a
key wins. Only a fully persisted range moves the rank's durable offset, and tail puts never do
(R19). Every job is reported in the end, whatever became of its puts (R18).
"""

from __future__ import annotations

from bisect import bisect_left

import attrs

from cowtail.models.actions import JobOutcome
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects, StoreEntry
from cowtail.models.scope import Scope
from cowtail.models.state import DeviceStep, JobMeta, RankWorker, State
from cowtail.models.transition import Transition

Wanted = tuple[int, int, int]
"""Group, block and number of tokens of something that a job stores."""


def receive_metadata(rank: RankWorker, step: DeviceStep) -> RankWorker:
    """Retire jobs of preempted generations, queue the step's jobs, close finished requests."""
    queue = tuple(
        attrs.evolve(job, live=False) if job.request in step.preempted else job
        for job in rank.queue
    )
    saved = _cleared(rank.saved, step.preempted)
    queue += step.jobs
    closing = dict.fromkeys((*rank.closing, *step.finished))
    closed = [index for index in closing if not _has_live_job(queue, index)]
    return attrs.evolve(
        rank,
        queue=queue,
        saved=_cleared(saved, tuple(closed)),
        closing=tuple(index for index in closing if index not in closed),
    )


def _has_live_job(queue: tuple[JobMeta, ...], index: int) -> bool:
    return any(job.request == index and job.live for job in queue)


def _cleared(saved: tuple[int, ...], indices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(0 if index in indices else offset for index, offset in enumerate(saved))


def run_job_guard(scope: Scope, state: State, rank: int, outcome: JobOutcome) -> str:
    """Return why a rank cannot run its next job with this outcome, or an empty string."""
    if not 0 <= rank < len(state.ranks):
        return f"there is no rank {rank}"
    queue = state.ranks[rank].queue
    if not queue:
        return f"rank {rank} has no job queued"
    if outcome is JobOutcome.FAILED:
        if state.spent.failed_jobs >= scope.max_failed_jobs:
            return f"max_failed_jobs={scope.max_failed_jobs} are spent"
        if not _missing(scope, state, rank, queue[0], _wanted(scope, state, rank, queue[0])):
            return "nothing has to be put, so nothing can fail"
    return ""


def run_job(scope: Scope, state: State, rank: int, outcome: JobOutcome) -> Transition:
    """Let a rank carry out the job at the head of its queue."""
    guard = run_job_guard(scope, state, rank, outcome)
    if guard:
        raise NotEnabled(guard)
    worker = state.ranks[rank]
    job = worker.queue[0]
    worker = attrs.evolve(worker, queue=worker.queue[1:], outbox=(*worker.outbox, job.job))
    if not job.live:
        return Transition(_with_rank(state, rank, worker), Effects(), ("retired job skipped",))
    if outcome is JobOutcome.FAILED:
        spent = attrs.evolve(state.spent, failed_jobs=state.spent.failed_jobs + 1)
        events: tuple[str, ...] = ("put failed",)
        before = _missing(scope, state, rank, job, boundary_puts(job))
        entries: list[StoreEntry] = []
        if not before:
            events = ("put failed", "prefix save failed")
        state = attrs.evolve(state, spent=spent)
    else:
        wanted = _wanted(scope, state, rank, job)
        entries = put_entries(scope, state, rank, job, wanted)
        worker = attrs.evolve(worker, saved=saved_after(worker, job))
        events = ("put succeeded",) if entries else ("everything exists already",)
    state = attrs.evolve(_with_rank(state, rank, worker), store=_merged(state.store, entries))
    return Transition(state, Effects(puts=tuple(entries)), events)


def boundary_puts(job: JobMeta) -> list[Wanted]:
    """Return the exact blocks that were handed over or belong to the tail."""
    return [(put.group, put.block, put.boundary) for put in job.puts]


def prefix_puts(scope: Scope, job: JobMeta, saved: int) -> list[Wanted]:
    """Return the full attention blocks between this rank's durable offset and ``save_to``."""
    wanted = []
    for index, group in enumerate(scope.groups):
        if group.is_mamba:
            continue
        size = group.block_size
        for column in range(saved // size, job.save_to // size):
            wanted.append((index, job.tables[index][column], (column + 1) * size))
    return wanted


def saved_after(worker: RankWorker, job: JobMeta) -> tuple[int, ...]:
    """Return the durable offsets once everything a live job wanted is persisted."""
    if not job.save_to:
        return worker.saved
    return tuple(
        job.save_to if index == job.request else offset for index, offset in enumerate(worker.saved)
    )


def _wanted(scope: Scope, state: State, rank: int, job: JobMeta) -> list[Wanted]:
    if not job.live:
        return []
    saved = state.ranks[rank].saved[job.request]
    return boundary_puts(job) + prefix_puts(scope, job, saved)


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
    entries = []
    for group, block, length in _missing(scope, state, rank, job, wanted):
        slots = (
            1 if scope.groups[group].is_mamba else (length - 1) % scope.groups[group].block_size + 1
        )
        entries.append(StoreEntry(rank, group, tokens[:length], state.memory[block][:slots]))
    return entries


def _merged(store: tuple[StoreEntry, ...], entries: list[StoreEntry]) -> tuple[StoreEntry, ...]:
    merged = list(store)
    for entry in entries:
        merged.insert(bisect_left(merged, entry), entry)
    return tuple(merged)


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
        state = _with_rank(state, rank, attrs.evolve(worker, outbox=outbox))
    inbox = tuple(sorted((*state.inbox, (job, rank))))
    return Transition(attrs.evolve(state, inbox=inbox), Effects(), events)


def _with_rank(state: State, rank: int, worker: RankWorker) -> State:
    return attrs.evolve(state, ranks=(*state.ranks[:rank], worker, *state.ranks[rank + 1 :]))
