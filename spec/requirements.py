"""What holds each requirement: the last column of docs/reference/requirements.md.

Properties that cite a requirement as their source, tests that are named for it, and what else
compares it everywhere. ``python -m cowtail.spec.requirements docs/reference`` writes the column.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from cowtail.spec.files import write_text
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.liveness_properties import LIVENESS
from cowtail.spec.step_invariants import STEP_PROPERTIES

PAGE = "requirements.md"

ALSO: dict[str, tuple[str, ...]] = {
    "R3": (
        "the order within the finish path shows in no state: the calls of the model are tested, "
        "those of an implementation are not",
    ),
    "R4": ("exact lockstep", "vLLM"),
    "R11": ("`make hits`", "vLLM"),
    "R12": ("exact lockstep",),
    "R21": ("`make hits`", "vLLM"),
    "R28": ("`make hits`",),
    "R29": ("`make hits`",),
    "R31": ("`make hits`",),
}
"""What holds a requirement beside properties and tests of its name."""

LAST_PROJECT_FREE = 31
"""R1 to R31 are about the system; what comes after is about the project, and written by hand."""


def with_holders(page: str, tests: Iterable[str]) -> str:
    """Return the page with its last column as it has to be, given the names of all tests.

    Raises ValueError for a requirement that nothing holds.
    """
    named = sorted(tests)
    return "\n".join(_row(line, named) for line in page.split("\n"))


def _row(line: str, tests: list[str]) -> str:
    found = re.match(r"\| (R(\d+)) \| (.*) \| (\d+) \| .* \|$", line)
    if found is None or int(found[2]) > LAST_PROJECT_FREE:
        return line
    holders = holders_of(found[1], tests)
    if not holders:
        raise ValueError(
            f"{found[1]}: no property cites it and no test is named for it; add one of them"
        )
    return f"| {found[1]} | {found[3]} | {found[4]} | {', '.join(holders)} |"


def holders_of(requirement: str, tests: list[str]) -> list[str]:
    """Return the properties, tests and comparisons that hold a requirement."""
    sources = [(each.identifier, each.source) for each in PROPERTIES]
    sources += [(each.identifier, each.source) for each in STEP_PROPERTIES]
    sources += [(each.identifier, each.source) for each in LIVENESS]
    cited = [name for name, source in sources if re.search(rf"\b{requirement}\b", source)]
    number = requirement[1:]
    by_name = [name for name in tests if re.match(rf"test_r(\d+_and_r)*{number}_", name)]
    by_name += [name for name in tests if re.match(rf"test_r\d+_and_r{number}_", name)]
    named = [f"`{name}`" for name in dict.fromkeys(by_name)]
    return [*dict.fromkeys(cited), *named, *ALSO.get(requirement, ())]


def names_of_tests(root: Path) -> set[str]:
    """Return the names of the test functions of the repository at ``root``."""
    return {
        name
        for path in sorted((root / "tests").rglob("test_*.py"))
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }


def main(folder: Path) -> None:
    """Write the column."""
    path = folder / PAGE
    root = Path(__file__).resolve().parents[1]
    write_text(path, with_holders(path.read_text(), names_of_tests(root)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
