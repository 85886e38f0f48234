"""What must hold in every state: the S and L numbers of the domain, each with its reason.

Each check takes a scope and a state and returns why the property fails, or None. What each
catches is in ``broken_rules`` and in the kill matrix, what each reason is for in
``broken_states``; a property that catches nothing is a defect.
"""

from __future__ import annotations

from cowtail.spec.invariants import blocks, contents, jobs, loads, requests
from cowtail.spec.invariants.property import Check, Property

__all__ = ["PROPERTIES", "Check", "Property"]

PROPERTIES: tuple[Property, ...] = (
    *blocks.PROPERTIES,
    *contents.PROPERTIES,
    *jobs.PROPERTIES,
    *requests.PROPERTIES,
    *loads.PROPERTIES,
)
"""Every invariant, in the order in which it is checked: what is narrower comes first."""
