"""Projections of a scope's state graph onto one life: a block's, a request's, a job's, a handoff's.

Or onto the scope's own. A view names the phase of every tracked item of a state, in a fixed order
of items; the projection follows each item through each transition. A graph of thousands of states
becomes about a dozen nodes, each edge labelled with the actions that cause it (R36).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from cowtail.models import boundaries
from cowtail.models.observations import Status
from cowtail.models.phase import BlockPhase, block_phase
from cowtail.models.scope import Scope
from cowtail.models.state import JobMeta, State
from cowtail.spec.names import unknown

Items = tuple[str, ...]


@attrs.frozen
class View:
    """One projection.

    ``items`` returns the phase of each tracked item. ``kinds`` groups phases into the colour
    classes of the drawing; ``story`` lists the ways that a life usually goes, phase by phase.
    """

    name: str
    title: str
    caption: str
    items: Callable[[Scope, State], Items]
    kinds: dict[str, str]
    story: tuple[tuple[str, ...], ...]


def blocks(scope: Scope, state: State) -> Items:
    """Return the phase of every block but the null block."""
    return tuple(block_phase(state, block).value for block in range(1, scope.num_blocks))


def requests(scope: Scope, state: State) -> Items:
    """Return the phase of every request."""
    return tuple(_request_phase(scope, state, index) for index in range(len(scope.requests)))


def _request_phase(scope: Scope, state: State, index: int) -> str:
    request = state.requests[index]
    if request.status is Status.FINISHED:
        pinned = any(pin.request == index for pin in state.pins)
        return "finished, job pinned" if pinned else "finished"
    if request.status is not Status.RUNNING:
        return request.status.value
    if any(table.marker is not None for table in request.tables):
        return "at its boundary"
    if request.computed < len(scope.requests[index].prompt):
        return "prefilling"
    return "decoding"


def jobs(scope: Scope, state: State) -> Items:
    """Return the phase of every job so far, and of the next two, which are not born yet."""
    return tuple(_job_phase(scope, state, job) for job in range(state.next_job + 2))


def _job_phase(scope: Scope, state: State, job: int) -> str:
    if job >= state.next_job:
        return "not yet"
    pinned = any(pin.job == job for pin in state.pins)
    if any(meta.job == job for meta in state.queued_tails):
        return "registered at finish"
    if any(meta.job == job for step in state.steps for meta in step.jobs):
        return "shipped with a step"
    waiting = [meta for rank in state.ranks for meta in rank.queue if meta.job == job]
    if waiting:
        queued = "queued on the ranks" if waiting[0].live else "retired on the ranks"
        return queued if len(waiting) == scope.num_ranks else f"{queued}, run by some"
    return "run by every rank" if pinned else "complete"


def handoffs(scope: Scope, state: State) -> Items:
    """Return the phase of every request's partial tail, per Mamba group."""
    return tuple(
        _handoff_phase(scope, state, index, group)
        for index in range(len(scope.requests))
        for group, spec in enumerate(scope.groups)
        if spec.is_mamba
    )


def _handoff_phase(scope: Scope, state: State, index: int, group: int) -> str:
    spec = scope.requests[index]
    boundary = boundaries.replay_boundary(scope, spec)
    if state.requests[index].tables[group].marker is not None:
        return "registered"
    offers = () if state.open_pass is None else state.open_pass.offers
    if any((o.request, o.group, o.boundary) == (spec.name, group, boundary) for o in offers):
        return "copied, offered"

    def carries(meta: JobMeta) -> bool:
        return meta.request == index and any(
            put.group == group and put.boundary == boundary for put in meta.puts
        )

    if any(carries(meta) for meta in state.queued_tails):
        return "handed off at finish"
    if any(carries(meta) for step in state.steps for meta in step.jobs):
        return "handed off, shipped"
    if any(carries(meta) for rank in state.ranks for meta in rank.queue):
        return "with the ranks"
    stored = sum(
        entry.group == group and entry.prefix == spec.tokens[:boundary] for entry in state.store
    )
    if stored:
        return "stored" if stored == scope.num_ranks else "stored by some ranks"
    if state.requests[index].status is Status.FINISHED:
        return "not stored"
    return "not yet"


def whole(scope: Scope, state: State) -> Items:
    """Return the one phase of the scope itself: scheduler, device, and what stays pinned."""
    del scope
    if not state.submitted:
        return ("nothing submitted",)
    where = "in a pass" if state.open_pass is not None else "between passes"
    return (f"{where}, {_STEPS[min(len(state.steps), 2)]}{_PINS[bool(state.pins)]}",)


_STEPS = ("device idle", "1 step in flight", "2 or more steps in flight")
_PINS = ("", ", jobs pinned")
_WHERE = ("between passes", "in a pass")


VIEWS: dict[str, View] = {
    view.name: view
    for view in (
        View(
            "block",
            "The life of a KV-cache block",
            "Every block of every reachable state, followed through every action.",
            blocks,
            {
                BlockPhase.FREE: "free",
                BlockPhase.ALLOCATED: "in a table",
                BlockPhase.ALLOCATED_PINNED: "in a table",
                BlockPhase.TAIL_REGISTERED: "registered tail",
                BlockPhase.COPIED_ON_WRITE: "copy-on-write",
                BlockPhase.COPY_SOURCE: "copy-on-write",
                BlockPhase.COPY_SOURCE_PINNED: "copy-on-write",
                BlockPhase.PINNED: "pinned only",
                BlockPhase.FREED_BUT_CACHED: "cached",
                BlockPhase.LOST: "lost",
            },
            (
                (BlockPhase.FREE, BlockPhase.ALLOCATED, BlockPhase.ALLOCATED_PINNED),
                (BlockPhase.FREE, BlockPhase.TAIL_REGISTERED, BlockPhase.PINNED),
                (BlockPhase.FREE, BlockPhase.COPIED_ON_WRITE, BlockPhase.PINNED),
                (BlockPhase.ALLOCATED_PINNED, BlockPhase.PINNED, BlockPhase.FREED_BUT_CACHED),
            ),
        ),
        View(
            "request",
            "The life of a request",
            "From submission to the release of its last pin.",
            requests,
            {
                "new": "outside",
                "waiting": "waiting",
                "preempted": "waiting",
                "loading": "waiting",
                "loaded": "waiting",
                "prefilling": "running",
                "at its boundary": "registered tail",
                "decoding": "running",
                "finished, job pinned": "pinned only",
                "finished": "outside",
            },
            (
                (
                    "new",
                    "waiting",
                    "prefilling",
                    "at its boundary",
                    "decoding",
                    "finished, job pinned",
                    "finished",
                ),
            ),
        ),
        View(
            "job",
            "The life of a store job",
            "Pinned from its birth until the scheduler has consumed every rank's report.",
            jobs,
            {
                "not yet": "outside",
                "registered at finish": "pinned, scheduler",
                "shipped with a step": "pinned, scheduler",
                "queued on the ranks": "pinned, ranks",
                "queued on the ranks, run by some": "pinned, ranks",
                "retired on the ranks": "retired",
                "retired on the ranks, run by some": "retired",
                "run by every rank": "pinned, reporting",
                "complete": "outside",
            },
            (
                (
                    "not yet",
                    "shipped with a step",
                    "queued on the ranks",
                    "queued on the ranks, run by some",
                    "run by every rank",
                    "complete",
                ),
            ),
        ),
        View(
            "handoff",
            "The life of a partial tail",
            "Registered, then handed off once, by copy-on-write or at finish, or dropped once.",
            handoffs,
            {
                "not yet": "outside",
                "registered": "registered tail",
                "copied, offered": "copy-on-write",
                "handed off at finish": "pinned, scheduler",
                "handed off, shipped": "pinned, scheduler",
                "with the ranks": "pinned, ranks",
                "stored by some ranks": "stored",
                "stored": "stored",
                "not stored": "not stored",
            },
            (
                (
                    "not yet",
                    "registered",
                    "copied, offered",
                    "handed off, shipped",
                    "with the ranks",
                    "stored",
                ),
                ("registered", "handed off at finish", "handed off, shipped"),
            ),
        ),
        View(
            "scope",
            "The life of a whole scope",
            "Scheduler, device and pinned jobs together, in every reachable state.",
            whole,
            {
                "nothing submitted": "outside",
                **{
                    f"{where}, {steps}{pins}": f"{where}{pins}"
                    for where in _WHERE
                    for pins in _PINS
                    for steps in _STEPS
                },
            },
            (
                (
                    "nothing submitted",
                    "between passes, device idle",
                    "in a pass, device idle",
                    "between passes, 1 step in flight",
                ),
            ),
        ),
    )
}
"""Every view by name."""


def view_named(name: str) -> View:
    """Return a view. Raises ValueError with the nearest known name."""
    if name in VIEWS:
        return VIEWS[name]
    raise ValueError(unknown(name, "view", VIEWS))
