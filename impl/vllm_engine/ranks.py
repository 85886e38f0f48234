"""The worker side: the real send, receive and lookup code of every rank.

The connector's threads are built and never started: the driver decides when a rank takes the
head of its queue. Two things are ours: the transport, and ``wait_for_save``, which in the real
worker records a CUDA event and queues the step's store jobs; here a job waits, in the same
queue, until its step has been executed.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import attrs

from cowtail.impl.vllm_engine.build import Built
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.memory import Memory
from cowtail.impl.vllm_engine.multi import metadata_of, number, own_number
from cowtail.impl.vllm_engine.store import PutCheck, Store, Transport
from cowtail.impl.vllm_engine.surface import surface

_MODEL = "symbolic"


@attrs.define
class Rank:
    """One rank: its worker, and the completions on their way to the scheduler.

    ``outbox`` are jobs that the rank is done with and has not reported; ``reported_jobs``,
    ``loaded``, ``failed_loads`` (requests) and ``failed_blocks`` wait for the next step output
    that carries reports. Which of the two a failed load leaves depends on the release.
    """

    index: int
    worker: Any
    transport: Transport
    child: int = 0
    outbox: list[int] = attrs.field(factory=list)
    reported_jobs: list[int] = attrs.field(factory=list)
    loaded: set[str] = attrs.field(factory=set)
    failed_loads: set[str] = attrs.field(factory=set)
    failed_blocks: set[int] = attrs.field(factory=set)

    @property
    def next_job(self) -> Any:
        """The job at the head of the send queue; None if there is none."""
        queued = self.worker.kv_send_thread.request_queue.queue
        return queued[0] if queued else None

    @property
    def next_load(self) -> Any:
        """The load at the head of the receive queue; None if there is none."""
        queued = self.worker.recv_request_queue.queue
        return queued[0] if queued else None

    @property
    def has_reports(self) -> bool:
        """Whether something waits for the next step output that carries reports."""
        return bool(self.reported_jobs or self.loaded or self.failed_loads or self.failed_blocks)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or unreported."""
        return self.next_job is None and self.next_load is None and not self.outbox

    def dispatch(self, step: Any) -> None:
        """Take a step's connector metadata, as the worker does when it launches the step."""
        metadata = metadata_of(step.kv_connector_metadata, self.child)
        self.worker.start_load_kv(metadata)
        if self.worker.can_put:
            for request in metadata.requests:
                if request.can_save:
                    self.worker.kv_send_thread.add_request(request)
        # Called for its effect on the ledger of live jobs; what it returns is collected when
        # a load runs, so nothing is there yet.
        self.worker.get_finished(step.finished_req_ids, metadata)

    def run_job(self, failure_code: int | None) -> int:
        """Carry out the job at the head; return how many keys the store refused."""
        thread = self.worker.kv_send_thread
        refused = self._transfer(thread, failure_code)
        self.outbox.extend(number(self.child, job) for job in thread.take_completed_saves())
        return refused

    def run_load(self, failure_code: int | None) -> int:
        """Carry out the load at the head; return how many keys the store refused."""
        (thread,) = self.worker.kv_recv_threads
        refused = self._transfer(thread, failure_code)
        self.loaded |= thread.get_and_clear_finished_requests()
        if surface().release.failed_loads_by_request:
            self.failed_loads |= thread.get_and_clear_failed_requests()
        else:
            self.failed_blocks |= thread.get_and_clear_block_ids_with_load_errors()
        return refused

    def _transfer(self, thread: Any, failure_code: int | None) -> int:
        before = self.transport.refused
        self.transport.failing = failure_code
        try:
            thread._handle_request(thread.request_queue.get_nowait())
        finally:
            self.transport.failing = None
        return self.transport.refused - before

    def take_reports(self) -> Any:
        """Return and clear what waits, as this rank's ``KVConnectorOutput``."""
        vllm = surface()
        jobs = dict.fromkeys(map(own_number, self.reported_jobs), 1)
        metadata_class = vllm.store_data.MooncakeStoreWorkerMetadata
        failed: dict[str, Any] = {"invalid_block_ids": set(self.failed_blocks)}
        if vllm.release.failed_loads_by_request:
            failed = {"failed_recving": set(self.failed_loads)}
        output = vllm.outputs.KVConnectorOutput(
            finished_recving=set(self.loaded) or None,
            **failed,
            kv_connector_worker_meta=metadata_class(completed_saves=jobs) if jobs else None,
        )
        self.reported_jobs.clear()
        self.loaded.clear()
        self.failed_loads.clear()
        self.failed_blocks.clear()
        return output


def build_ranks(
    config: EngineConfig, built: Built, store: Store, memories: list[Memory], check: PutCheck
) -> tuple[Rank, ...]:
    """Build the ranks, and let a reset of the store reach it."""
    vllm = surface()
    ranks = tuple(
        _build_rank(config, built, index, Transport(store.of_child(child), memory, check), child)
        for child in range(config.connectors)
        for index, memory in enumerate(memories)
    )
    build_prefix = vllm.store_data.PoolKey.build_prefix
    prefixes = tuple(
        tuple(build_prefix(database.metadata, tp_rank=rank) for rank in range(config.num_ranks))
        for database in ranks[0].worker.token_dbs
    )
    for child, lookup in enumerate(built.lookups):
        ranks[child * config.num_ranks].worker._lookup_key_prefixes = prefixes
        lookup.remove_all = store.of_child(child).values.clear
    return ranks


def _build_rank(
    config: EngineConfig, built: Built, index: int, transport: Transport, child: int
) -> Rank:
    vllm = surface()
    role = built.vllm_config.kv_transfer_config.kv_role
    databases = [
        _token_database(group_index, group, index, built.hash_block_size)
        for group_index, group in enumerate(built.coordinator.kv_cache_groups)
    ]
    common = {
        "store": transport,
        "coord": built.coordinator,
        "token_databases": databases,
        "block_size": built.scheduler_block_size,
        "tp_rank": index,
        "ready_event": threading.Event(),
    }
    sender = vllm.store_worker.KVCacheStoreSendingThread(
        **common,
        group_put_steps=[1] * len(databases),
        kv_role=role,
        replicate_config=SimpleNamespace(group_ids=None),
    )
    hybrid = {"is_hma_required": True} if vllm.release.failed_loads_by_request else {}
    receiver = vllm.store_worker.KVCacheStoreRecvingThread(**common, **hybrid)
    # Its constructor opens the store, its sockets and threads; these are the fields that the
    # methods called here read.
    worker = object.__new__(vllm.store_worker.MooncakeStoreWorker)
    vars(worker).update(
        _capacity_only=False,
        _kv_cache_groups=built.coordinator.kv_cache_groups,
        _record_kv_connector_operation=lambda *args, **kwargs: None,
        can_put=role in ("kv_producer", "kv_both"),
        close=lambda: None,
        coord=built.coordinator,
        finished_store_req=set(),
        hash_block_size=built.hash_block_size,
        kv_recv_threads=[receiver],
        kv_send_thread=sender,
        load_async=True,
        recv_request_queue=receiver.request_queue,
        store=transport,
        token_dbs=databases,
        tp_rank=index,
    )
    numbered = child * config.num_ranks + index
    return Rank(index=numbered, worker=worker, transport=transport, child=child)


def _token_database(group: int, kv_cache_group: Any, rank: int, hash_block_size: int) -> Any:
    data = surface().store_data
    metadata = data.KeyMetadata(_MODEL, rank, 0, 0, 0, group)
    database = data.ChunkedTokenDatabase(
        metadata, kv_cache_group.kv_cache_spec.block_size, hash_block_size
    )
    # With base address 0 and blocks of length 1, a buffer address is a block id.
    database.set_kv_caches_base_addr([0])
    database.set_block_len([1])
    return database
