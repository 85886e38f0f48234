"""Deliberately broken states and transitions: what each *clause* of a property is there to refuse.

A broken rule shows that a property is violated by a mistake that could be made; it stops at the
first clause that refuses. Here every clause has a state of its own, reached in a scope and then
edited by hand: whether a mistake can lead to it is not asked.
"""

from __future__ import annotations

from cowtail.spec.broken_states import blocks, contents, jobs, loads, requests, transitions
from cowtail.spec.broken_states.case import BrokenState, BrokenStep

__all__ = ["BROKEN_STATES", "BROKEN_STEPS", "BrokenState", "BrokenStep"]

BROKEN_STATES: tuple[BrokenState, ...] = (
    *blocks.BROKEN_STATES,
    *contents.BROKEN_STATES,
    *jobs.BROKEN_STATES,
    *requests.BROKEN_STATES,
    *loads.BROKEN_STATES,
)
"""Every broken state, in the order of the properties."""

BROKEN_STEPS: tuple[BrokenStep, ...] = transitions.BROKEN_STEPS
"""Every broken transition."""
