"""Deferred frees: blocks that are given back while steps in flight may still write them.

Stream order protects blocks that only steps use. A load is written by another stream, so blocks
that it may get must not be those of a step in flight. The fence keeps them until the steps that
were in flight at the moment of the free have been processed.

>>> pool = BlockPool(4)
>>> fence = FreeFence(pool, defers=True)
>>> blocks = pool.allocate(2)
>>> fence.step_dispatched()
>>> fence.give_back(blocks)
>>> fence.waiting(), pool.free_blocks()
(((1, (1, 2)),), (3,))
>>> fence.step_processed()
>>> fence.waiting(), pool.free_blocks()
((), (1, 2, 3))
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.models.observations import NULL_BLOCK


@attrs.define(eq=False)
class _Waiting:
    """Blocks that wait for ``steps`` more outputs to be processed."""

    steps: int
    blocks: tuple[int, ...]


class FreeFence:
    """Gives blocks back to a pool: at once, or (``defers``) when no step in flight has them.

    ``steps_in_flight`` counts steps dispatched whose output has not been processed.
    """

    def __init__(self, pool: BlockPool, *, defers: bool) -> None:
        self.pool = pool
        self.defers = defers
        self.steps_in_flight = 0
        self._waiting: list[_Waiting] = []

    def give_back(self, *sequences: Iterable[int]) -> None:
        """Drop one reference of each block listed: at once sequence by sequence, or later as one.

        Nulls are skipped.
        """
        if not self.must_wait():
            for sequence in sequences:
                self.pool.free(sequence)
            return
        real = tuple(b for sequence in sequences for b in sequence if b != NULL_BLOCK)
        if real:
            self._waiting.append(_Waiting(self.steps_in_flight, real))

    def must_wait(self) -> bool:
        """Whether blocks given back now may be in use by a step."""
        return self.defers and self.steps_in_flight > 0

    def step_dispatched(self) -> None:
        """Count a step in."""
        self.steps_in_flight += 1

    def step_processed(self) -> None:
        """Count the oldest step out, and free what waited for no other, in the order given."""
        self.steps_in_flight -= 1
        for each in self._waiting:
            each.steps -= 1
        free = [each for each in self._waiting if each.steps == 0]
        self._waiting = [each for each in self._waiting if each.steps > 0]
        for each in free:
            self.pool.free(each.blocks)

    def waiting(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return what waits, in the order given back: outputs still to process, and blocks."""
        return tuple((each.steps, each.blocks) for each in self._waiting)
