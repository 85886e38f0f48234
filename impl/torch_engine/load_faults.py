"""Parts of lookups in the store, loads, sends and resets that somebody got wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.held import HeldRequests
from cowtail.impl.torch_engine.loader import LoadQueue, SendQueue, StoreLoader
from cowtail.impl.torch_engine.loads import LoadAllocator, LoadEntry, LoadLedger, Supply
from cowtail.impl.torch_engine.lookup import Hit
from cowtail.impl.torch_engine.multi_connector import MultiConnector
from cowtail.impl.torch_engine.peer_connector import PeerConnector
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.scheduler import Scheduler
from cowtail.impl.torch_engine.store_jobs import Tables
from cowtail.impl.torch_engine.store_lookup import HeldAnswers, StoreLookup
from cowtail.models.observations import Handoff


class RoundsLookupDown(StoreLookup):
    """What the store supplies is rounded down to whole blocks, past the tail that is there."""

    def find(self, request: Request) -> Supply:
        """Return a multiple of the LCM."""
        found = super().find(request)
        return attrs.evolve(found, length=self.layout.saved_whole(found.length))


class LoadsLocalTails(Scheduler):
    """A load is begun for what the local cache has beyond whole blocks."""

    def is_worth_loading(self, supply: Supply, hit: Hit) -> bool:
        """Compare with the whole blocks, which the connector has done already."""
        return True


class FreesWhileLoading(Scheduler):
    """An abort gives back the blocks that a load is still written into."""

    def _finish_loading(self, request: Request) -> None:
        super()._finish_loading(request)
        self.cache.free(request)


class FiltersAbortedLoads(Scheduler):
    """Reports of a load are dropped once its request has finished; its blocks stay for ever."""

    def _load_reported(self, request: Request, rank: int, *, failed: bool) -> None:
        if not request.finished:
            super()._load_reported(request, rank, failed=failed)


class WaitsForRanksThatAreDone(HeldRequests):
    """An abort waits for all ranks, those included that have reported the load already."""

    def hold_for_load(self, name: str, ranks_owed: list[int]) -> None:
        """Owe everything."""
        self.hold_for_sends(name)


class KeepsLeases(HeldAnswers):
    """An abort forgets the answer of a lookup and leaves its lease behind."""

    def drop(self, name: str) -> None:
        """Forget the answer only."""
        if name in self._answers:
            self._answers[name].supply = None


class KeepsAnswersOverReset(HeldAnswers):
    """A reset empties the store and leaves the answers that lookups gave before."""

    def drop_all(self) -> None:
        """Forget nothing."""


class KeysBeforeLoaded(LoadAllocator):
    """Blocks are keyed when a load begins, before anything is in them."""

    def allocate(
        self, request: Request, hit: Hit, start: int, end: int, waiting: Iterable[Request]
    ) -> None:
        """Key what will be loaded."""
        super().allocate(request, hit, start, end, waiting)
        self.cache.register(request, end)


class LoadedAfterFirstRank(LoadLedger):
    """The first rank's report makes a request loaded, whatever the others still write."""

    def is_complete(self, entry: LoadEntry) -> bool:
        """Do not wait."""
        return True


class TakesFailureForSuccess(StoreLoader):
    """Return codes of gets are not looked at; what was not loaded is decoded."""

    def is_complete(self, codes: Sequence[int]) -> bool:
        """Take every load for a good one."""
        return True


class ForgetsFailedLoads(LoadQueue):
    """A load that fails is not reported, so its request waits for ever."""

    def run(self, *, failed: bool) -> None:
        """Drop the load if anything was missing."""
        super().run(failed=failed)
        name = list(self.done)[-1]
        if not self.done[name]:
            del self.done[name]


class FirstSendFrees(SendQueue):
    """Of two connectors that send a request, the first to be done counts for both."""

    def is_last(self, name: str) -> bool:
        """Do not look for others."""
        return True


class HoldsWithoutBlocks(PeerConnector):
    """A finished request is saved, and its free delayed, even where there is no block of it."""

    def request_finished(self, request: Request, tables: Tables) -> int:
        """Do not look at the tables."""
        return super().request_finished(request, ((1,),))


class OffersTailsToFirst(MultiConnector):
    """Tails are offered to the first of several connectors only."""

    def register_finished_partial_tail(
        self, request: Request, tables: Tables, tails: Sequence[Handoff]
    ) -> bool:
        """Return what the first says."""
        return self.children[0].register_finished_partial_tail(request, tables, tails)


class ResetsUnderPins(BlockPool):
    """A reset asks for blocks in tables only; those that jobs have pinned lose their keys too."""

    @property
    def num_used(self) -> int:
        """Count nothing."""
        return 0
