"""Which full blocks are worth a key: all attention blocks, and of states and windows those kept.

A state can only be resumed from at its own token, and a window only from its right edge. Keeping
one an interval, and those where the prompt will be resumed, leaves the pool to blocks that count.
"""

from __future__ import annotations

from cowtail.impl.torch_engine.layout import CacheLayout, LookupSet
from cowtail.models.scope import GroupKind


class Retention:
    """The retention rules of one scope. ``interval`` in tokens; None keeps every boundary."""

    def __init__(self, layout: CacheLayout, interval: int | None) -> None:
        self.layout = layout
        self.interval = interval

    def keeps(self, group: int, column: int, prompt_length: int, junction: int) -> bool:
        """Return whether the full block at ``column`` gets a key, and is stored.

        ``junction``: where a sibling's hit ended, in tokens; 0 if unknown.
        """
        each = self.layout.lookup_set(group)
        if each.kind is GroupKind.FULL_ATTENTION:
            return True
        if each.kind is GroupKind.MAMBA:
            return self._keeps_state(each, column, prompt_length, junction)
        return self._keeps_window(each, column, prompt_length, junction)

    def resume_points(self, prompt_length: int, junction: int) -> list[int]:
        """Return the aligned lengths at which a later request may resume the prompt."""
        lcm, unit = self.layout.lcm, self.layout.alignment
        points = [prompt_length - 1]
        if self.layout.drops:
            points = [
                max(length // lcm * lcm - lcm, 0) for length in (prompt_length - 1, prompt_length)
            ]
        if junction:
            points.append(junction)
        return [point // unit * unit for point in points]

    def blocks_beyond(self, each: LookupSet) -> int:
        """Return how many blocks beyond its hit a window is looked up, and so kept."""
        return int(each.eagle)

    def _keeps_state(self, each: LookupSet, column: int, prompt_length: int, junction: int) -> bool:
        if self.interval is None:
            return True
        blocks = self.interval // each.block_size
        if self.interval > 0 and (blocks <= 1 or (column + 1) % blocks == 0):
            return True
        return any(
            column == point // each.block_size - 1
            for point in self.resume_points(prompt_length, junction)
        )

    def _keeps_window(
        self, each: LookupSet, column: int, prompt_length: int, junction: int
    ) -> bool:
        """Return whether a lookup that ends on a segment or a resume point reads the block.

        It reads ``run`` blocks, some of them ``beyond`` where the hit will end.
        """
        size, unit = each.block_size, self.layout.alignment
        if unit % size:
            return True
        beyond = self.blocks_beyond(each)
        run = each.window_blocks + beyond
        segment = unit if self.interval is None else self.interval
        if segment:
            blocks = segment // size
            if run >= blocks:
                return True
            if column >= beyond and (column - beyond) % blocks >= blocks - run:
                return True
        if self.interval is None:
            return False
        ends = [point // size + beyond for point in self.resume_points(prompt_length, junction)]
        return any(end - run <= column < end for end in ends)
