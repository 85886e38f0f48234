"""What the engine can be asked about after an action, read off its tensors and tables.

Memory and store are decoded only when they were written since the last observation.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from cowtail.impl.torch_engine.scheduler import Scheduler
from cowtail.impl.torch_engine.store_base import StoreBase
from cowtail.impl.torch_engine.store_protocol import StoreKey, Value
from cowtail.impl.torch_engine.worker import Worker
from cowtail.models.observations import (
    GARBAGE,
    Effects,
    Observation,
    RequestView,
    StoreEntry,
)

Contents = tuple[tuple[str, ...], ...]


@attrs.frozen
class Inboxes:
    """What ranks reported and the scheduler has not consumed, sorted.

    ``jobs`` are (job, rank); ``loads`` and ``sends`` (request, rank).
    """

    jobs: tuple[tuple[int, int], ...] = ()
    loads: tuple[tuple[str, int], ...] = ()
    sends: tuple[tuple[str, int], ...] = ()


class Observer:
    """Reads an engine's parts; changes nothing."""

    def __init__(self, scheduler: Scheduler, workers: Sequence[Worker], store: StoreBase) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._store = store
        self._writes: list[int] = []
        self._memory: Contents = ()
        self._entries: dict[StoreKey, tuple[Value, StoreEntry]] = {}
        self._sorted: tuple[StoreEntry, ...] = ()

    def observe(self, steps_in_flight: int, inboxes: Inboxes, effects: Effects) -> Observation:
        """Return the observation."""
        scheduler = self._scheduler
        pool, cache, connector = scheduler.cache.pool, scheduler.cache, scheduler.connector
        counts: list[int] = pool.ref_counts.tolist()
        return Observation(
            requests=tuple(
                RequestView(
                    name,
                    request.status,
                    request.computed,
                    request.known,
                    cache.tables(name),
                    cache.markers(name),
                    scheduler.worker_tables.of(name),
                    connector.found(name),
                    connector.leased(name),
                    request.junction,
                )
                for name, request in scheduler.requests.items()
            ),
            ref_counts=tuple(counts),
            free=pool.free_blocks(),
            keys=tuple(tuple(pool.keys(block)) for block in range(len(counts))),
            pins=connector.pins(),
            queued_tails=connector.queued_tails,
            steps_in_flight=steps_in_flight,
            ranks=tuple(worker.view() for worker in self._workers),
            inbox=inboxes.jobs,
            memory=self._memory_contents(),
            store=self._store_entries(),
            effects=effects,
            loads=scheduler.loads.views(),
            held=scheduler.held.views(),
            load_inbox=inboxes.loads,
            send_inbox=inboxes.sends,
            untold=scheduler.untold,
            deferred=cache.fence.waiting(),
        )

    def _memory_contents(self) -> Contents:
        """Return what memory holds; a slot on which the ranks disagree holds garbage."""
        writes = [worker.memory.writes for worker in self._workers]
        if writes != self._writes:
            self._writes = writes
            for worker in self._workers:
                worker.memory.synchronize()
            ranks = [w.digests.decode(w.memory.digests, w.memory.payload) for w in self._workers]
            self._memory = tuple(
                tuple(
                    slot[0] if all(each == slot[0] for each in slot) else GARBAGE
                    for slot in zip(*pages, strict=True)
                )
                for pages in zip(*ranks, strict=True)
            )
        return self._memory

    def _store_entries(self) -> tuple[StoreEntry, ...]:
        values = self._store.values
        new: dict[int, list[tuple[StoreKey, Value]]] = {}
        entries: dict[StoreKey, tuple[Value, StoreEntry]] = {}
        for key, value in values.items():
            known = self._entries.get(key)
            if known is not None and known[0] is value:
                entries[key] = known
            else:
                new.setdefault(key.rank, []).append((key, value))
        if not new and len(entries) == len(self._entries):
            return self._sorted
        for rank, pairs in new.items():
            contents = self._workers[rank].contents([value for _, value in pairs])
            for (key, value), content in zip(pairs, contents, strict=True):
                entries[key] = (value, StoreEntry(*key, content))
        self._entries = entries
        self._sorted = tuple(sorted(entry for _, entry in entries.values()))
        return self._sorted
