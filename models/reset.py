"""Resets: the prefix cache forgets every key, and the store its entries (domain.md a, f)."""

from __future__ import annotations

import attrs

from cowtail.models import block_pool, connector, preemption
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects, Status
from cowtail.models.scope import Role, Scope
from cowtail.models.state import State
from cowtail.models.transition import Transition


def reset_guard(scope: Scope, state: State, store: bool) -> str:
    """Return why caches cannot be reset now, or an empty string."""
    if state.open_pass is not None:
        return "a pass is open"
    if state.spent.resets >= scope.max_resets:
        return f"max_resets={scope.max_resets} are spent"
    if not store:
        return ""
    if scope.role is Role.NONE or connector.store_child(scope) is None:
        return "there is no store to reset"
    if state.ranks[0].queue:
        return "rank 0 has jobs queued"
    if any(rank.loads or rank.loaded for rank in state.ranks):
        return "a load is under way"
    return ""


def reset(scope: Scope, state: State, running: bool, store: bool) -> Transition:
    """Forget every key, if no block is referenced; with ``store`` empty the store too.

    ``running``: running requests are preempted first, the last admitted one first.
    """
    guard = reset_guard(scope, state, store)
    if guard:
        raise NotEnabled(guard)
    spent = attrs.evolve(state.spent, resets=state.spent.resets + 1)
    state = attrs.evolve(state, spent=spent)
    events: tuple[str, ...] = ()
    if running:
        for index in _last_admitted_first(state):
            state, more = preemption.take_back(scope, state, index)
            state = attrs.evolve(state, untold_preempted=(*state.untold_preempted, index))
            events += more
    succeeded = not any(state.pool.ref_counts) and not state.deferred
    if succeeded:
        state = attrs.evolve(state, pool=block_pool.forget_all_keys(state.pool))
    events += ("prefix cache reset" if succeeded else "prefix cache reset refused",)
    if store and (succeeded or not running or scope.behaviours.store_reset_in_any_case):
        state = _without_store(state)
        events += ("store reset",)
    return Transition(state, Effects(reset=succeeded), events)


def _last_admitted_first(state: State) -> list[int]:
    return [i for i in state.admitted[::-1] if state.requests[i].status is Status.RUNNING]


def _without_store(state: State) -> State:
    """Remove every entry, and what lookups found in them. Durable offsets stay (S11)."""
    requests = tuple(
        attrs.evolve(request, answer=None, leased=False)
        if request.answer is not None or request.leased
        else request
        for request in state.requests
    )
    return attrs.evolve(state, store=(), requests=requests)
