"""The SVG paths of arrows: what leads from node to node, and the head at its end."""

from __future__ import annotations

from itertools import pairwise

from cowtail.spec.drawing.geometry import LOOP_REACH, PlacedArrow, Point


def arrow_path(placed: PlacedArrow) -> tuple[str, str]:
    """Return the path data of an arrow's line and of its head."""
    return _loop(placed.corners) if placed.arrow.is_loop else _path(placed.corners)


def short(value: float) -> str:
    """Return a coordinate as short as it can be written with two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _path(corners: tuple[Point, ...]) -> tuple[str, str]:
    """Return the path of an arrow and of its head, which touches the last corner from outside."""
    x, y = corners[-1]
    back = -1 if y > corners[-2][1] else 1
    ends = [*corners[:-1], (x, y + 7 * back)]
    parts = [f"M{short(ends[0][0])} {short(ends[0][1])}"]
    for (from_x, from_y), (to_x, to_y) in pairwise(ends):
        if from_x == to_x:
            parts.append(f"V{short(to_y)}")
        else:
            middle = short((from_y + to_y) / 2)
            parts.append(
                f"C{short(from_x)} {middle} {short(to_x)} {middle} {short(to_x)} {short(to_y)}"
            )
    head = f"M{short(x)} {short(y + back)}l-4.5 {9 * back}h9z"
    return "".join(parts), head


def _loop(corners: tuple[Point, ...]) -> tuple[str, str]:
    """Return the path of a loop at the right side of its node, and of its head."""
    (x, top), (_, bottom) = corners
    reach = x + LOOP_REACH - 2
    path = (
        f"M{short(x)} {short(top)}C{short(reach)} {short(top - 6)} "
        f"{short(reach)} {short(bottom + 6)} "
        f"{short(x + 7)} {short(bottom)}"
    )
    return path, f"M{short(x + 1)} {short(bottom)}l8.5 -4.5v9z"
