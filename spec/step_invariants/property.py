"""What a property of transitions is: what it says, where from, and its check."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from cowtail.models.actions import Action
from cowtail.models.scope import Scope
from cowtail.models.state import State

StepCheck = Callable[[Scope, State, Action, State, tuple[str, ...]], str | None]


@attrs.frozen
class StepProperty:
    """An invariant of transitions: judged on the states before and after an action."""

    identifier: str
    name: str
    sentence: str
    source: str
    check: StepCheck
