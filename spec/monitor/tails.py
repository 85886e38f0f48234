"""Partial tails: markers, and what is handed to the connector (S7, S8, S10)."""

from __future__ import annotations

from cowtail.spec.monitor.blocks import check_block
from cowtail.spec.monitor.events import Job, Mark, Settled, Unmark
from cowtail.spec.monitor.property import Broken, Property, Unlikely, block, job, request
from cowtail.spec.monitor.state import Life, State

EXACT_BLOCK = Property(
    "S7",
    "handoffs are of the exact block",
    "A boundary state that is handed off is in its request's table, or was copied out of it in "
    "this pass.",
    "domain S7, R1, R4, R30",
)
WITHIN_PREFILL = Property(
    "S8",
    "nothing past the end of prefill",
    "No boundary state past the end of its request's prefill is handed off.",
    "domain S8, R7",
)
ONCE = Property(
    "S10",
    "handed off at most once",
    "A boundary state is handed off once for each start of a request, group and boundary.",
    "domain S10, R9",
)
IN_TABLE = Property(
    "S10.table",
    "a marker names its own table",
    "When a call is over, the block of a marker is in the table of its own request, in a group "
    "that keeps boundary states.",
    "domain S10, R9",
)
CONSUMED = Property(
    "S10.consumed",
    "a marker is consumed by what consumes markers",
    "A marker is consumed by a copy of its block, or when its request finishes or loses its "
    "table; and no marker stands when another is set.",
    "domain S10, R2, R9",
)
AT_FINISH = Property(
    "S10.finish",
    "a tail at finish is exactly at its boundary",
    "What is handed off at finish is the block that was marked, with as many tokens computed as "
    "the boundary says and none in flight.",
    "domain S10, R1, R2",
)

PROPERTIES = (EXACT_BLOCK, WITHIN_PREFILL, ONCE, IN_TABLE, CONSUMED, AT_FINISH)


def mark(state: State, event: Mark) -> None:
    """A tail is registered."""
    check_block(state, event.block, "marked")
    life = state.requests[event.request]
    standing = life.markers.get(event.group)
    if standing not in (None, (event.block, event.tokens)):
        raise Broken(
            CONSUMED,
            f"block {event.block} is marked at {event.tokens} while request {event.request} still "
            f"has {_marker(standing)}",
            request(event.request),
            block(event.block),
        )
    life.markers[event.group] = (event.block, event.tokens)
    state.touched_requests.add(event.request)


def unmark(state: State, event: Unmark) -> None:
    """A marker is consumed; by what, is known when the call is over."""
    life = state.requests[event.request]
    if life.markers.pop(event.group, None) != (event.block, event.tokens):
        raise Unlikely(f"request {event.request} has no such marker in group {event.group}")
    state.consumed.append((event.request, event.group, event.block, event.tokens))
    state.touched_requests.add(event.request)


def hand_off(state: State, event: Job) -> None:
    """A job stores boundary states."""
    life = state.requests[event.request]
    for group, number, tokens in event.puts:
        check_block(state, number, "stored")
        if not state.is_boundary_group(group):
            continue
        subjects = (request(event.request), block(number), job(event.job, event.connector))
        what = f"the state of request {event.request} at {tokens} tokens, block {number}"
        if tokens > event.prefill_end:
            raise Broken(
                WITHIN_PREFILL,
                f"{what}, is past the end of its prefill, {event.prefill_end}",
                *subjects,
            )
        copied = any(
            (copy.request, copy.group, copy.destination) == (event.request, group, number)
            for copy in state.copies
        )
        if not copied and number not in life.tables.get(group, ()):
            raise Broken(EXACT_BLOCK, f"{what}, is neither in its table nor copied", *subjects)
        handoff = (event.connector, group, tokens)
        if handoff in life.handed_off:
            raise Broken(ONCE, f"{what}, is handed off a second time", *subjects)
        life.handed_off.add(handoff)
        if event.at_finish:
            _check_at_finish(state, event, (group, number, tokens), what)


def _check_at_finish(state: State, event: Job, put: tuple[int, int, int], what: str) -> None:
    group, number, tokens = put
    subjects = (request(event.request), block(number), job(event.job, event.connector))
    if event.computed != tokens or event.in_flight:
        raise Broken(
            AT_FINISH,
            f"{what}, is handed off with {event.computed} tokens computed and {event.in_flight} "
            "in flight",
            *subjects,
        )
    if (event.request, group, number, tokens) not in state.consumed:
        raise Broken(AT_FINISH, f"{what}, was not marked", *subjects)


def settle(state: State, event: Settled, copied: set[tuple[int, int, int]]) -> None:
    """A call is over. ``copied`` are (request, group, source) of the copies that it ordered."""
    for name, group, number, tokens in state.consumed:
        life = state.requests[name]
        gone = life.finished or (name, group) in state.dropped
        if not gone and (name, group, number) not in copied:
            raise Broken(
                CONSUMED,
                f"request {name} no longer has {_marker((number, tokens))}, though its block was "
                "not copied and the request goes on",
                request(name),
                block(number),
            )
    for name in sorted(state.touched_requests):
        _check_markers(state, name, state.requests[name])


def _check_markers(state: State, name: int, life: Life) -> None:
    for group, (number, tokens) in life.markers.items():
        if not state.is_boundary_group(group):
            why = f"is in group {group}, which keeps no boundary states"
        elif number not in life.tables.get(group, ()):
            why = "is not in its table"
        else:
            continue
        raise Broken(
            IN_TABLE,
            f"{_marker((number, tokens))} of request {name} {why}",
            request(name),
            block(number),
        )


def _marker(marker: tuple[int, int] | None) -> str:
    assert marker is not None
    return f"the marker of block {marker[0]} at {marker[1]}"
