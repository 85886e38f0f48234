"""Lookups and free fences that somebody got wrong: how far is looked, when blocks may go."""

from __future__ import annotations

from cowtail.impl.torch_engine.fence import FreeFence
from cowtail.impl.torch_engine.lookup import JointLookup


class FloorsLookupToBlocks(JointLookup):
    """The bound of a lookup is floored to whole blocks, although finer tails are cached."""

    def bound(self, known: int) -> int:
        """Return the bound, floored to the LCM."""
        return self.layout.saved_whole(super().bound(known))


class FreesAtOnce(FreeFence):
    """Blocks are given back although steps in flight may write them."""

    def must_wait(self) -> bool:
        """Wait for nothing."""
        return False
