"""What a broken state, and a broken transition, is: found in a scope, and then edited by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import attrs

from cowtail.models.actions import Action
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.machine import LifecycleMachine

Replaced = tuple[ModuleType, str, Callable[..., Any]]
"""A module, a function of it, and what stands in for it while the property is judged."""


@attrs.frozen
class BrokenState:
    """A state that one clause of a property must refuse.

    The first state of ``scope`` for which ``found`` holds satisfies the property ``violates``;
    after ``edit`` the property must give a reason that has ``reason`` in it. ``replaced``: what a
    property asks of the model's own rules cannot be edited in a state, so a rule answers wrongly.
    """

    violates: str
    name: str
    scope: str
    found: Callable[[State], object]
    edit: Callable[[State], State]
    reason: str
    replaced: Replaced | None = None


@attrs.frozen
class Step:
    """A transition: the states before and after an action."""

    before: State
    action: Action
    after: State
    events: tuple[str, ...] = ()


@attrs.frozen
class BrokenStep:
    """A transition that one clause of a property must refuse: as ``BrokenState``."""

    violates: str
    name: str
    scope: str
    found: Callable[[Step], object]
    edit: Callable[[Step], Step]
    reason: str


def states(scope: Scope) -> Iterator[State]:
    """Yield the states of a scope, breadth first, each once."""
    yield LifecycleMachine(scope).initial()
    yield from (step.after for step, is_new in _walk(scope) if is_new)


def steps(scope: Scope) -> Iterator[Step]:
    """Yield the transitions of a scope, breadth first, each once."""
    return (step for step, _ in _walk(scope))


def _walk(scope: Scope) -> Iterator[tuple[Step, bool]]:
    """Yield each transition, and whether it is the first to lead to its state."""
    machine = LifecycleMachine(scope)
    start = machine.initial()
    seen = {machine.key(start)}
    waiting = deque([start])
    while waiting:
        before = waiting.popleft()
        for action, after, events in machine.successors(before):
            key = machine.key(after)
            is_new = key not in seen
            if is_new:
                seen.add(key)
                waiting.append(after)
            yield Step(before, action, after, events), is_new
