"""Parts that got EAGLE's drop or the replay boundary wrong: where to stop, store, look and load."""

from __future__ import annotations

from cowtail.impl.torch_engine.chunking import Chunking
from cowtail.impl.torch_engine.connector import StoreConnector
from cowtail.impl.torch_engine.layout import LookupSet
from cowtail.impl.torch_engine.loader import StoreLoader, Wanted
from cowtail.impl.torch_engine.loads import LoadJob
from cowtail.impl.torch_engine.lookup import JointLookup
from cowtail.impl.torch_engine.request import Request


class StopsAtThePromptsEnd(Chunking):
    """The last boundary of a prompt may be its end, where no resent prompt can be resumed."""

    def mandatory_stops(self, request: Request, start: int, block: int) -> list[int]:
        """Put the stops on the grid at or below the end of the prompt, not strictly below it."""
        stops = set(super().mandatory_stops(request, start, block))
        for length, unit in ((request.known, block), (request.prompt_length, self.scope.hash_unit)):
            if length % unit == 0:
                stops.discard(self.layout.replay_boundary(length, unit))
        return sorted(stops)


class StopsAsIfNothingDropped(Chunking):
    """Chunks stop at the last boundary of a prompt, although an EAGLE lookup cannot prove it."""

    def mandatory_stops(self, request: Request, start: int, block: int) -> list[int]:
        """Put the stops where a lookup that drops nothing would resume."""
        stops = super().mandatory_stops(request, start, block)
        if not self.layout.drops:
            return stops
        unit = self.scope.hash_unit
        tail = self.layout.replay_boundary(request.prompt_length)
        return [
            stop + unit if stop == tail and stop + unit < request.prompt_length else stop
            for stop in stops
        ]


class StoresProofAtTheBoundary(StoreConnector):
    """Every group is stored up to the boundary; an EAGLE lookup there drops below it."""

    def proof_end(self, group: int, boundary: int, completed: int) -> int:
        """Leave the margin out."""
        return boundary if boundary <= completed else 0


class PublishesProofEarly(StoreConnector):
    """Attention is stored through the margin, whether or not it is computed that far."""

    def proof_end(self, group: int, boundary: int, completed: int) -> int:
        """Do not ask what is computed."""
        return boundary + self.layout.margin(group)


class StoresProofOfMarkedGroupOnly(StoreConnector):
    """Of equal groups, which are looked up together, only the drafter's is stored further."""

    def proof_end(self, group: int, boundary: int, completed: int) -> int:
        """Go by the group's own flag, not by its set's."""
        if self.scope.groups[group].eagle:
            return super().proof_end(group, boundary, completed)
        return boundary if boundary <= completed else 0


class LooksOneUnitBeyond(JointLookup):
    """The margin is one hash unit for every group, for those found by whole blocks too."""

    def limit(self, each: LookupSet, agreed: int, known: int) -> int:
        """Look one hash unit beyond."""
        unit = self.layout.hash_unit
        return min(agreed + unit, known // unit * unit)


class DropsOnceMoreWhenLoading(StoreLoader):
    """The lookup has dropped a unit; what to load is worked out anew, and drops another."""

    def wanted(self, job: LoadJob) -> list[Wanted]:
        """Leave the last block of every EAGLE group out."""
        wanted = super().wanted(job)
        return [
            want
            for want in wanted
            if not (self.scope.groups[want.group].eagle and want.boundary == job.load.end)
        ]
