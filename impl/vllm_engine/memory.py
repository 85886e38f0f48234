"""Symbolic KV memory: what the bytes of every block stand for.

An attention slot holds the token prefix whose KV it stands for, a Mamba block the prefix that
its state summarises; prefixes are strings, ``""`` means never written. Attention and Mamba
groups share one id space of blocks, and a block written as one kind no longer holds the other.

>>> memory = Memory(slots=2)
>>> memory.write_slot(5, 1, "ab")
>>> memory.why_not_attention(5, ("a", "ab"))
"slot 0 of block 5 holds nothing, not 'a'"
>>> memory.write_state(5, "abc")
>>> memory.why_not_state(5, "abc") is None
True
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

Page = str | tuple[str, ...]
"""A snapshot of a block: a Mamba state, or the slots of an attention block."""


def show(prefix: str) -> str:
    """Return a prefix as a message shows it: short ones whole, long ones by end and length."""
    if not prefix:
        return "nothing"
    return repr(prefix) if len(prefix) <= 12 else f"'…{prefix[-6:]}' ({len(prefix)} tokens)"


@functools.lru_cache(maxsize=4096)
def line_of(tokens: str) -> tuple[str, ...]:
    """Return the prefix that each position of ``tokens`` stands for."""
    return tuple(tokens[: end + 1] for end in range(len(tokens)))


class Memory:
    """The KV memory of one rank. Addresses are block ids; ``slots`` is a block's token count.

    ``writes`` counts what was written, so that who has looked knows whether to look again.
    """

    def __init__(self, slots: int) -> None:
        """Start with every block unwritten."""
        self._slots = slots
        self._pages: dict[int, list[str] | str] = {}
        self.writes = 0

    def write_slot(self, block: int, slot: int, prefix: str) -> None:
        """Write one token's KV. A block that held a state starts unwritten."""
        self.writes += 1
        page = self._pages.get(block)
        if not isinstance(page, list):
            page = [""] * self._slots
            self._pages[block] = page
        page[slot] = prefix

    def write_state(self, block: int, prefix: str) -> None:
        """Overwrite the block with the recurrent state after ``prefix``."""
        self.writes += 1
        self._pages[block] = prefix

    def page(self, block: int) -> Page:
        """Return a snapshot of a block."""
        page = self._pages.get(block, "")
        return tuple(page) if isinstance(page, list) else page

    def restore(self, block: int, page: Page) -> None:
        """Overwrite a block with a snapshot."""
        self.writes += 1
        self._pages[block] = list(page) if isinstance(page, tuple) else page

    def why_not_attention(self, block: int, expected: Sequence[str], begin: int = 0) -> str | None:
        """Return why the block's first slots, from ``begin`` on, are not ``expected``; or None."""
        page = self._pages.get(block, "")
        held: Sequence[str] = page if isinstance(page, list) else [""] * self._slots
        for slot, prefix in enumerate(expected[begin:], begin):
            if held[slot] != prefix:
                what = show(held[slot])
                if isinstance(page, str) and page:
                    what = f"a Mamba state after {show(page)}"
                return f"slot {slot} of block {block} holds {what}, not {show(prefix)}"
        return None

    def why_not_state(self, block: int, prefix: str) -> str | None:
        """Return why the block is not the state after ``prefix``; None if it is."""
        page = self._pages.get(block, "")
        if page == prefix:
            return None
        held = "attention slots" if isinstance(page, list) else show(page)
        return f"block {block} holds {held}, not the state after {show(prefix)}"
