"""What a layout is: boxes for nodes and labels, corners for arrows.

All lengths are pixels; x grows to the right, y grows downward.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from cowtail.spec.drawing.arrows import Arrow

LOOP_REACH = 24
"""How far a loop reaches out of the right side of its node."""

START_REACH = 30
"""Room at the left of an initial node for the dot and the arrow that mark it."""

Point = tuple[float, float]


@attrs.frozen
class Box:
    """A rectangle by its left upper corner and its size."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The x of the right side."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The y of the lower side."""
        return self.top + self.height

    @property
    def centre(self) -> Point:
        """The middle."""
        return self.left + self.width / 2, self.top + self.height / 2

    def overlaps(self, other: Box) -> bool:
        """Whether the two have more than an edge in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


@attrs.frozen
class PlacedNode:
    """A node: the lines of its label, and its box."""

    node: Hashable
    lines: tuple[str, ...]
    box: Box


@attrs.frozen
class PlacedArrow:
    """An arrow: the lines of its label, their box, and the corners of its path.

    The path leads from the source's border to the target's, through ``corners``: neighbours with
    the same x are joined by a vertical line, others by a curve that leaves both vertically. A
    loop has two corners, both on the right side of its node.
    """

    arrow: Arrow
    lines: tuple[str, ...]
    label: Box
    corners: tuple[Point, ...]


@attrs.frozen
class Layout:
    """A drawing's geometry; everything lies between (0, 0) and (width, height)."""

    nodes: tuple[PlacedNode, ...]
    arrows: tuple[PlacedArrow, ...]
    width: float
    height: float
    crossings: int
