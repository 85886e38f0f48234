"""How the parts of an engine's connectors are put together, for a scope's roles and children."""

from __future__ import annotations

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.connector_base import Connector
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.loader import Loader, PeerLoader
from cowtail.impl.torch_engine.lookup import JointLookup
from cowtail.impl.torch_engine.memory import PagedMemory
from cowtail.impl.torch_engine.parts import Parts
from cowtail.impl.torch_engine.scripted_store import ScriptedStore
from cowtail.impl.torch_engine.streams import StreamKind, new_stream
from cowtail.impl.torch_engine.true_contents import TrueContents
from cowtail.impl.torch_engine.worker import Worker
from cowtail.models.scope import ChildKind, Role, Scope


def build_connector(
    scope: Scope, parts: Parts, pool: BlockPool, lookup: JointLookup, store: ScriptedStore
) -> Connector:
    """Return the scheduler's connector: the only child itself, or several of them behind one.

    Without a role there is none, which is the same as one that does nothing (R17).
    """
    if scope.role is Role.NONE or not scope.children:
        return Connector()
    children: list[Connector] = []
    asks: Connector | None = None
    for position, child in enumerate(scope.children):
        if child.kind is ChildKind.STORE:
            ledger = parts.ledger(pool, scope.num_ranks)
            finder = parts.store_lookup(scope, position, lookup, store)
            asks = parts.connector(scope, position, pool, ledger, finder, parts.answers())
            children.append(asks)
        elif child.kind is ChildKind.PEER:
            children.append(parts.peer(scope, position))
        else:
            children.append(Connector(position))
    if len(children) == 1:
        return children[0]
    return parts.multi(children, asks)


def build_worker(
    scope: Scope,
    parts: Parts,
    rank: int,
    memory: PagedMemory,
    store: ScriptedStore,
    contents: TrueContents,
    streams: StreamKind,
) -> Worker:
    """Return a rank's worker, with streams of its own for steps, for saves and for loads."""
    loaders: dict[int, Loader] = {}
    for position, child in enumerate(scope.children):
        if child.kind is ChildKind.STORE:
            loaders[position] = parts.store_loader(scope, rank, memory.width, store)
        elif child.serves:
            loaders[position] = PeerLoader(scope, rank, memory.width, contents)
    return parts.worker(
        scope,
        rank,
        memory,
        store,
        new_stream(streams),
        new_stream(streams),
        parts.load_queue(memory, new_stream(streams), loaders),
        parts.send_queue(),
        parts.retention(CacheLayout.of(scope), scope.retention_interval),
    )
