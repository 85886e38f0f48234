"""What must hold of loads, lookups and held requests (S16-S20)."""

from __future__ import annotations

from collections.abc import Iterator

from cowtail.models import peers
from cowtail.models.actions import LoadOutcome
from cowtail.models.device import memory_ahead
from cowtail.models.observations import NULL_BLOCK, Key, Status
from cowtail.models.scope import Scope
from cowtail.models.state import PendingLoad, ScheduledChunk, State
from cowtail.spec import supply
from cowtail.spec.contents import contradiction
from cowtail.spec.invariants.columns import blocks_used
from cowtail.spec.invariants.property import Property


def loads_write_alone(scope: Scope, state: State) -> str | None:
    """S16: see ``PROPERTIES``."""
    for load in state.loads:
        if not any(load.request in rank.loads for rank in state.ranks):
            continue
        tables = state.requests[load.request].tables
        for group, column in _columns_filled(scope, load):
            if column >= len(tables[group].blocks):
                return f"{scope.requests[load.request].name!r} lost blocks that its load will write"
            block = tables[group].blocks[column]
            owner = f"the load of {scope.requests[load.request].name!r} writes block {block}"
            if block == NULL_BLOCK:
                return f"{owner}, the null block"
            if state.pool.ref_counts[block] != 1:
                return f"{owner}, which has {state.pool.ref_counts[block]} references"
            if state.pool.keys[block]:
                return f"{owner}, which is keyed {state.pool.keys[block]}"
            for chunk in _chunks_to_run(state):
                if block in blocks_used(scope, chunk):
                    name = scope.requests[chunk.request].name
                    return f"{owner}, which a step in flight of {name!r} uses"
    return None


def _columns_filled(scope: Scope, load: PendingLoad) -> Iterator[tuple[int, int]]:
    """Yield the group and column of every block that a load fills."""
    for index, group in enumerate(scope.groups):
        needed = supply.first_needed_column(scope, index, load.end)
        first = needed if group.is_mamba else max(needed, load.start // group.block_size)
        yield from ((index, column) for column in range(first, -(-load.end // group.block_size)))


def _chunks_to_run(state: State) -> Iterator[ScheduledChunk]:
    return (chunk for step in state.steps if not step.executed for chunk in step.chunks)


def every_rank_loads_once(scope: Scope, state: State) -> str | None:
    """S17: see ``PROPERTIES``."""
    waiting = {load.request: load for load in state.loads}
    if len(waiting) != len(state.loads):
        return f"a request waits for two loads: {state.loads}"
    for index, (spec, request) in enumerate(zip(scope.requests, state.requests, strict=True)):
        aborted = peers.held_request(state, index)
        waits = request.status is Status.LOADING or (aborted is not None and not aborted.sending)
        if waits != (index in waiting):
            there = "a load" if index in waiting else "no load"
            return f"{spec.name!r} is {request.status.value}, and there is {there} for it"
    begun = () if state.open_pass is None else state.open_pass.loads
    for rank, worker in enumerate(state.ranks):
        done = [index for index, _ in worker.loaded]
        arrived = [index for index, r, _ in state.load_inbox if r == rank]
        for index in range(len(state.requests)):
            parts = (*worker.loads, *done, *arrived, *begun)
            owed = index in waiting and rank in waiting[index].ranks_owed
            if parts.count(index) != owed:
                return (
                    f"rank {rank} has {parts.count(index)} loads of "
                    f"{scope.requests[index].name!r} to report, and owes {int(owed)}"
                )
    return None


def loaded_is_filled(scope: Scope, state: State) -> str | None:
    """S18: see ``PROPERTIES``."""
    if not any(request.status is Status.LOADED for request in state.requests):
        return None
    memory = memory_ahead(scope, state)
    for spec, request in zip(scope.requests, state.requests, strict=True):
        if request.status is not Status.LOADED or request.settles is LoadOutcome.FAILED:
            continue
        for index, group in enumerate(scope.groups):
            first = supply.first_needed_column(scope, index, request.computed)
            for column in range(first, -(-request.computed // group.block_size)):
                end = min((column + 1) * group.block_size, request.computed)
                block = request.tables[index].blocks[column]
                wrong = contradiction(scope, memory, block, Key(index, spec.tokens[:end]))
                if wrong:
                    return f"{spec.name!r} is loaded, but in block {block} of group {index} {wrong}"
    return None


def leases_protect(scope: Scope, state: State) -> str | None:
    """S19: see ``PROPERTIES``."""
    if not any(request.leased for request in state.requests):
        return None
    present = supply.on_every_rank(scope, state)
    for index, (spec, request) in enumerate(zip(scope.requests, state.requests, strict=True)):
        if not request.leased:
            continue
        if request.status is Status.LOADING:
            load = next(load for load in state.loads if load.request == index)
            start, end = load.start, load.end
        elif request.answer is not None and request.answer.length:
            start, end = 0, request.answer.length
        else:
            return f"{spec.name!r} is {request.status.value} and still has a lease"
        lacking = supply.missing(scope, spec.tokens, start, end, present.__contains__)
        if lacking:
            return f"{spec.name!r} has a lease on {end} tokens, but {lacking}"
    return None


def held_until_sent(scope: Scope, state: State) -> str | None:
    """S20: see ``PROPERTIES``."""
    for held in state.held:
        name = scope.requests[held.request].name
        if state.requests[held.request].status is not Status.FINISHED:
            return f"{name!r} is held, and has not finished"
        if not held.ranks_owed:
            return f"every rank is done with {name!r}, but it is still held"
        if not held.sending:
            continue
        untold = held.request in state.untold_finished or any(
            held.request in step.finished and not step.executed for step in state.steps
        )
        for rank in held.ranks_owed:
            sends = any(request == held.request for request, _ in state.ranks[rank].sends)
            arrived = (held.request, rank) in state.send_inbox
            if untold + sends + arrived != 1:
                return f"{name!r} is held for rank {rank}, which will not report it once"
    return None


PROPERTIES: tuple[Property, ...] = (
    Property(
        "S16",
        "loads write alone",
        "A block that a load will still write has one reference, that of the request it is for, "
        "no key, and no step in flight uses it.",
        "domain S9, K29, K40",
        loads_write_alone,
    ),
    Property(
        "S17",
        "one loader",
        "A request waits for at most one load, and every rank that owes it will report it "
        "exactly once.",
        "domain g, L3, K30, K31, K42",
        every_rank_loads_once,
    ),
    Property(
        "S18",
        "loaded is filled",
        "Once a load is complete and every dispatched step has run, all blocks that the request "
        "needs hold its prefix, on every rank.",
        "R18, K12, K16, K38",
        loaded_is_filled,
    ),
    Property(
        "S19",
        "leases protect and end",
        "What a lease covers is in the store of every rank; only a lookup's unused answer and a "
        "load under way have one.",
        "domain S12, K34, K36",
        leases_protect,
    ),
    Property(
        "S20",
        "held until sent",
        "A finished request is held only while some rank owes it a send or a load, and will "
        "report it.",
        "domain S15, K30, K31, K43",
        held_until_sent,
    ),
)
"""In the order in which they are judged."""
