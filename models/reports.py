"""The scheduler consumes what ranks reported: jobs, then loads, then sends (domain.md f, g).

Each kind waits for every rank: a job's pin, a load's request, a finished request that is held.
A report that nothing waits for is ignored (counted once).
"""

from __future__ import annotations

import attrs

from cowtail.models import block_pool, connector, loads, peers, requests
from cowtail.models.actions import LoadOutcome
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects, Status
from cowtail.models.scope import LoadPolicy, Scope
from cowtail.models.state import PendingLoad, State, with_request
from cowtail.models.transition import Transition


def update_connector_output_guard(state: State) -> str:
    """Return why there is nothing to consume, or an empty string."""
    if state.inbox or state.load_inbox or state.send_inbox:
        return ""
    return "no report has arrived"


def update_connector_output(scope: Scope, state: State) -> Transition:
    """Consume every report that has arrived, and release what is complete."""
    guard = update_connector_output_guard(state)
    if guard:
        raise NotEnabled(guard)
    state, released, events = _consume_jobs(scope, state)
    if state.load_inbox:
        state, more = _consume_loads(scope, state)
        events += more
    if state.send_inbox:
        state, more = peers.consume_sends(scope, state)
        events += more
    return Transition(state, Effects(released=released), tuple(sorted(events)))


def _consume_jobs(scope: Scope, state: State) -> tuple[State, tuple[int, ...], tuple[str, ...]]:
    """Strike reporting ranks off their jobs; free a job's blocks once no rank owes it."""
    pins = {pin.job: pin for pin in state.pins}
    pool = state.pool
    released = []
    events = []
    for job, rank in _in_order(scope, state.inbox):
        pin = pins.get(job)
        if pin is None or rank not in pin.ranks_owed:
            events.append("repeated report ignored")
            continue
        owed = connector.strike_off(pin, rank)
        if owed:
            pins[job] = attrs.evolve(pin, ranks_owed=owed)
            continue
        del pins[job]
        pool = block_pool.free(pool, reversed(pin.blocks))
        released.append(job)
        events.append("pin released")
    state = attrs.evolve(state, pool=pool, pins=tuple(pins.values()), inbox=())
    return state, tuple(released), tuple(events)


def _in_order(scope: Scope, inbox: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return reports, all those of a job together, in the order in which jobs are released."""
    if scope.behaviours.reports_sorted:
        return list(inbox)
    by_rank = sorted(inbox, key=lambda report: report[1])
    first = list(dict.fromkeys(job for job, _ in by_rank))
    return sorted(by_rank, key=lambda report: first.index(report[0]))


def _consume_loads(scope: Scope, state: State) -> tuple[State, tuple[str, ...]]:
    """Strike reporting ranks off their loads; a load that no rank owes is complete."""
    events: tuple[str, ...] = ()
    inbox = state.load_inbox
    state = attrs.evolve(state, load_inbox=())
    for index, rank, went_well in inbox:
        state, complete = loads.strike_off(state, index, rank, went_well)
        if complete is not None:
            state, more = _complete_load(scope, state, complete)
            events += more
    return state, events


def _complete_load(scope: Scope, state: State, load: PendingLoad) -> tuple[State, tuple[str, ...]]:
    """Release who was aborted meanwhile; else go on with what is there, or without it."""
    request = state.requests[load.request]
    if request.status is Status.FINISHED:
        return peers.release(scope, state, load.request), ("released after its load",)
    if not scope.behaviours.loads_settle_when_reported and (
        not load.failed or scope.load_policy is LoadPolicy.RECOMPUTE
    ):
        outcome = LoadOutcome.FAILED if load.failed else LoadOutcome.OK
        waiting = attrs.evolve(
            request,
            status=Status.LOADED,
            leased=False,
            settles=outcome,
            computed=0 if load.failed else request.computed,
        )
        event = "load failed: recompute" if load.failed else "load complete"
        return with_request(state, load.request, waiting), (event,)
    if not load.failed:
        loaded = attrs.evolve(request, status=Status.LOADED, leased=False)
        return with_request(state, load.request, loaded), ("load complete",)
    if scope.load_policy is LoadPolicy.RECOMPUTE:
        return loads.fall_back(scope, state, load.request), ("load failed: recompute",)
    finished = requests.finish(scope, state, load.request, hold=False)
    return finished.state, ("load failed: finished", *finished.events)
