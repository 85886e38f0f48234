"""Errors of the model that are not defects: an action that is not possible now."""

from __future__ import annotations


class NotEnabled(Exception):
    """An action is not possible in a state; ``guard`` says which condition failed and why."""

    def __init__(self, guard: str) -> None:
        super().__init__(guard)
        self.guard = guard
