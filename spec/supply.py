"""What has to be there for a prefix to be supplied: judged on keys, not by the rules of lookup."""

from __future__ import annotations

from collections.abc import Callable

from cowtail.models.observations import Key
from cowtail.models.scope import GroupKind, Scope
from cowtail.models.state import State


def first_needed_column(scope: Scope, group: int, length: int) -> int:
    """Return the first column that ``length`` tokens still need to be continued."""
    spec = scope.groups[group]
    if spec.kind is GroupKind.SLIDING_WINDOW:
        return max(0, length - spec.window + 1) // spec.block_size
    return (length - 1) // spec.block_size if spec.is_mamba else 0


def on_every_rank(scope: Scope, state: State) -> frozenset[Key]:
    """Return the keys that every rank has an entry for in the store."""
    first, *others = (
        {Key(entry.group, entry.prefix) for entry in state.store if entry.rank == rank}
        for rank in range(scope.num_ranks)
    )
    return frozenset(first.intersection(*others))


def missing(
    scope: Scope, tokens: str, start: int, length: int, present: Callable[[Key], bool]
) -> str | None:
    """Return what tokens [start, length) lack, given which keys there are; None if nothing.

    A state has to be there at its exact token. An attention block may be keyed further on, as
    long as the key is one of the same block.
    """
    for index, group in enumerate(scope.groups):
        if group.is_mamba:
            if not present(Key(index, tokens[:length])):
                return f"group {index} has no state at exactly {length}"
            continue
        size = group.block_size
        first = max(first_needed_column(scope, index, length), start // size)
        for column in range(first, -(-length // size)):
            full = min((column + 1) * size, len(tokens))
            least = min((column + 1) * size, length)
            if not any(present(Key(index, tokens[:end])) for end in range(least, full + 1)):
                return f"group {index} has nothing for tokens {column * size} to {least}"
    return None
