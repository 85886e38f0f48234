"""What to say of a name that is not known: the value, the rule, and the nearest that is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(value: str, what: str, known: Iterable[str]) -> str:
    """Return the complaint about a name.

    >>> unknown("blok", "view", ["block", "job"])
    "view 'blok': no such view; did you mean 'block'? use one of block, job"
    """
    names = list(known)
    near = difflib.get_close_matches(value, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{what} {value!r}: no such {what}; {hint}use one of {', '.join(names)}"
