"""Where the recurrent state of each running request is: the workers' account of Mamba columns.

A step writes the state at its last sure token into the running column, and the states after its
drafts into the scratch columns behind it. The state that counts is then as many columns further
as drafts were accepted. The next step reads it there, or copies it to its own running column.
"""

from __future__ import annotations

import math

import attrs

from cowtail.impl.torch_engine.request import ScheduledChunk

Move = tuple[int, int]
"""Two columns: a page is copied from the first to the second."""


@attrs.frozen
class StatePlan:
    """What one chunk does with the columns of one Mamba group.

    ``before``: the state moves to the running column. ``read``: where the forward pass reads it,
    None for a chunk that starts from nothing. ``after``: a state on a block boundary moves to
    the column of that block.
    """

    running: int
    read: int | None
    before: Move | None
    after: Move | None


@attrs.frozen
class _Place:
    """``running``: the running column of the last chunk; ``current``: where the state is."""

    running: int
    current: int


class StateColumns:
    """The columns of one Mamba group, ``block_size`` tokens each. Chunks are planned in order."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._places: dict[str, _Place] = {}

    def plan(self, chunk: ScheduledChunk) -> StatePlan:
        """Return the chunk's use of columns, and remember where it leaves the state."""
        running = math.ceil(chunk.end / self.block_size) - 1
        read, before = None, None
        if chunk.start > 0:
            place = self._place(chunk)
            stays = place.running == running
            read = place.current if stays else running
            if not stays and place.current != running:
                before = (place.current, running)
        current, after = self.settle(chunk, running)
        self._places[chunk.request.name] = _Place(running, current)
        return StatePlan(running, read, before, after)

    def _place(self, chunk: ScheduledChunk) -> _Place:
        """Return where the state is; a life begins with a hit."""
        if chunk.admitted:
            column = self.column_hit(chunk)
            return _Place(column, column)
        return self._places[chunk.request.name]

    def column_hit(self, chunk: ScheduledChunk) -> int:
        """Return where a hit has left its state: in the column of its last token."""
        return (chunk.start - 1) // self.block_size

    def settle(self, chunk: ScheduledChunk, running: int) -> tuple[int, Move | None]:
        """Return where the state is after a chunk, and what moves for a block boundary's sake.

        The accepted drafts may pass the end of a block, whose state is in a scratch column then.
        """
        if not chunk.drafts:
            return running, None
        current, first = running + chunk.accepted, chunk.start + 1
        boundary = (first + chunk.accepted) // self.block_size * self.block_size
        if boundary < first:
            return current, None
        source, column = running + boundary - first, boundary // self.block_size - 1
        if column == running:
            current = running
        return current, (source, column) if source != column else None
