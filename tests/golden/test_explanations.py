"""The traces inside the explanations are the ones that the model gives today."""

from __future__ import annotations

from pathlib import Path

import pytest

from cowtail.spec.embedded import PLACE, told

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
PLACES = [
    pytest.param(path.name, place, id=f"{path.stem}-{place['rule']}")
    for path in sorted(FOLDER.glob("*.md"))
    for place in PLACE.finditer(path.read_text(encoding="utf-8"))
]


def test_every_classic_mistake_has_its_trace() -> None:
    assert {place.values[0] for place in PLACES} == {
        "double-offload.md",
        "leaked-pin.md",
        "past-the-boundary.md",
    }


@pytest.mark.parametrize(("page", "place"), PLACES)
def test_a_trace_in_a_page_is_the_shortest_one_today(page: str, place: object) -> None:
    assert told(place["rule"]) in place[0], f"{page} is stale: run `make docs`"  # type: ignore[index]
