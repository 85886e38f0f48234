"""The scheduling pass: how it begins, and what it dispatches when it ends (domain.md d).

A pass commits the scheduler before the device has run: counts advance, keys are registered,
blocks move. Device and ranks do not interleave with an open pass here: they touch memory,
queues and the store only, which no rule of the pass reads, so the order makes no difference.
"""

from __future__ import annotations

import attrs

from cowtail.models import (
    admission,
    boundaries,
    chunking,
    connector,
    deferred_frees,
    extension,
    loads,
    preemption,
    workers,
)
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects
from cowtail.models.planning import Refusal
from cowtail.models.scope import Scope
from cowtail.models.state import DeviceStep, OpenPass, State
from cowtail.models.transition import Transition


def begin_pass(scope: Scope, state: State) -> Transition:
    """Open a pass, if there is anything that it could do."""
    guard = begin_pass_guard(scope, state)
    if guard:
        raise NotEnabled(guard)
    opened = OpenPass(offers=state.early_offers)
    return Transition(attrs.evolve(state, open_pass=opened, early_offers=()))


def begin_pass_guard(scope: Scope, state: State) -> str:
    """Return why no pass can begin, or an empty string."""
    if state.open_pass is not None:
        return "a pass is open"
    if len(state.steps) >= scope.max_steps_in_flight:
        return f"{len(state.steps)} steps are in flight, the limit is {scope.max_steps_in_flight}"
    if _has_metadata(state) or not scope.behaviours.passes_need_work:
        return ""
    opened = attrs.evolve(state, open_pass=OpenPass())
    for index, (spec, request) in enumerate(zip(scope.requests, state.requests, strict=True)):
        if chunking.has_tokens_to_schedule(spec, request) and _can_be_served(scope, opened, index):
            return ""
        if request.status not in admission.ADMISSIBLE:
            continue
        if request.settles is not None:
            return ""
        if not isinstance(admission.plan_admission(scope, opened, index), Refusal):
            return ""
    return "there is nothing to schedule and nothing to tell the workers"


def _can_be_served(scope: Scope, opened: State, index: int) -> bool:
    """Whether a request with tokens to schedule fits, or another may be preempted for it.

    Blocks that are on their way back make neither true: then the pass could not even end.
    """
    if not scope.defer_frees:
        return True
    if not isinstance(extension.plan_extension(scope, opened, index), Refusal):
        return True
    every = range(len(scope.requests))
    return any(not preemption.preempt_guard(scope, opened, other) for other in every)


def _has_metadata(state: State) -> bool:
    return bool(state.queued_tails or state.untold_finished or state.untold_preempted)


def end_pass_guard(scope: Scope, state: State) -> str:
    """Return why the pass cannot end, or an empty string."""
    if state.open_pass is None:
        return "no pass is open"
    opened = state.open_pass
    done = opened.scheduled or opened.preempted or opened.loads or opened.settled
    if done or _has_metadata(state) or not scope.behaviours.passes_need_work:
        return ""
    return "nothing is scheduled and there is nothing to tell the workers"


def end_pass(scope: Scope, state: State) -> Transition:
    """Drain copies and handoffs, build the connector's metadata, and dispatch the step."""
    guard = end_pass_guard(scope, state)
    if guard:
        raise NotEnabled(guard)
    opened = state.open_pass
    assert opened is not None
    built = connector.build_metadata(scope, state, opened)
    state = built.state
    retained = [
        block
        for group in range(len(scope.groups))
        for copy in opened.copies
        if copy.group == group
        for block in (copy.source, copy.destination)
    ]
    step = DeviceStep(
        chunks=opened.scheduled,
        copies=opened.copies,
        new_blocks=opened.new_blocks,
        jobs=built.jobs,
        preempted=(*state.untold_preempted, *opened.preempted),
        finished=state.untold_finished,
    )
    state = attrs.evolve(
        loads.ship_loads(state, opened.loads),
        open_pass=None,
        steps=(*state.steps, step),
        untold_finished=(),
        untold_preempted=(),
    )
    if not scope.behaviours.jobs_queued_by_device:
        state = workers.tell(state, step)
    state = deferred_frees.give_back(scope, state, [retained], deferred_frees.fence(scope, state))
    effects = Effects(
        copies=opened.copies,
        handoffs=opened.offers if boundaries.saves(scope.role) else (),
        jobs=connector.emitted(scope, built.jobs),
        loads=loads.emitted(scope, state, opened.loads),
    )
    return Transition(state, effects, built.events)
