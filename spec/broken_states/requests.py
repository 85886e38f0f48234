"""Broken states of requests: markers, what is held, workers' tables (S10, S15, S21)."""

from __future__ import annotations

import attrs

from cowtail.models.observations import Marker, Status
from cowtail.models.state import BlockTable, CopyDue, State
from cowtail.spec.broken_states import edits
from cowtail.spec.broken_states.case import BrokenState

_STATES = 1
"""The Mamba group of the scopes used here: attention is group 0."""


def _marked(state: State) -> BlockTable | None:
    request = state.requests[0]
    table = request.tables[_STATES]
    return table if table.marker is not None and request.status is Status.RUNNING else None


def _table(state: State) -> BlockTable:
    table = _marked(state)
    assert table is not None
    return table


def _marker(state: State) -> Marker:
    marker = _table(state).marker
    assert marker is not None
    return marker


def _finished(state: State) -> bool:
    return state.requests[0].status is Status.FINISHED and not state.open_pass


def _scheduled(state: State) -> bool:
    return state.open_pass is not None and bool(state.open_pass.scheduled)


def _continues(state: State) -> bool:
    return _scheduled(state) and edits.opened(state).scheduled[0].start > 0


def _worker_block(state: State, group: int, column: int, block: int) -> State:
    chunk = edits.opened(state).scheduled[0]
    table = edits.at(chunk.tables[group], column, block)
    chunk = attrs.evolve(chunk, tables=edits.at(chunk.tables, group, table))
    return edits.in_pass(state, scheduled=(chunk,))


def _another_block(state: State) -> int:
    return next(block for block in range(1, len(state.pool.keys)) if not _held(state, block))


def _held(state: State, block: int) -> bool:
    return any(block in table.blocks for table in state.requests[0].tables)


BROKEN_STATES: tuple[BrokenState, ...] = (
    BrokenState(
        "S10",
        "a boundary was handed off twice",
        "lone_producer",
        lambda state: state.requests[0].handed_off,
        lambda state: edits.request(state, handed_off=state.requests[0].handed_off * 2),
        "handed off (group, boundary) (1, 1) twice",
    ),
    BrokenState(
        "S10",
        "a request that does not run has a marker",
        "lone_producer",
        _marked,
        lambda state: edits.request(state, status=Status.PREEMPTED),
        "is preempted and still has a marker",
    ),
    BrokenState(
        "S10",
        "a finished request has a marker",
        "lone_producer",
        _marked,
        lambda state: edits.request(state, status=Status.FINISHED),
        "is finished and still has a marker",
    ),
    BrokenState(
        "S10",
        "the marker names another block",
        "lone_producer",
        _marked,
        lambda state: edits.table(
            state, _STATES, marker=attrs.evolve(_marker(state), block=_another_block(state))
        ),
        "not in its column",
    ),
    BrokenState(
        "S10",
        "no copy of the marked block is due",
        "lone_producer",
        _marked,
        lambda state: edits.table(state, _STATES, copy_due=None),
        "would be overwritten without a copy",
    ),
    BrokenState(
        "S10",
        "a copy of another block is due",
        "lone_producer",
        _marked,
        lambda state: edits.table(state, _STATES, copy_due=CopyDue(0, _another_block(state))),
        "would be overwritten without a copy",
    ),
    BrokenState(
        "S10",
        "the boundary is passed and the marker is there",
        "lone_producer",
        _marked,
        lambda state: edits.request(state, computed=state.requests[0].computed + 1),
        "passed the boundary of its tail",
    ),
    BrokenState(
        "S15",
        "a finished request has blocks",
        "lone_producer",
        _finished,
        lambda state: edits.table(state, 0, blocks=(1,)),
        "is finished and still holds",
    ),
    BrokenState(
        "S15",
        "a finished request has a marker",
        "lone_producer",
        _finished,
        lambda state: edits.table(state, _STATES, marker=Marker(1, 1)),
        "is finished and still holds",
    ),
    BrokenState(
        "S15",
        "a finished request has a copy due",
        "lone_producer",
        _finished,
        lambda state: edits.table(state, _STATES, copy_due=CopyDue(0, 1)),
        "is finished and still holds",
    ),
    BrokenState(
        "S15",
        "a waiting request has blocks",
        "lone_producer",
        lambda state: state.requests[0].status is Status.WAITING,
        lambda state: edits.table(state, 0, blocks=(1,)),
        "is waiting and still holds",
    ),
    BrokenState(
        "S15",
        "a job is pinned and in no queue",
        "lone_producer",
        lambda state: any(rank.queue for rank in state.ranks),
        lambda state: attrs.evolve(
            state, ranks=tuple(attrs.evolve(rank, queue=()) for rank in state.ranks)
        ),
        "is pinned, but no rank will ever report it",
    ),
    BrokenState(
        "S21",
        "workers write another block",
        "lone_producer",
        _scheduled,
        lambda state: _worker_block(state, 0, 0, _another_block(state)),
        "workers of 'a' write block",
    ),
    BrokenState(
        "S21",
        "workers read a block that the request has given back",
        "cow_decode",
        lambda state: _continues(state) and edits.opened(state).scheduled[0].start == 2,
        lambda state: _worker_block(state, 0, 0, _another_block(state)),
        "workers of 'a' read block",
    ),
    BrokenState(
        "S21",
        "workers read the null block",
        "cow_decode",
        lambda state: _continues(state) and edits.opened(state).scheduled[0].start == 2,
        lambda state: _worker_block(state, 0, 0, 0),
        "workers of 'a' read block 0",
    ),
)
"""In the order of the properties."""
