"""Parts of lookups in the store, loads, sends and resets that somebody got wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.chunking import Extent
from cowtail.impl.torch_engine.held import HeldRequests
from cowtail.impl.torch_engine.loader import LoadQueue, SendQueue, StoreLoader
from cowtail.impl.torch_engine.loads import LoadAllocator, LoadEntry, LoadLedger, Supply
from cowtail.impl.torch_engine.lookup import Hit
from cowtail.impl.torch_engine.multi_connector import MultiConnector
from cowtail.impl.torch_engine.peer_connector import PeerConnector
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.scheduler import LoadReport, Scheduler
from cowtail.impl.torch_engine.store_jobs import Tables
from cowtail.impl.torch_engine.store_lookup import HeldAnswers, StoreKeys, StoreLookup
from cowtail.impl.torch_engine.store_protocol import OBJECT_NOT_FOUND, OK
from cowtail.models.observations import Effects, Handoff


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


class TakesEvictedForLoaded(StoreLoader):
    """A key that was there when it was looked up is taken to be there; its get is not checked."""

    def is_complete(self, codes: Sequence[int]) -> bool:
        """Overlook what is not found."""
        return all(code > OK or code == OBJECT_NOT_FOUND for code in codes)


class CommitsTheLongestGroup(StoreLookup):
    """Groups that find different lengths are not brought together: the longest one counts."""

    def find(self, request: Request) -> Supply:
        """Return the longest length that some group has."""
        present = self.present(request)
        hit = self.lookup.find(StoreKeys(present), request.prefix(request.known))
        return Supply(self.child, max(hit.length, hit.junction), present)


class CountsBothConnectors(LoadLedger):
    """A connector that has loaded nothing reports the load too, and is taken for another rank."""

    def report(self, name: str, rank: int, *, failed: bool) -> LoadEntry | None:
        """Count one more rank with each."""
        entry = self.entries.get(name)
        others = [each for each in entry.ranks_owed if each != rank] if entry is not None else []
        if entry is not None and others:
            entry.ranks_owed.remove(others[0])
        return super().report(name, rank, failed=failed) if self._expects(name, rank) else None

    def _expects(self, name: str, rank: int) -> bool:
        entry = self.entries.get(name)
        return entry is not None and rank in entry.ranks_owed


class ReportsNullBlocks(Scheduler):
    """A failed load reports every block of its tables as invalid, the null one included.

    Whoever has one of them in a table is taken to be hit, and loses its blocks.
    """

    def _load_failed(self, request: Request) -> None:
        """Preempt who has an invalid block."""
        invalid = {block for table in self.cache.tables(request.name) for block in table}
        super()._load_failed(request)
        for other in self.running:
            if any(not invalid.isdisjoint(table) for table in self.cache.tables(other.name)):
                self._take_blocks(other)


class FreesHeldRequestAgain(Scheduler):
    """An abort of a finished request frees the blocks that are kept until its saves are over."""

    def abort(self, name: str) -> Effects:
        """Do not ask whether the request has finished already."""
        request = self.request(name)
        if not request.finished:
            return super().abort(name)
        self.cache.free(request)
        return Effects()


class DrainsOnPrefillOnly(Scheduler):
    """Reports of jobs are only looked at when the last pass has scheduled a prefill chunk."""

    _prefill = False

    def _schedule(self, request: Request, extent: Extent, *, admitted: bool) -> ScheduledChunk:
        """Note what kind of chunk it is."""
        self._prefill = request.computed < request.prefill_end
        return super()._schedule(request, extent, admitted=admitted)

    def update_connector_output(
        self,
        reports: Sequence[tuple[int, int]],
        loads: Sequence[LoadReport] = (),
        sends: Sequence[tuple[str, int]] = (),
    ) -> Effects:
        """Leave reports aside during decode."""
        return super().update_connector_output(reports if self._prefill else (), loads, sends)
