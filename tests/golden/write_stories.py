"""Write the golden traces: for each story, the shortest way to its event, then down to rest.

    python tests/golden/write_stories.py [NAME ...]

Golden traces are kept as they are when the model changes: they are what it must still do. Run
this for a new story, or when a change of the rules makes an old one impossible on purpose.
"""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

import attrs

from cowtail.harness.lockstep import next_to_drain
from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.machine import LifecycleMachine
from cowtail.spec.scopes import scope_named
from cowtail.spec.traces import Trace, write_trace

FOLDER = Path(__file__).parent


@attrs.frozen
class Story:
    """One thing that must go on working: the event that makes it, in a named scope."""

    name: str
    scope: str
    event: str
    sentence: str


STORIES = (
    Story(
        "tail_by_copy",
        "cow_decode",
        "tail handed off by copy-on-write",
        "The request decodes past its tail; the durable copy is handed off (R9, R15).",
    ),
    Story(
        "tail_at_finish_by_abort",
        "lone_producer",
        "tail handed off at finish",
        "An abort exactly at the boundary hands off the table's own block (R1, R6).",
    ),
    Story(
        "tail_dropped_for_tokens_in_flight",
        "lone_producer",
        "tail dropped: tokens in flight",
        "An abort with the step still in flight consumes the marker and emits nothing (R2).",
    ),
    Story(
        "tail_dropped_by_preemption",
        "lone_producer",
        "tail dropped: preempted",
        "A preemption takes the blocks, and the marker with them (R9).",
    ),
    Story(
        "preemption_with_a_job_in_flight",
        "async_two_steps",
        "preempted with a job in flight",
        "The job's pins outlast the table that the blocks came from (K19, K26).",
    ),
    Story(
        "stale_output",
        "async_two_steps",
        "stale output ignored",
        "A preempted request's step was in flight; what it sampled does not count.",
    ),
    Story(
        "consumer_copy_from_a_registered_tail",
        "shared_prefix",
        "consumer copy-on-write from a registered tail",
        "A second request hits inside the first one's tail and copies before it writes (R9).",
    ),
    Story(
        "failed_prefix_save",
        "faulty_store",
        "prefix save failed",
        "A put fails: the durable offset stays, and the pin goes all the same (R18, R19).",
    ),
    Story(
        "reports_out_of_order",
        "unequal_blocks",
        "reported out of order",
        "A rank reports its second job before its first; each pin goes by itself (R6).",
    ),
    Story(
        "repeated_report",
        "lone_producer",
        "repeated report ignored",
        "A rank reports a job twice; it is counted once.",
    ),
)


def shortest_story(scope: Scope, event: str) -> tuple[Action, ...]:
    """Return the shortest run in which the event happens, and the actions that drain it."""
    machine = LifecycleMachine(scope)
    start = machine.initial()
    seen = {machine.key(start)}
    queue: deque[tuple[State, tuple[Action, ...]]] = deque([(start, ())])
    while queue:
        state, path = queue.popleft()
        for action, successor, events in machine.successors(state):
            taken: tuple[Action, ...] = (*path, action)
            if event in events:
                while (drain := next_to_drain(lifecycle.enabled(scope, successor))) is not None:
                    taken = (*taken, drain)
                    successor = lifecycle.step(scope, successor, drain).state
                return taken
            key = machine.key(successor)
            if key not in seen:
                seen.add(key)
                queue.append((successor, taken))
    raise ValueError(f"event {event!r} never happens in scope {scope.name!r}")


def main(names: list[str]) -> None:
    """Write the stories of these names, or all."""
    for story in STORIES:
        if names and story.name not in names:
            continue
        scope = scope_named(story.scope)
        trace = Trace(scope, shortest_story(scope, story.event), note=story.sentence)
        write_trace(FOLDER / f"{story.name}.jsonl", trace)
        print(f"{story.name}: {len(trace.actions)} actions")


if __name__ == "__main__":
    main(sys.argv[1:])
