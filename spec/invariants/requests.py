"""What must hold of requests: markers, and what those that do not run hold (S10, S15, S21)."""

from __future__ import annotations

from collections import Counter

from cowtail.models import boundaries
from cowtail.models.observations import NULL_BLOCK, Status
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.invariants.columns import columns_read, columns_written
from cowtail.spec.invariants.property import Property
from cowtail.spec.invariants.unfinished import unfinished_jobs

_WITH_BLOCKS = (Status.RUNNING, Status.LOADING, Status.LOADED)


def markers_are_consumed_once(scope: Scope, state: State) -> str | None:
    """S10: see ``PROPERTIES``."""
    for spec, request in zip(scope.requests, state.requests, strict=True):
        twice = [h for h, count in Counter(request.handed_off).items() if count > 1]
        if twice:
            return f"{spec.name!r} handed off (group, boundary) {twice[0]} twice"
        for index, table in enumerate(request.tables):
            marker = table.marker
            if marker is None:
                continue
            if request.status is Status.FINISHED and not boundaries.saves(scope.role):
                continue  # a consumer is asked for no tail; a held request keeps what it has
            settled = not scope.behaviours.loads_settle_when_reported
            if settled and request.status is Status.LOADED:
                continue  # keyed by the pass that found its load over, and waiting for blocks
            if request.status is not Status.RUNNING:
                return f"{spec.name!r} is {request.status.value} and still has a marker"
            column = -(-marker.boundary // scope.groups[index].block_size) - 1
            if table.blocks[column] != marker.block:
                return f"the tail of {spec.name!r} is block {marker.block}, not in its column"
            if table.copy_due is None or table.copy_due.source != marker.block:
                return f"the tail of {spec.name!r} would be overwritten without a copy"
            if request.computed != marker.boundary:
                return f"{spec.name!r} passed the boundary of its tail and still has the marker"
    return None


def finished_requests_hold_nothing(scope: Scope, state: State) -> str | None:
    """S15: see ``PROPERTIES``."""
    held = {held.request for held in state.held}
    for index, (spec, request) in enumerate(zip(scope.requests, state.requests, strict=True)):
        if request.status in _WITH_BLOCKS or index in held:
            continue
        for table in request.tables:
            if table.blocks or table.marker is not None or table.copy_due is not None:
                return f"{spec.name!r} is {request.status.value} and still holds {table}"
    owed = {job.job for job in unfinished_jobs(state)}
    owed.update(done for rank in state.ranks for done in rank.outbox)
    owed.update(done for done, _ in state.inbox)
    for pin in state.pins:
        if pin.job not in owed:
            return f"job {pin.job} is pinned, but no rank will ever report it"
    return None


def worker_tables_agree(scope: Scope, state: State) -> str | None:
    """S21: see ``PROPERTIES``."""
    if state.open_pass is None:
        return None
    for chunk in state.open_pass.scheduled:
        name = scope.requests[chunk.request].name
        for index, (group, workers) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
            table = state.requests[chunk.request].tables[index].blocks
            for column in columns_written(group, chunk):
                if workers[column] != table[column]:
                    return (
                        f"workers of {name!r} write block {workers[column]} in column {column} of "
                        f"group {index}, where the scheduler has block {table[column]}"
                    )
            for column in columns_read(scope, index, chunk):
                if workers[column] not in table or workers[column] == NULL_BLOCK:
                    return (
                        f"workers of {name!r} read block {workers[column]} in column {column} of "
                        f"group {index}, and the scheduler has {table}"
                    )
    return None


PROPERTIES: tuple[Property, ...] = (
    Property(
        "S10",
        "one tail, one handoff",
        "A marker is consumed once, by copy, finish, preemption or abort; no boundary is handed "
        "off twice in a generation.",
        "domain S10, R2, R9",
        markers_are_consumed_once,
    ),
    Property(
        "S15",
        "finished requests hold nothing",
        "A request that neither runs nor loads holds no blocks, unless it is held; its jobs' pins "
        "do, until the last rank.",
        "domain S15, R6",
        finished_requests_hold_nothing,
    ),
    Property(
        "S21",
        "worker tables agree",
        "In every column that a chunk writes, workers and scheduler name one block; what it reads "
        "is a block that the request still holds.",
        "domain b, domain S5, K09, K22",
        worker_tables_agree,
    ),
)
"""In the order in which they are judged."""
