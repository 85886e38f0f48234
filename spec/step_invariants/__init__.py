"""What must hold of every transition: judged on the states before and after an action."""

from __future__ import annotations

from cowtail.spec.step_invariants import releases, stores, tails
from cowtail.spec.step_invariants.property import StepCheck, StepProperty

__all__ = ["STEP_PROPERTIES", "StepCheck", "StepProperty"]

STEP_PROPERTIES: tuple[StepProperty, ...] = (
    *tails.STEP_PROPERTIES,
    *releases.STEP_PROPERTIES,
    *stores.STEP_PROPERTIES,
)
"""Every invariant of transitions, in the order in which they are judged."""
