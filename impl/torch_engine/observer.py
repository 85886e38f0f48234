"""What the engine can be asked about after an action, read off its tensors and tables.

Memory and store are decoded only when they were written since the last observation.
"""

from __future__ import annotations

from collections.abc import Sequence

from cowtail.impl.torch_engine.scheduler import Scheduler
from cowtail.impl.torch_engine.store import InMemoryStore, StoreKey, Value
from cowtail.impl.torch_engine.worker import Worker
from cowtail.models.observations import (
    GARBAGE,
    Effects,
    Observation,
    RequestView,
    StoreEntry,
)

Contents = tuple[tuple[str, ...], ...]


class Observer:
    """Reads an engine's parts; changes nothing."""

    def __init__(
        self, scheduler: Scheduler, workers: Sequence[Worker], store: InMemoryStore
    ) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._store = store
        self._writes: list[int] = []
        self._memory: Contents = ()
        self._entries: dict[StoreKey, StoreEntry] = {}
        self._sorted: tuple[StoreEntry, ...] = ()

    def observe(
        self, steps_in_flight: int, inbox: tuple[tuple[int, int], ...], effects: Effects
    ) -> Observation:
        """Return the observation. Reports in ``inbox`` are (job, rank), sorted."""
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
                )
                for name, request in scheduler.requests.items()
            ),
            ref_counts=tuple(counts),
            free=pool.free_blocks(),
            keys=tuple(tuple(pool.keys(block)) for block in range(len(counts))),
            pins=connector.ledger.pins(),
            queued_tails=connector.queued_tails,
            steps_in_flight=steps_in_flight,
            ranks=tuple(worker.view() for worker in self._workers),
            inbox=inbox,
            memory=self._memory_contents(),
            store=self._store_entries(),
            effects=effects,
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
        if len(values) == len(self._entries):
            return self._sorted
        new: dict[int, list[tuple[StoreKey, Value]]] = {}
        for key in list(values)[len(self._entries) :]:
            new.setdefault(key.rank, []).append((key, values[key]))
        for rank, pairs in new.items():
            contents = self._workers[rank].contents([value for _, value in pairs])
            for (key, _), content in zip(pairs, contents, strict=True):
                self._entries[key] = StoreEntry(*key, content)
        self._sorted = tuple(sorted(self._entries.values()))
        return self._sorted
