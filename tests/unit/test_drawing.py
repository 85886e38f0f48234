"""The layout of drawings: what a reader must be able to rely on, for any small graph (R36)."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowtail.spec.drawing import Box, Layout, PlacedArrow, layout, svg
from cowtail.spec.drawing.ordering import Layered, Strand, crossings, good_orders
from cowtail.spec.drawing.potentials import Demand, optimal_potentials
from cowtail.spec.drawing.text import text_width

ACTIONS = ("admit", "extend", "end_pass", "update_connector_output", "abort", "preempt")


def graph_of(*arrows: tuple[str, str], main: str = "", initial: str = "") -> nx.MultiDiGraph:
    """Return a graph; a pair of neighbouring letters of ``main`` is a step of the main story."""
    story = set(pairwise(main))
    graph: nx.MultiDiGraph = nx.MultiDiGraph()
    for source, target in arrows:
        graph.add_edge(source, target, action="admit", main=(source, target) in story)
    for node in graph:
        graph.nodes[node]["initial"] = node in initial
    return graph


@st.composite
def graphs(draw: st.DrawFn) -> nx.MultiDiGraph:
    """Draw a small directed multigraph with loops, isolated nodes, and labels short and long.

    Half of them are dense: Hypothesis alone would hardly ever draw one that must have crossings.
    """
    nodes = draw(st.integers(1, 7))
    node = st.integers(0, nodes - 1)
    edge = st.tuples(node, node, st.sampled_from(ACTIONS), st.booleans())
    initial = draw(st.sets(node, max_size=2))
    graph: nx.MultiDiGraph = nx.MultiDiGraph()
    for index in range(nodes):
        label = " ".join(["pinned"] * draw(st.integers(0, 5))) or "f"
        graph.add_node(index, label=label, initial=index in initial)
    edges = draw(st.lists(edge, max_size=14))
    if draw(st.booleans()):
        pairs = draw(st.permutations(list(itertools.permutations(range(nodes), 2))))
        edges += [(*pair, "evict", False) for pair in pairs[:16]]
    for source, target, action, main in edges:
        graph.add_edge(source, target, key=action, action=action, main=main)
    return graph


def boxes(drawing: Layout) -> list[Box]:
    return [p.box for p in drawing.nodes] + [p.label for p in drawing.arrows]


def strokes(placed: PlacedArrow) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return an arrow's path as straight lines, each given from its upper end."""
    return [(min(a, b, key=by_y), max(a, b, key=by_y)) for a, b in pairwise(placed.corners)]


def by_y(point: tuple[float, float]) -> float:
    return point[1]


def x_at(line: tuple[tuple[float, float], tuple[float, float]], y: float) -> float:
    (x0, y0), (x1, y1) = line
    return x0 + (x1 - x0) * (y - y0) / (y1 - y0)


def times_crossing(first: PlacedArrow, second: PlacedArrow) -> int:
    """Count, from the paths alone, how often two arrows exchange their horizontal order.

    The curves of a gap all shift by the same share of their distance at the same height, so they
    cross if and only if straight lines between the same corners do.
    """
    heights = sorted({y for arrow in (first, second) for _, y in arrow.corners})
    signs = []
    for y0, y1 in pairwise(heights):
        lines = [
            next((line for line in strokes(arrow) if line[0][1] <= y0 and y1 <= line[1][1]), None)
            for arrow in (first, second)
        ]
        if lines[0] is not None and lines[1] is not None:
            for y in (y0 + 0.01, y1 - 0.01):
                signs.append(x_at(lines[0], y) < x_at(lines[1], y))
    return sum(before != after for before, after in pairwise(signs))


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_boxes_never_overlap_and_all_lie_within_the_drawing(graph: nx.MultiDiGraph) -> None:
    drawing = layout(graph)
    for one, other in itertools.combinations(boxes(drawing), 2):
        assert not one.overlaps(other)
    for box in boxes(drawing):
        assert box.left >= 0
        assert box.right <= drawing.width
        assert box.top >= 0
        assert box.bottom <= drawing.height


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_arrows_lead_from_border_to_border_and_through_no_foreign_box(
    graph: nx.MultiDiGraph,
) -> None:
    drawing = layout(graph)
    box_of = {placed.node: placed.box for placed in drawing.nodes}
    for placed in drawing.arrows:
        if placed.arrow.is_loop:
            continue
        ends = (placed.arrow.source, placed.corners[0]), (placed.arrow.target, placed.corners[-1])
        for node, (x, y) in ends:
            box = box_of[node]
            assert box.left < x < box.right
            assert y in (box.top, box.bottom)
        x, y = placed.label.centre
        assert any(
            upper[0] == lower[0] == x and upper[1] < y < lower[1]
            for upper, lower in strokes(placed)
        )
        for (x0, y0), (x1, y1) in strokes(placed):
            swept = Box(min(x0, x1), y0, abs(x1 - x0) or 0.01, y1 - y0)
            for box in boxes(drawing):
                assert box == placed.label or not swept.overlaps(box)


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_the_reported_crossings_are_those_of_the_drawn_paths(graph: nx.MultiDiGraph) -> None:
    drawing = layout(graph)
    plain = [placed for placed in drawing.arrows if not placed.arrow.is_loop]
    drawn = sum(times_crossing(*pair) for pair in itertools.combinations(plain, 2))
    assert drawn == drawing.crossings


PLANAR = {
    "chain": [*pairwise("abcdef")],
    "cycle": [*pairwise("abcdea")],
    "tree": [("a", "b"), ("a", "c"), ("b", "d"), ("b", "e"), ("c", "f"), ("c", "g")],
    "ladder": [*pairwise("abcd"), *pairwise("efgh"), *zip("abcd", "efgh", strict=True)],
    "there and back": [*pairwise("abcba"), *pairwise("adceca")],
    "complete graph of four": [*itertools.combinations("abcd", 2)],
    "wheel": [*pairwise("bcdefb"), *(("a", rim) for rim in "bcdef")],
    "cube": [
        *pairwise("abcda"),
        *pairwise("efghe"),
        *zip("abcd", "efgh", strict=True),
    ],
}


@pytest.mark.parametrize("arrows", PLANAR.values(), ids=PLANAR)
def test_a_planar_graph_is_drawn_without_crossings(arrows: list[tuple[str, str]]) -> None:
    assert layout(graph_of(*arrows)).crossings == 0


@pytest.mark.parametrize(
    "arrows",
    [[*itertools.combinations("abcde", 2)], [*itertools.product("abc", "def")]],
    ids=["complete graph of five", "three houses, three wells"],
)
def test_the_smallest_graphs_that_are_not_planar_have_one_crossing(
    arrows: list[tuple[str, str]],
) -> None:
    assert layout(graph_of(*arrows)).crossings == 1


def test_the_main_story_is_straight_from_the_top_down() -> None:
    others = [("a", "c"), ("b", "d"), ("d", "a"), ("b", "x"), ("x", "d"), ("c", "y"), ("y", "a")]
    drawing = layout(graph_of(*pairwise("abcd"), *others, main="abcd", initial="a"))
    centres = {placed.node: placed.box.centre for placed in drawing.nodes}
    assert len({centres[node][0] for node in "abcd"}) == 1
    assert [*"abcd"] == sorted("abcd", key=lambda node: centres[node][1])
    assert all(len(placed.corners) == 2 for placed in drawing.arrows if placed.arrow.main)


def test_a_main_step_back_to_the_start_goes_round_the_story() -> None:
    drawing = layout(graph_of(*pairwise("abcda"), main="abcda", initial="a"))
    upward = [p.arrow.source for p in drawing.arrows if p.corners[0][1] > p.corners[-1][1]]
    assert upward == ["d"]
    assert drawing.crossings == 0


def test_initial_nodes_are_at_the_top() -> None:
    drawing = layout(graph_of(("x", "a"), ("a", "b"), ("b", "x"), ("y", "b"), initial="a"))
    tops = {placed.node: placed.box.top for placed in drawing.nodes}
    assert tops["a"] == min(tops.values())


def test_no_node_is_above_the_initial_one() -> None:
    drawing = layout(graph_of(("y", "x"), ("x", "w"), ("w", "z"), ("a", "z"), initial="a"))
    tops = {placed.node: placed.box.top for placed in drawing.nodes}
    assert tops["a"] == tops["y"] < tops["x"]


def test_no_single_move_within_a_layer_avoids_a_crossing() -> None:
    shuffle = random.Random(7)
    items = tuple(tuple(range(8 * depth, 8 * depth + 8)) for depth in range(3))
    strands = tuple(
        tuple(
            Strand(link, upper, lower, main=False)
            for link, (upper, lower) in enumerate(
                shuffle.sample([*itertools.product(above, below)], 14)
            )
        )
        for above, below in pairwise(items)
    )
    layered = Layered(24, items, strands)
    (order, *_) = good_orders(layered, starts=1)
    assert 0 < crossings(layered, order) < crossings(layered, items)
    for depth, layer in enumerate(order):
        for item in layer:
            rest = [other for other in layer if other != item]
            for place in range(len(layer)):
                moved = (*rest[:place], item, *rest[place:])
                elsewhere = (*order[:depth], moved, *order[depth + 1 :])
                assert crossings(layered, elsewhere) >= crossings(layered, order)


def test_a_cheap_crossing_is_preferred_to_a_detour_if_the_caller_says_so() -> None:
    arrows = [
        ("f", "a"),
        ("f", "t"),
        ("f", "c"),
        ("t", "a"),
        ("t", "p"),
        ("t", "k"),
        ("a", "k"),
        ("a", "p"),
        ("c", "p"),
        ("p", "k"),
        ("a", "q"),
        ("q", "a"),
        ("q", "p"),
        ("a", "f"),
    ]
    graph = graph_of(*arrows, main="fa", initial="f")
    assert layout(graph).crossings == 0
    assert layout(graph, crossing_cost=1).crossings > 0


@pytest.mark.parametrize("nodes", [0, 41])
def test_a_graph_that_cannot_be_drawn_is_refused_in_one_line(nodes: int) -> None:
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(nodes))
    with pytest.raises(ValueError, match=f"a graph of {nodes} nodes cannot be drawn: from 1 to 40"):
        layout(graph)


def test_drawings_do_not_depend_on_the_order_of_hashes() -> None:
    code = (
        "import networkx as nx; from cowtail.spec.drawing import svg\n"
        "g = nx.MultiDiGraph()\n"
        "for a in 'abcdef':\n"
        "    for b in 'abcdef':\n"
        "        if (ord(a) * 7 + ord(b) * 3) % 5 < 2: g.add_edge(a, b, action=a + b)\n"
        "print(svg(g, title='t'))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert b"<svg" in outputs.pop()


demands = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-1, 2), st.integers(0, 3)).filter(
        lambda demand: demand[0] < demand[1]
    ),
    max_size=6,
).map(lambda found: [Demand(*demand) for demand in found])


@settings(max_examples=50, deadline=None)
@given(demands)
def test_potentials_are_optimal(found: list[Demand]) -> None:
    def cost(x: tuple[int, ...]) -> int:
        return sum(d.weight * (x[d.after] - x[d.before]) for d in found)

    def allowed(x: tuple[int, ...]) -> bool:
        return all(x[d.after] - x[d.before] >= d.length for d in found)

    least = min(cost(x) for x in itertools.product(range(7), repeat=4) if allowed(x))
    for x in optimal_potentials(4, found):
        assert allowed(x)
        assert cost(x) == least


def test_all_actions_of_an_arrow_are_written_however_many() -> None:
    graph: nx.MultiDiGraph = nx.MultiDiGraph()
    for index in range(9):
        graph.add_edge("a", "b", key=index, action=f"action_{index}")
    (placed,) = layout(graph).arrows
    assert " ".join(placed.lines).split(", ") == [f"action_{index}" for index in range(9)]
    assert all(f"action_{index}" in svg(graph, title="t") for index in range(9))


def test_a_label_box_holds_its_text_also_in_the_bold_of_the_main_story() -> None:
    for main in (False, True):
        graph = nx.MultiDiGraph()
        graph.add_edge("a", "b", action="update_connector_output", main=main)
        (placed,) = layout(graph).arrows
        assert placed.label.width > text_width("update_connector_output", 12, bold=main)


def test_a_node_without_a_label_is_an_empty_box() -> None:
    graph = nx.MultiDiGraph()
    graph.add_node("a", label="")
    (placed,) = layout(graph).nodes
    assert placed.lines == ()
    assert placed.box.width > 0
