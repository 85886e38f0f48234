"""What the model raises: an action that is not possible now, or a rule that must never fail."""

from __future__ import annotations


class NotEnabled(Exception):
    """An action is not possible in a state; ``guard`` says which condition failed and why."""

    def __init__(self, guard: str) -> None:
        super().__init__(guard)
        self.guard = guard


class LifecycleError(Exception):
    """A rule was applied to a state that it must never meet: a defect, never bad input."""
