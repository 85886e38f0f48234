"""Things that the scopes must be able to do, so that "holds" never means "nothing happened"."""

from __future__ import annotations

import attrs


@attrs.frozen
class SometimesProperty:
    """An event that must happen in the named scope; ``event`` is the model's own name for it."""

    event: str
    scope: str
    source: str


SOMETIMES: tuple[SometimesProperty, ...] = (
    SometimesProperty("tail registered", "lone_producer", "domain d"),
    SometimesProperty("tail handed off at finish", "lone_producer", "R1"),
    SometimesProperty("tail handed off by copy-on-write", "lone_producer", "R9"),
    SometimesProperty("tail dropped: tokens in flight", "lone_producer", "R2"),
    SometimesProperty("tail dropped: preempted", "lone_producer", "R9"),
    SometimesProperty("pin outlives its request", "lone_producer", "R6"),
    SometimesProperty("put failed", "lone_producer", "R18"),
    SometimesProperty("repeated report ignored", "lone_producer", "counted once"),
    SometimesProperty("aborted while waiting", "lone_producer", "domain e"),
    SometimesProperty("aborted while running", "lone_producer", "domain e"),
    SometimesProperty("aborted while preempted", "lone_producer", "domain e"),
    SometimesProperty("handoff refused", "cow_decode", "R7"),
    SometimesProperty("producer copy-on-write", "cow_decode", "R9"),
    SometimesProperty("consumer copy-on-write", "shared_prefix", "domain c"),
    SometimesProperty(
        "consumer copy-on-write from a registered tail", "shared_prefix", "domain c, R9"
    ),
    SometimesProperty("everything exists already", "shared_prefix", "first write wins"),
    SometimesProperty("full state handed off", "unequal_blocks", "R30"),
    SometimesProperty("reported out of order", "unequal_blocks", "R6"),
    SometimesProperty("prefix hit", "shared_prefix", "domain c"),
    SometimesProperty("consumer copy-on-write", "same_pass", "R17"),
    SometimesProperty("preempted with a step in flight", "async_two_steps", "domain d"),
    SometimesProperty("preempted with a job in flight", "async_two_steps", "K19, K26"),
    SometimesProperty("stale output ignored", "async_two_steps", "domain d"),
    SometimesProperty("retired job skipped", "async_two_steps", "domain f"),
    SometimesProperty("prefix save failed", "faulty_store", "R19"),
    SometimesProperty("preempted with a job in flight", "two_generations", "K19, K26"),
    SometimesProperty("retired job skipped", "two_generations", "domain f"),
    SometimesProperty("resumed after preemption", "two_generations", "domain d"),
    SometimesProperty("resumed after preemption", "preempt_under_pressure", "domain d"),
    SometimesProperty("preempted with a job in flight", "preempt_under_pressure", "K19, K26"),
)
"""Every sometimes-property, by scope."""

NEVER: dict[str, str] = {
    "tail dropped: boundary passed": (
        "without speculative tokens every allocation past a registered tail copies it first, and "
        "the copy consumes the marker: R2's guard on the boundary is a second line of defence. "
        "A unit test takes the guard by itself."
    ),
    "tail refused by the connector": (
        "a running request of a producer has a tracker whose prefill covers its boundary"
    ),
}
"""Events that no scope reaches, each with the reason; a test holds the explorer to it."""
