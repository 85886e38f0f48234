"""Connectors to another engine's memory: finished requests held until their blocks are sent.

A peer that retains saves a finished request asynchronously, straight from its blocks. Several
of them delay one free: the blocks go once every rank has sent them for *all* (domain.md g).
"""

from __future__ import annotations

import attrs

from cowtail.models import deferred_frees, tables
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import NULL_BLOCK, Effects
from cowtail.models.scope import ChildKind, Role, Scope
from cowtail.models.state import (
    BlockTable,
    DeviceStep,
    HeldRequest,
    RankWorker,
    Request,
    State,
    with_rank,
    with_request,
)
from cowtail.models.transition import Transition


def serving(scope: Scope, child: int) -> bool:
    """Whether a child is a peer that answers lookups and loads."""
    return scope.children[child].kind is ChildKind.PEER and scope.children[child].serves


def retaining(scope: Scope) -> tuple[int, ...]:
    """Return the positions of the children that save finished requests asynchronously."""
    if scope.role is Role.NONE:
        return ()
    return tuple(position for position, child in enumerate(scope.children) if child.retains)


def retains(scope: Scope, request: Request) -> bool:
    """Whether a finishing request's blocks have to be sent first: it has any, and a peer wants."""
    return bool(retaining(scope)) and any(
        block != NULL_BLOCK for table in request.tables for block in table.blocks
    )


def queue_sends(scope: Scope, state: State, step: DeviceStep) -> State:
    """Let every rank begin the sends of held requests that a step told it of."""
    told = [held.request for held in state.held if held.sending and held.request in step.finished]
    if not told:
        return state
    new = tuple((index, child) for index in told for child in retaining(scope))
    ranks = tuple(attrs.evolve(rank, sends=rank.sends + new) for rank in state.ranks)
    return attrs.evolve(state, ranks=ranks)


def finish_send_guard(state: State, rank: int, child: int, index: int) -> str:
    """Return why a rank cannot finish a send, or an empty string."""
    if not 0 <= rank < len(state.ranks):
        return f"there is no rank {rank}"
    if (index, child) not in state.ranks[rank].sends:
        return f"rank {rank} is sending nothing of this request for child {child}"
    return ""


def finish_send(scope: Scope, state: State, rank: int, child: int, index: int) -> Transition:
    """Finish one send; the rank's last one for a request is reported."""
    guard = finish_send_guard(state, rank, child, index)
    if guard:
        raise NotEnabled(guard)
    worker = state.ranks[rank]
    sends = tuple(send for send in worker.sends if send != (index, child))
    state = with_rank(state, rank, attrs.evolve(worker, sends=sends))
    if _still_sends(state.ranks[rank], index):
        return Transition(state, Effects(), ("sent for one child of several",))
    arrived = (*state.send_inbox, (index, rank))
    inbox = tuple(sorted(arrived, key=lambda x: (scope.requests[x[0]].name, x[1])))
    return Transition(attrs.evolve(state, send_inbox=inbox))


def _still_sends(worker: RankWorker, index: int) -> bool:
    return any(request == index for request, _ in worker.sends)


def consume_sends(scope: Scope, state: State) -> tuple[State, tuple[str, ...]]:
    """Strike off the ranks that have sent; release what no rank owes any more."""
    events: tuple[str, ...] = ()
    inbox = state.send_inbox
    state = attrs.evolve(state, send_inbox=())
    for index, rank in inbox:
        held = held_request(state, index)
        if held is None or rank not in held.ranks_owed:
            continue
        owed = tuple(r for r in held.ranks_owed if r != rank)
        if owed:
            state = _with_held(state, attrs.evolve(held, ranks_owed=owed))
        else:
            state = release(scope, state, index)
            events += ("released after its last send",)
    return state, events


def held_request(state: State, index: int) -> HeldRequest | None:
    """Return what holds a finished request's tables, if anything does."""
    return next((held for held in state.held if held.request == index), None)


def strike_off_load(state: State, index: int, rank: int) -> State:
    """Note that a rank has reported the load of a request that was aborted meanwhile."""
    held = held_request(state, index)
    if held is None:
        return state
    owed = tuple(r for r in held.ranks_owed if r != rank)
    return _with_held(state, attrs.evolve(held, ranks_owed=owed))


def _with_held(state: State, new: HeldRequest) -> State:
    held = tuple(new if old.request == new.request else old for old in state.held)
    return attrs.evolve(state, held=held)


def release(scope: Scope, state: State, index: int) -> State:
    """Free the tables of a held request, once."""
    request = state.requests[index]
    held = tuple(held for held in state.held if held.request != index)
    freed = tables.blocks_to_free(request.tables)
    state = deferred_frees.give_back_tables(scope, attrs.evolve(state, held=held), index, freed)
    empty = tuple(BlockTable() for _ in scope.groups)
    return with_request(state, index, attrs.evolve(request, tables=empty))
