"""The classes that an engine is made of. A fault is a part that somebody got wrong.

The engine is the same whatever its parts are; so the good code knows nothing of faults.
"""

from __future__ import annotations

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.chunking import Chunking
from cowtail.impl.torch_engine.connector import StoreConnector
from cowtail.impl.torch_engine.group_manager import FullAttentionManager
from cowtail.impl.torch_engine.mamba_manager import MambaManager
from cowtail.impl.torch_engine.scheduler import Scheduler
from cowtail.impl.torch_engine.store_jobs import PinLedger
from cowtail.impl.torch_engine.worker import Worker


@attrs.frozen
class Parts:
    """One class for each part."""

    pool: type[BlockPool] = BlockPool
    attention: type[FullAttentionManager] = FullAttentionManager
    mamba: type[MambaManager] = MambaManager
    chunking: type[Chunking] = Chunking
    ledger: type[PinLedger] = PinLedger
    connector: type[StoreConnector] = StoreConnector
    scheduler: type[Scheduler] = Scheduler
    worker: type[Worker] = Worker
