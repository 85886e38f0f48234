"""Preemption: a running request loses its blocks and waits again (domain.md d).

Who it is depends on the policy. Under ``PRIORITY`` it can be one that this very pass has
scheduled: then its chunk is withdrawn, and the keys that the chunk registered with it, because
nothing will ever compute their bytes.
"""

from __future__ import annotations

import attrs

from cowtail.models import block_pool, connector, deferred_frees, extension, tables
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects, Status
from cowtail.models.scope import Policy, Scope
from cowtail.models.state import (
    BlockTable,
    DeviceStep,
    OpenPass,
    Request,
    State,
    tokens_in_flight,
    with_request,
)
from cowtail.models.transition import Transition


def preempt_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a request cannot be preempted now, or an empty string."""
    name = scope.requests[index].name
    if state.open_pass is None:
        return "no pass is open"
    if state.requests[index].status is not Status.RUNNING:
        return f"{name!r} is {state.requests[index].status.value}, not running"
    if scope.policy is not Policy.PRIORITY and extension.is_scheduled(state, index):
        return f"{name!r} is scheduled in this pass already"
    if state.open_pass.admitted or state.open_pass.loads:
        return "a request was admitted in this pass"
    if scope.policy is not Policy.ANY and index != victim(scope, state):
        return f"{name!r} is not the one to be preempted under {scope.policy.value}"
    if state.spent.preemptions < scope.max_preemptions:
        return ""
    if not extension.someone_lacks_blocks(scope, state):
        return f"no request lacks blocks, and max_preemptions={scope.max_preemptions} are spent"
    return ""


def victim(scope: Scope, state: State) -> int:
    """Return which running request goes first: the last admitted, or the least urgent.

    Of equally urgent ones it is the one that was submitted last.
    """
    running = [i for i in state.admitted if state.requests[i].status is Status.RUNNING]
    if scope.policy is Policy.PRIORITY:
        return max(running, key=lambda i: (scope.requests[i].priority, state.submitted.index(i)))
    return running[-1]


def preempt(scope: Scope, state: State, index: int) -> Transition:
    """Take a running request's blocks away; it waits again, and its steps in flight are stale."""
    guard = preempt_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    spent = state.spent
    if not extension.someone_lacks_blocks(scope, state):
        spent = attrs.evolve(spent, preemptions=spent.preemptions + 1)
    events: tuple[str, ...] = ()
    if extension.is_scheduled(state, index):
        state = withdraw(scope, state, index)
        events = ("chunk withdrawn",)
    opened = state.open_pass
    assert opened is not None
    opened = without_offers(opened, scope.requests[index].name)
    opened = attrs.evolve(opened, preempted=(*opened.preempted, index))
    state, more = take_back(scope, attrs.evolve(state, open_pass=opened, spent=spent), index)
    return Transition(state, Effects(), events + more)


def withdraw(scope: Scope, state: State, index: int) -> State:
    """Take a request's chunk out of the open pass: its keys go, copies stay.

    Nor are its blocks zeroed: they go back before this step runs, and a load may write them then.
    """
    opened = state.open_pass
    assert opened is not None
    held = {block for table in state.requests[index].tables for block in table.blocks}
    pool = state.pool
    for chunk in opened.scheduled:
        if chunk.request == index and scope.behaviours.withdrawn_keys_dropped:
            for block, key in chunk.keys:
                pool = block_pool.drop_key(pool, block, key)
    opened = attrs.evolve(
        opened,
        scheduled=tuple(chunk for chunk in opened.scheduled if chunk.request != index),
        new_blocks=tuple(block for block in opened.new_blocks if block not in held),
    )
    return attrs.evolve(state, pool=pool, open_pass=opened)


def without_offers(opened: OpenPass, name: str) -> OpenPass:
    """Take back what was offered of a request: its blocks go, and somebody else may write them."""
    return attrs.evolve(
        opened, offers=tuple(offer for offer in opened.offers if offer.request != name)
    )


def take_back(scope: Scope, state: State, index: int) -> tuple[State, tuple[str, ...]]:
    """Free a running request's blocks and let it wait again; its chunks in flight are stale."""
    request = state.requests[index]
    events = ["preempted"]
    if tokens_in_flight(state, index):
        events.append("preempted with a step in flight")
    if connector.has_unfinished_job(state, index):
        events.append("preempted with a job in flight")
    if any(table.marker is not None for table in request.tables):
        events.append("tail dropped: preempted")
    steps = tuple(_with_stale_chunks(step, index) for step in state.steps)
    state = attrs.evolve(state, steps=steps)
    freed = tables.blocks_to_free(request.tables)
    state = deferred_frees.give_back_tables(scope, state, index, freed)
    released = Request(
        tables=tuple(BlockTable() for _ in scope.groups),
        status=Status.PREEMPTED,
        outputs=request.outputs,
        load_failed=request.load_failed,
    )
    return with_request(state, index, released), tuple(events)


def _with_stale_chunks(step: DeviceStep, index: int) -> DeviceStep:
    chunks = tuple(
        attrs.evolve(chunk, stale=True) if chunk.request == index else chunk
        for chunk in step.chunks
    )
    return attrs.evolve(step, chunks=chunks)
