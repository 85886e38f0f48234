"""The classes that an engine is made of. A fault is a part that somebody got wrong.

No good class names a fault or asks whether one is on. Its shape, though, makes room for them. Some
methods are apart only so that a fault can override one decision (``StoreConnector.tail_end``,
``MambaManager.tail_is_intact``, ``Worker.groups_saved``). Three do nothing at all here: they mark
moments at which a fault acts (``Worker.put_failed``, ``PinLedger.request_admitted``,
``PinLedger.request_preempted``). Every part has a fault in it.
"""

from __future__ import annotations

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.chunking import Chunking
from cowtail.impl.torch_engine.connector import StoreConnector
from cowtail.impl.torch_engine.fence import FreeFence
from cowtail.impl.torch_engine.group_manager import FullAttentionManager, SlidingWindowManager
from cowtail.impl.torch_engine.held import HeldRequests
from cowtail.impl.torch_engine.loader import LoadQueue, SendQueue, StoreLoader
from cowtail.impl.torch_engine.loads import LoadAllocator, LoadLedger
from cowtail.impl.torch_engine.lookup import JointLookup
from cowtail.impl.torch_engine.mamba_manager import MambaManager
from cowtail.impl.torch_engine.multi_connector import MultiConnector
from cowtail.impl.torch_engine.peer_connector import PeerConnector
from cowtail.impl.torch_engine.retention import Retention
from cowtail.impl.torch_engine.scheduler import Scheduler
from cowtail.impl.torch_engine.state_columns import StateColumns
from cowtail.impl.torch_engine.store_jobs import PinLedger
from cowtail.impl.torch_engine.store_lookup import HeldAnswers, StoreLookup
from cowtail.impl.torch_engine.worker import Worker
from cowtail.impl.torch_engine.worker_tables import WorkerTables


@attrs.frozen
class Parts:
    """One class for each part."""

    pool: type[BlockPool] = BlockPool
    attention: type[FullAttentionManager] = FullAttentionManager
    window: type[SlidingWindowManager] = SlidingWindowManager
    mamba: type[MambaManager] = MambaManager
    retention: type[Retention] = Retention
    lookup: type[JointLookup] = JointLookup
    fence: type[FreeFence] = FreeFence
    chunking: type[Chunking] = Chunking
    worker_tables: type[WorkerTables] = WorkerTables
    states: type[StateColumns] = StateColumns
    ledger: type[PinLedger] = PinLedger
    connector: type[StoreConnector] = StoreConnector
    peer: type[PeerConnector] = PeerConnector
    multi: type[MultiConnector] = MultiConnector
    store_lookup: type[StoreLookup] = StoreLookup
    answers: type[HeldAnswers] = HeldAnswers
    load_ledger: type[LoadLedger] = LoadLedger
    load_allocator: type[LoadAllocator] = LoadAllocator
    held: type[HeldRequests] = HeldRequests
    scheduler: type[Scheduler] = Scheduler
    worker: type[Worker] = Worker
    store_loader: type[StoreLoader] = StoreLoader
    load_queue: type[LoadQueue] = LoadQueue
    send_queue: type[SendQueue] = SendQueue
