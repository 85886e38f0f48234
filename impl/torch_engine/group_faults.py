"""Parts of the pool, the groups and the scheduler that somebody got wrong."""

from __future__ import annotations

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.block_table import BlockTable, PassRecord
from cowtail.impl.torch_engine.group_manager import FullAttentionManager, SlidingWindowManager
from cowtail.impl.torch_engine.mamba_manager import MambaManager
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.retention import Retention
from cowtail.impl.torch_engine.scheduler import Scheduler
from cowtail.models.observations import Handoff, Key, Marker
from cowtail.models.scope import Scope


class DropsTailAtFinish(MambaManager):
    """Only a copy-on-write hands tails over; the finish path just clears the marker."""

    def take_finished_tail(self, request: Request) -> Handoff | None:
        """Forget the tail."""
        super().take_finished_tail(request)
        return None


class TrustsMarkerAtFinish(MambaManager):
    """A marker is taken for proof that its block still holds the state."""

    def tail_is_intact(self, request: Request, marker: Marker) -> bool:
        """Do not look at what is in flight or computed."""
        return True


class RemembersTailTwice(MambaManager):
    """The finish path has a record of its own, which copy-on-write does not know of."""

    def __init__(
        self,
        scope: Scope,
        index: int,
        pool: BlockPool,
        record: PassRecord,
        retention: Retention,
    ) -> None:
        super().__init__(scope, index, pool, record, retention)
        self._tails: dict[str, Marker] = {}

    def register_tail(self, request: Request, table: BlockTable, marker: Marker) -> None:
        """Note the tail in both places."""
        super().register_tail(request, table, marker)
        self._tails[request.name] = marker

    def take_finished_tail(self, request: Request) -> Handoff | None:
        """Hand over what the second record says, whatever became of it."""
        super().take_finished_tail(request)
        marker = self._tails.pop(request.name, None)
        if marker is None or request.in_flight:
            return None
        return Handoff(request.name, self.index, marker.block, marker.boundary)


class OffersTailAtRegistration(MambaManager):
    """A tail is offered when it is registered, like a full block, and again when it is copied."""

    def register_tail(self, request: Request, table: BlockTable, marker: Marker) -> None:
        """Offer the running block at once."""
        super().register_tail(request, table, marker)
        offer = Handoff(request.name, self.index, marker.block, marker.boundary)
        self.record.handoffs.append(offer)


class ForgetsSourceReference(MambaManager):
    """A copy releases a reference on its source that it never took."""

    def hold_source(self, source: int) -> None:
        """Rely on the request's own reference."""


class LosesMovedKeys(BlockPool):
    """Moving the keys of a block evicts them."""

    def move_keys(self, source: int, destination: int) -> list[Key]:
        """Drop the keys of ``source`` and give them to nobody."""
        moved = list(self.keys(source))
        self.drop_keys(source)
        return moved


class FreesHeadFirst(FullAttentionManager):
    """A table is freed from its first block on, so the shared head of a prefix goes first."""

    def forget(self, request: Request) -> list[int]:
        """Return the blocks in table order."""
        return super().forget(request)[::-1]


class GivesBackWindowEarly(SlidingWindowManager):
    """A window is taken to end one token sooner, so that a block it still reaches is given back."""

    def columns_skipped(self, computed: int) -> int:
        """Count the token after the next one."""
        return super().columns_skipped(computed + 1)


class CountsStaleOutput(Scheduler):
    """Output of a step from before a preemption is counted."""

    def is_stale(self, chunk: ScheduledChunk) -> bool:
        """Take every output for the current life's."""
        return False
