"""The committed diagrams are what the model draws today."""

from __future__ import annotations

from pathlib import Path

import pytest

from cowtail.spec.diagrams import AMPLE, DIAGRAMS, draw_diagram
from cowtail.spec.lives import life_graph
from cowtail.spec.scopes import scope_named
from cowtail.spec.views import VIEWS, view_named

FOLDER = Path(__file__).parents[2] / "docs" / "diagrams"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_committed_diagram_is_up_to_date(name: str) -> None:
    committed = (FOLDER / f"{name}.svg").read_text()
    assert draw_diagram(name) == committed, "run `make docs` and look at the result"


def test_nothing_but_generated_diagrams_is_committed() -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(DIAGRAMS)


@pytest.mark.parametrize("view", VIEWS)
def test_a_life_has_at_most_15_phases_and_every_one_is_reachable(view: str) -> None:
    graph = life_graph([scope_named(name) for name in AMPLE], view_named(view))
    assert len(graph) <= 15
    reached = {node for node, data in graph.nodes(data=True) if data["initial"]}
    frontier = list(reached)
    while frontier:
        frontier = [n for node in frontier for n in graph.successors(node) if n not in reached]
        reached.update(frontier)
    assert reached == set(graph)
