"""The end of it: when nothing is going on, nothing is left (L2); and failures (A)."""

from __future__ import annotations

from cowtail.spec.monitor.events import Raised
from cowtail.spec.monitor.property import Broken, Property, block, request
from cowtail.spec.monitor.state import State

AT_REST = Property(
    "L2",
    "nothing is left at rest",
    "Once no request is live, no step in flight and no job pinned, no block has a reference, no "
    "request a table or a marker.",
    "domain L2, R6",
)
NO_EXCEPTION = Property(
    "A",
    "the engine does not fail",
    "No pass, no processing of an output and no abort ends with an exception.",
    "domain A1-A23",
)

PROPERTIES = (AT_REST, NO_EXCEPTION)


FATAL = ("schedule", "update_from_output", "finish_requests")
"""Calls after whose exception an engine cannot go on. Others may refuse what they are asked."""


def raised(state: State, event: Raised) -> None:
    """A call failed."""
    if event.call in FATAL:
        raise Broken(NO_EXCEPTION, f"{event.call} raised {event.error}")


def is_at_rest(state: State) -> bool:
    """Whether nothing is going on, and nothing is owed."""
    return (
        not state.steps
        and not state.pins
        and all(
            life.finished and life.announced and not life.loading
            for life in state.requests.values()
        )
    )


def settle(state: State) -> None:
    """A call is over, or the log is."""
    if not is_at_rest(state):
        return
    for name, life in sorted(state.requests.items()):
        if life.tables or life.markers:
            raise Broken(
                AT_REST,
                f"request {name} is over, but keeps its {'table' if life.tables else 'marker'}",
                request(name),
            )
    if state.references:
        left = min(state.references)
        raise Broken(AT_REST, f"at rest, block {left} is still referenced", block(left))
