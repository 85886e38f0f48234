"""What must hold of every transition, about partial tails and offers (T1, T3, T8, T9)."""

from __future__ import annotations

from cowtail.models import boundaries
from cowtail.models.actions import Abort, Action, EndPass, Extend, UpdateFromOutput
from cowtail.models.observations import Status
from cowtail.models.scope import STORE, Scope
from cowtail.models.state import State, tokens_in_flight
from cowtail.spec.step_invariants.property import StepProperty


def finish_hands_off_exactly(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T1: see ``STEP_PROPERTIES``."""
    if before.open_pass is not None or not isinstance(action, (Abort, UpdateFromOutput)):
        return None
    known_jobs = {job.job for job in before.queued_tails}
    handed = {job.request: job for job in after.queued_tails if job.job not in known_jobs}
    for index, (old, new) in enumerate(zip(before.requests, after.requests, strict=True)):
        if new.status is not Status.FINISHED or old.status is Status.FINISHED:
            continue
        name = scope.requests[index].name
        in_flight = tokens_in_flight(after, index)
        markers = [table.marker for table in old.tables if table.marker is not None]
        safe = in_flight == 0 and any(marker.boundary == old.computed for marker in markers)
        if index in handed and not safe:
            return (
                f"{name!r} finished with {in_flight} tokens in flight at {old.computed} computed, "
                f"and its tails {markers} were handed off all the same"
            )
        if (
            index not in handed
            and safe
            and boundaries.saves(scope.role)
            and STORE in scope.children
        ):
            return f"{name!r} finished at the boundary of its tail, and nothing was handed off"
    return None


def copies_offer_their_tail(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T3: see ``STEP_PROPERTIES``."""
    if not isinstance(action, Extend) or before.open_pass is None or after.open_pass is None:
        return None
    index = scope.index(action.request)
    offers = after.open_pass.offers[len(before.open_pass.offers) :]
    for group, table in enumerate(before.requests[index].tables):
        marker = table.marker
        if marker is None:
            continue
        made = [o for o in offers if (o.group, o.boundary) == (group, marker.boundary)]
        if len(made) != 1:
            return (
                f"{action.request!r} went past its tail at {marker.boundary} in group {group}, "
                f"and {len(made)} copies of it were offered"
            )
    return None


def nothing_is_offered_of_the_preempted(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T8: see ``STEP_PROPERTIES``."""
    if not isinstance(action, EndPass) or before.open_pass is None:
        return None
    preempted = {scope.requests[index].name for index in before.open_pass.preempted}
    for offer in before.open_pass.offers:
        if offer.request in preempted:
            return (
                f"block {offer.block} is offered as a state of {offer.request!r} at "
                f"{offer.boundary}, and the pass has preempted that request"
            )
    return None


def tails_leave_with_the_next_pass(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T9: see ``STEP_PROPERTIES``."""
    if not isinstance(action, EndPass):
        return None
    shipped = {job.job for job in after.steps[-1].jobs}
    for job in before.queued_tails:
        if job.job not in shipped:
            return f"the pass has ended, and the queued job {job.job} was not shipped with it"
    if after.queued_tails:
        return f"the pass has ended, and job {after.queued_tails[0].job} is still queued"
    return None


STEP_PROPERTIES: tuple[StepProperty, ...] = (
    StepProperty(
        "T1",
        "finish hands off exactly",
        "A finishing request hands its tail to the store exactly if nothing is in flight and it "
        "stands at the tail's boundary.",
        "R1, R2, R3",
        finish_hands_off_exactly,
    ),
    StepProperty(
        "T3",
        "copies offer their tail",
        "A request that goes past its registered tail has its copy offered, exactly once.",
        "R9, R15, R22",
        copies_offer_their_tail,
    ),
    StepProperty(
        "T8",
        "nothing is offered of the preempted",
        "What a pass offers must hold its state after the pass's step: so nothing is offered of a "
        "request that the pass preempts, whose chunk is withdrawn and whose blocks have gone back.",
        "domain S7, domain S10",
        nothing_is_offered_of_the_preempted,
    ),
    StepProperty(
        "T9",
        "tails leave with the next pass",
        "What was queued at finish is shipped with the step of the next pass, and only once.",
        "R6, R14",
        tails_leave_with_the_next_pass,
    ),
)
"""In the order in which they are judged."""
