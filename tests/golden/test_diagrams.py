"""The committed diagrams are what the model draws today."""

from __future__ import annotations

from pathlib import Path

import pytest

from cowtail.cli.draw import render
from cowtail.spec.lives import life_graph
from cowtail.spec.scopes import scope_named
from cowtail.spec.views import VIEWS, view_named

DIAGRAMS = Path(__file__).parents[2] / "docs" / "diagrams"
SCOPES = ["lone_producer", "shared_prefix"]
"""The scopes that `make docs` draws; together they reach every phase of a block."""


@pytest.mark.parametrize("view", VIEWS)
def test_a_committed_diagram_is_up_to_date(view: str) -> None:
    committed = (DIAGRAMS / f"{view}-life.svg").read_text()
    assert render(SCOPES, view, "svg") == committed, "run `make docs` and look at the result"


@pytest.mark.parametrize("view", VIEWS)
def test_a_life_has_at_most_15_phases_and_every_one_is_reachable(view: str) -> None:
    graph = life_graph([scope_named(name) for name in SCOPES], view_named(view))
    assert len(graph) <= 15
    start = {node for node, data in graph.nodes(data=True) if data["initial"]}
    reached = set(start)
    frontier = list(start)
    while frontier:
        frontier = [n for node in frontier for n in graph.successors(node) if n not in reached]
        reached.update(frontier)
    assert reached == set(graph)
