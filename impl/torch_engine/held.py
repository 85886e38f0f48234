"""Finished requests whose blocks something still reads or writes.

A load that is under way writes into its request's blocks, whatever became of the request; a peer
that saves asynchronously reads them. The blocks are given back once, after the last rank.
"""

from __future__ import annotations

import attrs

from cowtail.models.observations import Held


@attrs.define(eq=False)
class HeldEntry:
    """A finished request, and the ranks that are not done with its blocks."""

    request: str
    ranks_owed: list[int]


class HeldRequests:
    """Finished requests that keep their tables, in the order finished."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.entries: dict[str, HeldEntry] = {}

    def hold_for_load(self, name: str, ranks_owed: list[int]) -> None:
        """Keep the blocks until the ranks that have not reported the load have done so."""
        self.entries[name] = HeldEntry(name, list(ranks_owed))

    def hold_for_sends(self, name: str) -> None:
        """Keep the blocks until every rank has sent them to all who save them."""
        self.entries[name] = HeldEntry(name, list(range(self.num_ranks)))

    def done(self, name: str, rank: int) -> bool:
        """Count a rank out; return whether the blocks may go now."""
        entry = self.entries.get(name)
        if entry is None or rank not in entry.ranks_owed:
            return False
        entry.ranks_owed.remove(rank)
        if not self.is_over(entry):
            return False
        del self.entries[name]
        return True

    def is_over(self, entry: HeldEntry) -> bool:
        """Whether no rank needs the blocks any more."""
        return not entry.ranks_owed

    def views(self) -> tuple[Held, ...]:
        """Return what can be observed of them."""
        return tuple(Held(each.request, tuple(each.ranks_owed)) for each in self.entries.values())
