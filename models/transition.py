"""What one action does: the next state, its observable effects, and its story."""

from __future__ import annotations

import attrs

from cowtail.models.observations import Effects
from cowtail.models.state import State


@attrs.frozen
class Transition:
    """The result of one action.

    ``effects`` is what an implementation must show as well. ``events`` names what happened in
    the words of the requirements, for statistics, sometimes-properties and diagrams.
    """

    state: State
    effects: Effects = attrs.field(factory=Effects)
    events: tuple[str, ...] = ()
