"""State graphs for people: the whole of a small one, projections, differences (R36)."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
import pytest

from cowtail.spec.explorer import explore
from cowtail.spec.graph import Difference, difference, project, to_networkx

Places = tuple[int, ...]


class Road:
    """Interchangeable travellers on a road of two stages; some may jump over the first one."""

    def __init__(self, travellers: int = 2, *, jumps: bool = True, back: bool = False) -> None:
        self.travellers, self.jumps, self.back = travellers, jumps, back

    def initial(self) -> Places:
        return (0,) * self.travellers

    def successors(self, state: Places) -> Iterator[tuple[str, Places, tuple[str, ...]]]:
        for i, place in enumerate(state):
            if place < 2:
                arrived = ("arrived",) if place == 1 else ()
                yield f"walk:{i}", (*state[:i], place + 1, *state[i + 1 :]), arrived
            if place == 0 and self.jumps:
                yield f"jump:{i}", (*state[:i], 2, *state[i + 1 :]), ("arrived",)
            if place == 2 and self.back:
                yield f"back:{i}", (*state[:i], 0, *state[i + 1 :]), ()

    def key(self, state: Places) -> Places:
        return tuple(sorted(state))

    def action_name(self, action: str) -> str:
        return action.partition(":")[0]

    def is_quiescent(self, state: Places) -> bool:
        return set(state) == {2}


def projected(road: Road, self_loops: bool = False) -> nx.MultiDiGraph:
    graph = explore(road, keep_graph=True).graph
    assert graph is not None
    return project(graph, lambda state: state, road, self_loops=self_loops)


def edges(graph: nx.MultiDiGraph) -> dict[tuple[int, str, int], int]:
    return {(a, data["action"], b): data["count"] for a, b, data in graph.edges(data=True)}


def test_projection_follows_each_item_under_symmetry() -> None:
    # The stored target of walk:1 from (2, 0) is (1, 2): followed as it stands, a traveller
    # would seem to walk back from 2 to 1.
    life = projected(Road())
    assert set(edges(life)) == {(0, "walk", 1), (1, "walk", 2), (0, "jump", 2)}


def test_projection_counts_states_and_steps() -> None:
    life = projected(Road())
    # Stored: (0,0) (1,0) (2,0) (1,1) (1,2) (2,2): two places each.
    assert {node: data["states"] for node, data in life.nodes(data=True)} == {0: 4, 1: 4, 2: 4}
    assert edges(life) == {(0, "walk", 1): 4, (1, "walk", 2): 4, (0, "jump", 2): 4}
    assert [node for node, data in life.nodes(data=True) if data["initial"]] == [0]


def test_self_loops_are_the_steps_of_others_and_kept_on_demand() -> None:
    with_loops = edges(projected(Road(), self_loops=True))
    assert {edge for edge in with_loops if edge[0] == edge[2]} == {
        (place, action, place) for place in (0, 1, 2) for action in ("walk", "jump")
    }


def test_projection_edges_can_be_labelled_by_events() -> None:
    road = Road()
    graph = explore(road, keep_graph=True).graph
    assert graph is not None
    life = project(
        graph,
        lambda state: state,
        road,
        label=lambda action, events: " ".join([action.partition(":")[0], *events]),
    )
    assert (1, "walk arrived", 2) in edges(life)
    assert (1, "walk", 2) not in edges(life)


def test_items_that_are_born_on_the_way_are_followed_from_their_birth() -> None:
    road = Road(1)
    graph = explore(road, keep_graph=True).graph
    assert graph is not None
    life = project(graph, lambda state: ("parent",) + ("child",) * state[0], road)
    assert set(life.nodes) == {"parent", "child"}
    assert life.number_of_edges() == 0


def test_projection_of_a_bounded_search_shows_where_it_stopped() -> None:
    road = Road(1, jumps=False)
    graph = explore(road, keep_graph=True, max_states=2).graph
    assert graph is not None
    life = project(graph, lambda state: state, road)
    assert {node: data["states"] for node, data in life.nodes(data=True)} == {0: 1, 1: 1, 2: 0}


def test_difference_names_what_appeared_and_what_disappeared() -> None:
    before, after = projected(Road()), projected(Road(jumps=False, back=True))
    assert difference(before, after) == Difference(
        nodes_added=(),
        nodes_removed=(),
        edges_added=((2, "back", 0),),
        edges_removed=((0, "jump", 2),),
    )
    walkers, nobody = projected(Road(jumps=False)), nx.MultiDiGraph()
    assert difference(walkers, nobody).nodes_removed == (0, 1, 2)
    assert difference(nobody, walkers).nodes_added == (0, 1, 2)
    assert difference(before, after)
    assert not difference(before, projected(Road()))


def test_whole_graph_of_a_small_scope() -> None:
    found = explore(Road(1), keep_graph=True)
    graph = to_networkx(found, label=lambda state: f"at {state[0]}")
    assert dict(graph.nodes(data=True)) == {
        0: {"label": "at 0", "initial": True},
        1: {"label": "at 1", "initial": False},
        2: {"label": "at 2", "initial": False},
    }
    assert list(graph.edges(data=True)) == [
        (0, 1, {"action": "walk:0", "events": ()}),
        (0, 2, {"action": "jump:0", "events": ("arrived",)}),
        (1, 2, {"action": "walk:0", "events": ("arrived",)}),
    ]
    assert graph.graph["complete"]


def test_whole_graph_needs_a_kept_graph() -> None:
    with pytest.raises(ValueError, match="explore with keep_graph=True"):
        to_networkx(explore(Road(1)))
