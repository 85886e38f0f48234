"""The whole state of an engine as one value: equal values go on alike.

All that can be reached from scheduler, ranks, memories and store, attribute by attribute;
objects stand for themselves by the order in which they are met, so that two states are equal if
they are the same up to which object is which. Left out are counters that only grow and the
configuration, which nobody changes; locks, functions and the like count as their type.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.session import Session

COUNTERS = frozenset(
    {
        "current_step",
        "num_executed_steps",
        "processed_step_seq",
        "sched_step_seq",
    }
)
"""Numbers of steps. A state in which only they differ counts as the same."""
_OPENED = ("vllm.v1.", "vllm.distributed.", "cowtail.impl.")
"""Where the classes come from whose objects are looked into."""
_CLOSED = ("Config", "Spec", "Ledger", "View", "Session")
"""Ends of the names of classes that are not: settled once, or the harness's own books."""
_PLAIN = (type(None), bool, int, float, str, bytes, Enum)

State = tuple[object, ...]


def whole_state(session: Session) -> State:
    """Return the state of a session's engine, to be compared with another of the same session."""
    roots = [_roots(engine) for engine in session.engines]
    return tuple(_told((*roots, session.store.values)))


def _roots(engine: Session) -> tuple[Any, ...]:
    return (
        engine.scheduler,
        [rank.worker for rank in engine.ranks],
        [(rank.outbox, rank.reported_jobs, rank.loaded) for rank in engine.ranks],
        [(rank.failed_loads, rank.failed_blocks) for rank in engine.ranks],
        engine.memories,
        engine.device,
    )


def _told(roots: object) -> Iterator[object]:
    """Yield each object that can be reached, once, as its type and what it holds."""
    numbers: dict[int, int] = {}
    waiting: deque[Any] = deque()
    kept: list[Any] = []

    def named(value: Any) -> object:
        if isinstance(value, _PLAIN):
            return value
        if id(value) not in numbers:
            numbers[id(value)] = len(numbers)
            waiting.append(value)
            kept.append(value)  # so that its id is not used again
        return ("object", numbers[id(value)])

    named(roots)
    while waiting:
        value = waiting.popleft()
        yield type(value).__name__
        yield from ((key, named(part)) for key, part in _parts(value))


def _parts(value: Any) -> Iterator[tuple[object, Any]]:
    """Yield what an object holds, each part with its place."""
    if isinstance(value, queue.Queue):
        yield "queue", list(value.queue)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield (key if isinstance(key, _PLAIN) else repr(key)), part
    elif isinstance(value, set | frozenset):
        for part in sorted(value, key=lambda part: str(getattr(part, "request_id", part))):
            yield "in it", part
    elif isinstance(value, list | tuple | deque):
        yield from enumerate(value)
    elif _is_opened(value):
        for name in sorted(_attributes(value) - COUNTERS):
            yield name, getattr(value, name, None)


def _attributes(value: Any) -> set[str]:
    names = set(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
    if isinstance(value, threading.Thread):
        names -= set(vars(threading.Thread()))
    return names - {"__weakref__", "__dict__"}


def _is_opened(value: Any) -> bool:
    kind = type(value)
    module = f"{kind.__module__}."
    return module.startswith(_OPENED) and not kind.__name__.endswith(_CLOSED)
