"""Why some branches of the rules are taken in no scope: the one table of reasons.

A place is named by function, by the text of its decision and by its outcome, never by a line
number, so that it survives edits elsewhere; ``*`` stands for every function, text or outcome.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import attrs

from cowtail.spec.probes import Branch


@attrs.frozen
class Place:
    """Which branches are meant. ``function`` may contain ``*``; ``text`` and ``outcome`` be it."""

    function: str
    text: str = "*"
    outcome: str = "*"

    def names(self, branch: Branch) -> bool:
        """Whether a branch is meant."""
        return (
            fnmatchcase(branch.function, self.function)
            and self.text in ("*", branch.text)
            and self.outcome in ("*", branch.outcome)
        )


@attrs.frozen
class Reason:
    """Why no scope reaches some branches."""

    sentence: str
    places: tuple[Place, ...]


REASONS: tuple[Reason, ...] = (
    Reason(
        "The explorer takes enabled actions only; what a refused action says is for tests.",
        (
            Place("*", "if guard:", "true"),
            Place("*", "if plan.guard:", "true"),
            Place("lifecycle.step", "except NotEnabled as error:", "caught"),
        ),
    ),
)
"""Every reason, in the order of the page."""
