"""The connector to another engine's memory: it may supply prefixes, and save finished requests."""

from __future__ import annotations

from cowtail.impl.torch_engine.connector_base import Connector, PassResult
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.loads import Supply
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata, Tables
from cowtail.models.observations import NULL_BLOCK
from cowtail.models.scope import Scope


class PeerConnector(Connector):
    """Connector ``child`` of a scope, a peer.

    A peer that serves has every prompt, as far as a resent one can be resumed. One that retains
    sends each finished request's blocks away, and needs them until it has.
    """

    def __init__(self, scope: Scope, child: int) -> None:
        super().__init__(child)
        self.layout = CacheLayout.of(scope)
        self.serves = scope.children[child].serves and scope.loads
        self.retains = scope.children[child].retains
        self._saved: list[str] = []

    def supply(self, request: Request, beyond: int, *, failed: bool) -> Supply | None:
        """Return all of the prompt that is aligned and leaves one token to compute."""
        if not self.serves or request.load_failed:
            return None
        aligned = request.prompt_length - 1
        aligned -= aligned % self.layout.alignment
        return Supply(self.child, aligned) if aligned > beyond else None

    def request_finished(self, request: Request, tables: Tables) -> int:
        """Save a request that has a block: the workers start once they are told."""
        if not self.retains or not any(b != NULL_BLOCK for table in tables for b in table):
            return 0
        self._saved.append(request.name)
        return 1

    def build_metadata(self, result: PassResult) -> ConnectorMetadata:
        """Tell the workers which finished requests to send."""
        sends = tuple((name, self.child) for name in self._saved)
        self._saved = []
        return ConnectorMetadata(
            loads=result.loads,
            sends=sends,
            preempted=result.preempted,
            finished=result.finished,
        )
