"""What to say of a name that is not known: the value, the rule, and the nearest that is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MANY = 12
"""Names that are too many for one line, if some of them come near."""


def unknown(value: str, what: str, known: Iterable[str]) -> str:
    """Return the complaint about a name.

    >>> unknown("blok", "view", ["block", "job"])
    "view 'blok': no such view; did you mean 'block'? use one of block, job"
    >>> unknown("blok", "view", ["block", "job", *"abcdefghijk"])
    "view 'blok': no such view; did you mean 'block'? 13 are known"
    """
    names = list(known)
    near = difflib.get_close_matches(value, names, n=3)
    if near and len(names) > MANY:
        others = f" or {', '.join(near[1:])}?" if near[1:] else ""
        hint = f"did you mean {near[0]!r}?{others}"
        return f"{what} {value!r}: no such {what}; {hint} {len(names)} are known"
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{what} {value!r}: no such {what}; {hint}use one of {', '.join(names)}"
