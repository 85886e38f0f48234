"""Whether the bytes of a block are what a key says."""

from __future__ import annotations

from cowtail.models.observations import Key
from cowtail.models.scope import Scope
from cowtail.models.state import Memory


def contradiction(scope: Scope, memory: Memory, block: int, key: Key) -> str | None:
    """Return how a block's bytes contradict a key, or None."""
    group = scope.groups[key.group]
    page = memory[block]
    if group.is_mamba:
        return None if page[0] == key.prefix else f"it holds the state {page[0]!r}"
    first = (len(key.prefix) - 1) // group.block_size * group.block_size
    for position in range(first, len(key.prefix)):
        if page[position - first] != key.prefix[: position + 1]:
            return f"slot {position - first} holds {page[position - first]!r}"
    return None
