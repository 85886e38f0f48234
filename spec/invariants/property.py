"""What a property of states is: identifier, name, one sentence, source, and its check."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from cowtail.models.scope import Scope
from cowtail.models.state import State

Check = Callable[[Scope, State], str | None]


@attrs.frozen
class Property:
    """An invariant of the model; ``check`` returns why it fails, or None."""

    identifier: str
    name: str
    sentence: str
    source: str
    check: Check
