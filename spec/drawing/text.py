"""How much room text takes, without a font to ask, and how it is broken into lines.

>>> stacked(("admit", "extend"))
('admit', 'extend')
>>> stacked(("admit", "extend", "abort", "preempt", "execute", "run_job"), width=120)
('admit, extend,', 'abort, preempt,', 'execute, run_job')
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FONT_FAMILY = "Helvetica, Arial, Liberation Sans, sans-serif"
LABEL_SIZE = 12
NODE_SIZE = 14
LINE_HEIGHT = 1.25
"""In units of the font size."""

MAX_STACK = 4
"""A label of more actions than this is joined with commas and wrapped."""

_CLASSES = {
    "ijl'": 0.222,
    "!,./:;I[\\]ft |": 0.278,
    "()`r-{}": 0.333,
    '"*^ckszxvyJ': 0.5,
    "#$?L_abdeghnopqu0123456789": 0.556,
    "+<=>~FTZABEKPSVXY&": 0.667,
    "CDHNRUwGOQ": 0.778,
    "mM%W": 0.944,
}
_WIDTHS = {character: width for characters, width in _CLASSES.items() for character in characters}
_WIDEST = 1.1
_BOLD = 1.08
_MARGIN = 1.1
"""Readers whose system has another sans-serif font get glyphs up to this much wider."""


def text_width(text: str, size: int, *, bold: bool = False) -> int:
    """Return the width in pixels that a line of text needs, rounded up to an even number."""
    ems = sum(_WIDTHS.get(character, _WIDEST) for character in text)
    return 2 * math.ceil(ems * size * _MARGIN * (_BOLD if bold else 1) / 2)


def text_height(lines: int, size: int) -> int:
    """Return the height in pixels of a number of lines, rounded up to an even number."""
    return 2 * math.ceil(lines * size * LINE_HEIGHT / 2)


def wrapped(words: Sequence[str], size: int, width: int) -> tuple[str, ...]:
    """Break words into lines no wider than ``width`` pixels, if every word is that narrow."""
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return tuple(lines)


def stacked(actions: Sequence[str], width: int = 190) -> tuple[str, ...]:
    """Return the lines of an arrow's label: one action each, or all of them joined and wrapped."""
    if len(actions) <= MAX_STACK:
        return tuple(actions)
    listed = [f"{action}," for action in actions[:-1]] + [actions[-1]]
    return wrapped(listed, LABEL_SIZE, width)
