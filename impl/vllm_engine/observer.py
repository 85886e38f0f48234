"""The real engine in the model's words: what can be observed after an action.

An :class:`Observation` of the model's vocabulary, read off the real scheduler, its connector and
its ranks. What real vLLM does not have, or what other checks hold to the truth (the bytes: V5, S3,
S7 and S8), is left at its default; the harness compares the rest.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cowtail.impl.vllm_engine.memory import Page
from cowtail.models.observations import (
    Held,
    Key,
    Marker,
    Observation,
    Pin,
    Put,
    RankView,
    RequestView,
    Status,
    StoreEntry,
    StoreJob,
)

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.ranks import Rank
    from cowtail.impl.vllm_engine.session import Session

_STATUS = {
    "WAITING": Status.WAITING,
    "WAITING_FOR_REMOTE_KVS": Status.LOADING,
    "RUNNING": Status.RUNNING,
    "PREEMPTED": Status.PREEMPTED,
}


_FIELDS = operator.attrgetter("rank", "group", "prefix", "content")
"""What entries of the store are sorted by."""


class JobNumbers:
    """The numbers of store jobs, without those that store nothing.

    The connector emits a job for a prompt's tail even where nothing is left to put. Such a job
    pins and stores nothing and changes nothing; left out, the others count up without gaps.
    """

    def __init__(self) -> None:
        """Know of no job."""
        self._idle: list[int] = []

    def note(self, metadata: Any, puts: Sequence[object]) -> None:
        """Take down a job that a pass sends."""
        if not puts and not metadata.token_len_chunk:
            self._idle.append(metadata.store_job_id)

    def is_idle(self, job: int) -> bool:
        """Whether a job stores nothing."""
        return job in self._idle

    def of(self, jobs: Iterable[int]) -> tuple[int, ...]:
        """Return the numbers of the jobs that store something, in the order given."""
        if not self._idle:
            return tuple(jobs)
        return tuple(
            job - sum(idle < job for idle in self._idle) for job in jobs if not self.is_idle(job)
        )


def observe(
    session: Session, numbers: JobNumbers, store: StoreReader, keys: KeyReader
) -> Observation:
    """Return what the session's engine shows."""
    view = session.view
    references = view.references()
    return Observation(
        requests=tuple(_request_view(session, spec.name) for spec in session.config.requests),
        ref_counts=tuple([references.get(block, 0) for block in range(session.config.num_blocks)]),
        free=tuple(view.free_list()),
        keys=keys.keys(),
        pins=_pins(session, numbers),
        queued_tails=numbers.of(view.queued_tails()),
        steps_in_flight=len(session.steps),
        ranks=rank_views(session, numbers),
        inbox=reports(session, numbers),
        memory=(),
        store=store.entries(),
        held=tuple(
            Held(spec.name, ())
            for spec in session.config.requests
            if spec.name in session.requests
            and session.requests[spec.name].is_finished()
            and spec.name in session.scheduler.requests
        ),
        deferred=tuple((0, tuple(entry)) for entry in view.deferred_frees()),
    )


def rank_views(session: Session, numbers: JobNumbers) -> tuple[RankView, ...]:
    """Return what each rank shows."""
    return tuple(_rank_view(session, rank, numbers) for rank in session.ranks)


def reports(session: Session, numbers: JobNumbers) -> tuple[tuple[int, int], ...]:
    """Return the (job, rank) reports that wait for the next step output, sorted."""
    arrived = [
        (job, rank.index)
        for rank in session.ranks
        if rank.reported_jobs
        for job in numbers.of(rank.reported_jobs)
    ]
    return tuple(sorted(arrived))


def _request_view(session: Session, name: str) -> RequestView:
    tables = session.view.tables(name)
    groups = len(tables)
    empty: tuple[tuple[int, ...], ...] = ((),) * groups
    if name not in session.requests:
        prompt = len(session.config.request(name).prompt)
        return RequestView(name, Status.NEW, 0, prompt, empty, (None,) * groups)
    request = session.requests[name]
    markers = session.view.markers()
    return RequestView(
        name=name,
        status=_status(session, request),
        computed=request.num_computed_tokens,
        known=request.num_tokens,
        tables=tuple(map(tuple, tables)),
        markers=tuple(
            Marker(*markers[name, group]) if (name, group) in markers else None
            for group in range(groups)
        ),
        junction=request.shared_prefix_boundary,
    )


def _status(session: Session, request: Any) -> Status:
    if request.is_finished():
        return Status.FINISHED
    status = _STATUS[request.status.name]
    loaded = status is Status.LOADING and session.view.is_loaded(request.request_id)
    waits_with_blocks = status in (Status.WAITING, Status.PREEMPTED) and any(
        session.view.tables(request.request_id)
    )
    return Status.LOADED if loaded or waits_with_blocks else status


def _pins(session: Session, numbers: JobNumbers) -> tuple[Pin, ...]:
    """Return the pins. The engine counts the ranks; which ones they are, the ledger knows."""
    every_rank = tuple(range(session.config.num_ranks))
    jobs = session.ledger.jobs
    return tuple(
        Pin(
            numbers.of((job,))[0], pin.blocks, tuple(jobs[job].ranks) if job in jobs else every_rank
        )
        for job, pin in session.view.pins().items()
        for number in numbers.of((job,))
    )


def _rank_view(session: Session, rank: Rank, numbers: JobNumbers) -> RankView:
    names = session.config.names
    sender = rank.worker.kv_send_thread
    saved = sender._saved_offset
    skipped = sender._skip_store_requests if sender._store_pressure_active else ()
    return RankView(
        queue=numbers.of([job.store_job_id for job in sender.request_queue.queue]),
        outbox=numbers.of(rank.outbox),
        saved=tuple([saved.get(name, 0) for name in names]),
        loads=tuple([load.req_id for load in rank.worker.recv_request_queue.queue]),
        skipping=tuple([name for name in names if name in skipped]) if skipped else (),
    )


class KeyReader:
    """The keys of a session's blocks. The same value as before is returned if none has changed."""

    def __init__(self, session: Session) -> None:
        """Read the keys of ``session``."""
        self._session = session
        self._held: tuple[object, ...] = ()
        self._keys: tuple[tuple[Key, ...], ...] = ()

    def keys(self) -> tuple[tuple[Key, ...], ...]:
        """Return each block's keys, the primary one first, the others sorted: without order."""
        session, view = self._session, self._session.view
        held = (view.block_keys(), view.primary_keys(), len(session.prefixes))
        if held != self._held:
            self._held, self._keys = held, _keys(session)
        return self._keys


def _keys(session: Session) -> tuple[tuple[Key, ...], ...]:
    primary = session.view.primary_keys()
    keys: list[tuple[Key, ...]] = [()] * session.config.num_blocks
    for block, held in session.view.block_keys().items():
        first = primary.get(block)
        others = sorted(_key(session, key) for key in held if key != first)
        keys[block] = (*(() if first is None else (_key(session, first),)), *others)
    return tuple(keys)


def _key(session: Session, key: bytes) -> Key:
    return Key(int.from_bytes(key[-4:], "big"), session.prefixes.get(key[:-4], "?"))


class StoreReader:
    """What a session's store holds. It is read anew only when another set of keys is in it."""

    def __init__(self, session: Session) -> None:
        """Read the store of ``session``."""
        self._session = session
        self._entries: dict[str, StoreEntry] = {}
        self._sorted: tuple[StoreEntry, ...] = ()

    def entries(self) -> tuple[StoreEntry, ...]:
        """Return every entry, sorted, with each value cut to what its key covers."""
        values = self._session.store.values
        if values.keys() != self._entries.keys():
            self._entries = {
                key: self._entries.get(key) or _store_entry(self._session, key, page)
                for key, page in values.items()
            }
            self._sorted = tuple(sorted(self._entries.values(), key=_FIELDS))
        return self._sorted


def _store_entry(session: Session, key: str, page: Page) -> StoreEntry:
    entry = session.store.entry(key)
    content = (page,) if isinstance(page, str) else page
    if not isinstance(page, str):
        content = page[: (len(entry.prefix) - 1) % session.config.block_sizes[entry.group] + 1]
    return StoreEntry(entry.rank, entry.group, entry.prefix, content)


def jobs_sent(session: Session, scheduled: Any, numbers: JobNumbers) -> tuple[StoreJob, ...]:
    """Return the store jobs that a pass sends, as its metadata and the pins describe them.

    They are taken down in ``numbers``.
    """
    pins = session.view.pins()
    jobs = []
    for metadata in scheduled.kv_connector_metadata.requests:
        if not metadata.can_save:
            continue
        puts = session.ledger.boundary_puts(metadata)
        numbers.note(metadata, puts)
        jobs += [
            StoreJob(
                job=number,
                request=metadata.req_id,
                puts=tuple(Put(put.group_id, put.block_id, put.num_tokens) for put in puts),
                save_to=metadata.token_len_chunk,
                blocks=pins[metadata.store_job_id].blocks,
            )
            for number in numbers.of((metadata.store_job_id,))
        ]
    return tuple(jobs)
