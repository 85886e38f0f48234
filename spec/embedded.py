"""Shortest traces inside the explanations: generated, so that they cannot go stale.

A page marks the place with ``<!-- trace: BROKEN_RULE -->`` and ``<!-- end of trace -->`` around a
fenced block. ``python -m cowtail.spec.embedded docs/explanation`` explores each rule's scope with
the rule broken, and fills every place with the shortest counterexample.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cowtail.spec.broken_rules import broken_rule
from cowtail.spec.checks import check_scope
from cowtail.spec.files import write_text
from cowtail.spec.narration import narrate
from cowtail.spec.scopes import scope_named

PLACE = re.compile(r"<!-- trace: (?P<rule>\w+) -->\n.*?<!-- end of trace -->", re.DOTALL)


def told(rule_name: str) -> str:
    """Return the shortest trace that violates a property once a rule is broken, as Markdown.

    Raises ValueError for an unknown rule, RuntimeError if nothing is violated.
    """
    with broken_rule(rule_name) as rule:
        scope = scope_named(rule.scope)
        violation = check_scope(scope).violation
        if violation is None:
            raise RuntimeError(f"{rule_name} violates nothing in {rule.scope}")
        lines = list(narrate(scope, violation.path))
    if violation.cycle:
        lines.append(f"   and for ever: {', '.join(map(repr, violation.cycle))}")
    return "\n".join(
        [
            f"Scope `{scope.name}`; `cowtail explore {scope.name} --fault {rule_name}`; "
            f"{len(violation.path)} actions.",
            "",
            "```",
            *lines,
            f"=> {violation}",
            "```",
        ]
    )


def filled(page: str) -> str:
    """Return a page with every marked place filled anew."""
    return PLACE.sub(
        lambda place: (
            f"<!-- trace: {place['rule']} -->\n{told(place['rule'])}\n<!-- end of trace -->"
        ),
        page,
    )


def main(folder: Path) -> None:
    """Fill every page of a folder that has a marked place."""
    for path in sorted(folder.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if PLACE.search(page):
            write_text(path, filled(page))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
