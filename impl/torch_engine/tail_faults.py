"""Parts that lose, misplace or wrongly restore boundary states and the copies of them."""

from __future__ import annotations

from collections.abc import Mapping

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.block_table import PassRecord
from cowtail.impl.torch_engine.chunking import Extent
from cowtail.impl.torch_engine.connector import Save, StoreConnector
from cowtail.impl.torch_engine.mamba_manager import MambaManager
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.retention import Retention
from cowtail.impl.torch_engine.state_columns import StateColumns
from cowtail.impl.torch_engine.store_jobs import PinLedger, Tables
from cowtail.impl.torch_engine.store_lookup import HeldAnswers, StoreLookup
from cowtail.models.observations import Handoff
from cowtail.models.scope import Scope


class ReplacesEntryAfterLoad(MambaManager):
    """A copy-on-write after a load is taken for a consumer's.

    It replaces the table entry, while the workers' table keeps the block, and goes on writing it.
    """

    def __init__(
        self,
        scope: Scope,
        index: int,
        pool: BlockPool,
        record: PassRecord,
        retention: Retention,
    ) -> None:
        super().__init__(scope, index, pool, record, retention)
        self._loaded: set[str] = set()

    def register(self, request: Request, length: int, extent: Extent | None) -> None:
        """Note a request whose blocks were loaded."""
        super().register(request, length, extent)
        if extent is None:
            self._loaded.add(request.name)

    def copy_for_producer(self, request: Request, index: int, destination: int) -> None:
        """Copy as a request does that has just hit."""
        if request.name in self._loaded:
            self.copy_for_consumer(self.table(request), index, destination)
        else:
            super().copy_for_producer(request, index, destination)


class DropsStatesBeyondThePrompt(StoreConnector):
    """States beyond the prompt are not stored, though attention is: a continuation misses."""

    def accepts(self, handoff: Handoff) -> bool:
        """Accept what lies within the prompt."""
        prompt = self.scope.requests[self.scope.index(handoff.request)].prompt
        return super().accepts(handoff) and handoff.boundary <= len(prompt)


class RestoresTheNextColumn(StateColumns):
    """After a hit the state is looked for where the next token is: a full last block is passed."""

    def column_hit(self, chunk: ScheduledChunk) -> int:
        """Return the column of the first token to compute."""
        return chunk.start // self.block_size


class AppendsBlocksOnResume(StoreConnector):
    """The connector has block lists of its own, and appends to them when a request resumes."""

    def __init__(
        self,
        scope: Scope,
        child: int,
        pool: BlockPool,
        ledger: PinLedger,
        lookup: StoreLookup,
        answers: HeldAnswers,
    ) -> None:
        super().__init__(scope, child, pool, ledger, lookup, answers)
        self._lists: dict[str, Tables] = {}
        self._before: dict[str, Tables] = {}

    def request_preempted(self, request: Request) -> None:
        """Keep the list of the life that ends."""
        super().request_preempted(request)
        self._before[request.name] = self._lists.pop(request.name, ())

    def _track(self, chunk: ScheduledChunk, tables: Mapping[str, Tables]) -> Save | None:
        """Go by a list that starts with the blocks of the life before."""
        name = chunk.request.name
        own = tables[name]
        before = self._before.get(name) or ((),) * len(own)
        self._lists[name] = tuple(old + new for old, new in zip(before, own, strict=True))
        return super()._track(chunk, {**tables, name: self._lists[name]})
