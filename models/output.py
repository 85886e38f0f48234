"""The scheduler processes a step's output: sampled tokens count, complete requests finish."""

from __future__ import annotations

import attrs

from cowtail.models import deferred_frees, keys, requests
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects, Status
from cowtail.models.scope import Scope
from cowtail.models.state import ScheduledChunk, State, with_request
from cowtail.models.tables import Allocation
from cowtail.models.transition import Transition


def update_from_output_guard(state: State) -> str:
    """Return why no output can be processed, or an empty string."""
    if not state.steps:
        return "no step is in flight"
    return "" if state.steps[0].executed else "the oldest step has not run"


def update_from_output(scope: Scope, state: State) -> Transition:
    """Process the oldest step's output: count sampled tokens, finish what is complete."""
    guard = update_from_output_guard(state)
    if guard:
        raise NotEnabled(guard)
    oldest = state.steps[0]
    state = deferred_frees.output_processed(attrs.evolve(state, steps=state.steps[1:]))
    effects = Effects()
    events: tuple[str, ...] = ()
    for chunk in oldest.chunks:
        if chunk.stale:
            events += ("stale output ignored",)
        elif chunk.accepted < chunk.drafts:
            events += ("drafts rejected",)
        elif chunk.drafts:
            events += ("drafts accepted",)
        state = accept_output(state, chunk)
        state = _key_what_is_known(scope, state, chunk)
        request = state.requests[chunk.request]
        done = request.outputs == scope.requests[chunk.request].max_tokens
        if done and request.status is Status.RUNNING:
            finished = requests.finish(scope, state, chunk.request)
            state = finished.state
            effects = attrs.evolve(
                effects,
                handoffs=effects.handoffs + finished.effects.handoffs,
                jobs=effects.jobs + finished.effects.jobs,
            )
            events += finished.events
    return Transition(state, effects, events)


def _key_what_is_known(scope: Scope, state: State, chunk: ScheduledChunk) -> State:
    """Key what an output has completed, where that is not left to the next chunk."""
    request = state.requests[chunk.request]
    if scope.behaviours.keys_when_scheduled or scope.max_steps_in_flight == 1:
        return state
    if chunk.stale or not chunk.samples or request.status is not Status.RUNNING:
        return state
    spec = scope.requests[chunk.request]
    keyed = keys.register_keys(
        scope,
        spec,
        Allocation(state.pool, request.tables),
        request.computed,
        request.computed - request.placeholders,
        request.junction,
    )
    state = attrs.evolve(state, pool=keyed.pool, early_offers=(*state.early_offers, *keyed.offers))
    return with_request(state, chunk.request, attrs.evolve(request, tables=keyed.tables))


def accept_output(state: State, chunk: ScheduledChunk) -> State:
    """Count what a chunk sampled and what drafts it accepted; rejected ones are uncomputed again.

    Nothing counts if the request moved on in the meantime.
    """
    request = state.requests[chunk.request]
    if chunk.stale or not chunk.samples or request.status is Status.FINISHED:
        return state
    accepted = attrs.evolve(
        request,
        outputs=request.outputs + 1 + chunk.accepted,
        placeholders=request.placeholders - 1 - chunk.drafts,
        drafted=request.drafted - chunk.drafts,
        computed=request.computed - chunk.drafts + chunk.accepted,
    )
    return with_request(state, chunk.request, accepted)
