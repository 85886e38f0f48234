"""A request's way in and out: submit, abort, and the finish path (domain.md e).

The finish path finalizes partial tails first, while their block reference is still valid,
before states are retired and tables freed (R3). A marker is consumed in every case; it is
handed over only if nothing is in flight and the request stands exactly at its boundary (R1, R2).
"""

from __future__ import annotations

import attrs

from cowtail.models import boundaries, connector, deferred_frees, loads, peers, tables
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects, Handoff, Status
from cowtail.models.scope import Scope
from cowtail.models.state import (
    BlockTable,
    HeldRequest,
    Request,
    State,
    tokens_in_flight,
    with_request,
)
from cowtail.models.transition import Transition


def submit_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a request cannot be submitted, or an empty string."""
    if state.open_pass is not None:
        return "a pass is open"
    status = state.requests[index].status
    if status is not Status.NEW:
        return f"{scope.requests[index].name!r} is {status.value}: each is submitted once"
    return ""


def submit(scope: Scope, state: State, index: int) -> Transition:
    """Let a request wait for admission."""
    guard = submit_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    waiting = attrs.evolve(state.requests[index], status=Status.WAITING)
    state = attrs.evolve(state, submitted=(*state.submitted, index))
    return Transition(with_request(state, index, waiting))


def abort_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a request cannot be aborted, or an empty string."""
    spec = scope.requests[index]
    if state.open_pass is not None:
        return "a pass is open"
    if state.requests[index].status in (Status.NEW, Status.FINISHED):
        return f"{spec.name!r} is {state.requests[index].status.value}"
    if scope.may_abort is not None and spec.name not in scope.may_abort:
        return f"{spec.name!r} is not among may_abort={scope.may_abort}"
    return ""


def abort(scope: Scope, state: State, index: int) -> Transition:
    """End a request early, in whatever phase it is."""
    guard = abort_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    phase = state.requests[index].status.value
    transition = finish(scope, state, index)
    return attrs.evolve(transition, events=(f"aborted while {phase}", *transition.events))


def finish(scope: Scope, state: State, index: int, *, hold: bool = True) -> Transition:
    """Run the finish path: tails, retirement, connector, free; the workers are told later.

    With ``hold`` the tables stay while ranks still load into them, or a peer has to send them.
    """
    was_loading = state.requests[index].status is Status.LOADING
    state, tails, events = finalize_tails(scope, state, index)
    request = state.requests[index]
    processed = max(0, request.computed - tokens_in_flight(state, index))
    pool, kept = tables.remove_skipped(scope, state.pool, request.tables, processed)
    state = with_request(attrs.evolve(state, pool=pool), index, attrs.evolve(request, tables=kept))
    state, job = connector.register_finished_tail(scope, state, index, tails)
    effects = Effects()
    if job is not None:
        events += ("tail handed off at finish",)
        effects = Effects(handoffs=tails, jobs=connector.emitted(scope, (job,)))
    elif tails:
        events += ("tail refused by the connector",)
    request = state.requests[index]
    held = _hold(scope, state, index, was_loading) if hold else None
    finished = Request(
        tables=tuple(
            BlockTable(blocks=table.blocks, marker=table.marker) if held else BlockTable()
            for table in request.tables
        ),
        status=Status.FINISHED,
        computed=request.computed,
        outputs=request.outputs,
        handed_off=request.handed_off,
    )
    state = attrs.evolve(
        with_request(state, index, finished),
        untold_finished=(*state.untold_finished, index),
        early_offers=tuple(
            offer for offer in state.early_offers if offer.request != scope.requests[index].name
        ),
    )
    if held:
        state = attrs.evolve(state, held=(*state.held, held))
        events += ("held: its load is under way" if was_loading else "held: to be sent",)
    else:
        freed = tables.blocks_to_free(request.tables)
        state = deferred_frees.give_back_tables(scope, state, index, freed)
    if connector.leaves_a_pin(state, index):
        events += ("pin outlives its request",)
    return Transition(state, effects, (*events, "finished"))


def _hold(scope: Scope, state: State, index: int, was_loading: bool) -> HeldRequest | None:
    """Return what keeps the tables of a finishing request, if anything does."""
    if was_loading:
        return HeldRequest(index, False, loads.pending_load(state, index).ranks_owed)
    if peers.retains(scope, state.requests[index]):
        return HeldRequest(index, True, tuple(range(scope.num_ranks)))
    return None


def finalize_tails(
    scope: Scope, state: State, index: int
) -> tuple[State, tuple[Handoff, ...], tuple[str, ...]]:
    """Consume every marker of a finishing request; return the tails that are safe to hand over."""
    request = state.requests[index]
    if not boundaries.saves(scope.role):
        return state, (), ()
    tails = []
    events = []
    kept = []
    for group, table in enumerate(request.tables):
        marker = table.marker
        kept.append(attrs.evolve(table, marker=None))
        if marker is None:
            continue
        if tokens_in_flight(state, index):
            events.append("tail dropped: tokens in flight")
        elif request.computed != marker.boundary:
            events.append("tail dropped: boundary passed")
        else:
            tails.append(Handoff(scope.requests[index].name, group, marker.block, marker.boundary))
    state = with_request(state, index, attrs.evolve(request, tables=tuple(kept)))
    return state, tuple(tails), tuple(events)
