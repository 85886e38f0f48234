"""What drawings look like in each format: SVG, Mermaid, DOT, GraphML (R36)."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import networkx as nx
import pytest

from cowtail.spec.drawing import dot, graphml, mermaid, svg
from cowtail.spec.drawing.palette import PALETTE, Colour
from cowtail.spec.drawing.text import text_width, wrapped

SVG = "{http://www.w3.org/2000/svg}"
AWKWARD = 'a "b" <c> & #1; \\ |'


@pytest.fixture
def life() -> nx.MultiDiGraph:
    graph: nx.MultiDiGraph = nx.MultiDiGraph(states=3)
    graph.add_node("free", label="free", kind="idle", initial=True, states=1200)
    graph.add_node("held", label=AWKWARD, kind="busy", initial=False, states=2)
    graph.add_edge("free", "held", key="admit", action="admit", count=4, main=True)
    graph.add_edge("free", "held", key="extend", action="extend", count=1, main=True)
    graph.add_edge("held", "free", key="abort", action=f"abort {AWKWARD}", count=2, main=False)
    graph.add_edge("held", "held", key="execute", action="execute", count=1, main=False)
    return graph


def texts(document: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(document).iter(f"{SVG}text")]


def test_svg_keeps_every_label_as_text(life: nx.MultiDiGraph) -> None:
    written = texts(svg(life, title="A <life>", caption="Two & two.", legend={"busy": "in use"}))
    for expected in ("A <life>", "Two & two.", "free", "admit", "extend", "execute"):
        assert expected in written
    assert f"abort {AWKWARD}" in written
    assert AWKWARD in " ".join(written)


def test_svg_tells_screen_readers_the_whole_story(life: nx.MultiDiGraph) -> None:
    root = ElementTree.fromstring(svg(life, title="A life", caption="In short."))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == root.findtext(f"{SVG}title") == "A life"
    told = root.findtext(f"{SVG}desc") or ""
    assert told.startswith(f"In short. free → {AWKWARD}: admit, extend; ")
    hints = [element.text for element in root.iter(f"{SVG}title")]
    assert "free: 1,200 states" in hints
    assert f"free → {AWKWARD}: admit, extend (5 steps)" in hints


def test_svg_text_is_at_least_twelve_pixels_high(life: nx.MultiDiGraph) -> None:
    root = ElementTree.fromstring(svg(life, title="A life", caption="In short."))
    assert min(int(element.attrib["font-size"]) for element in root.iter(f"{SVG}text")) >= 12


def test_svg_explains_the_kinds_that_occur_and_no_others(life: nx.MultiDiGraph) -> None:
    meanings = {"lost": "never seen", "busy": "in use", "idle": "not in use"}
    written = texts(svg(life, title="A life", legend=meanings))
    assert written[-5:] == ["in use", "not in use", "starts here", "usual life", "other steps"]
    assert "never seen" not in written


def test_a_kind_keeps_its_colour_whatever_else_occurs(life: nx.MultiDiGraph) -> None:
    legend = {"lost": "lost", "busy": "in use"}
    part = nx.MultiDiGraph(life.subgraph(["held"]))
    fill = PALETTE[1].fill
    assert fill in svg(life, title="A life", legend=legend)
    assert fill in svg(part, title="A life", legend=legend)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("colour", PALETTE)
def test_every_colour_can_be_read_and_seen(colour: Colour) -> None:
    assert contrast("#1f2328", colour.fill) >= 12
    assert contrast("#ffffff", colour.border) >= 4.5


def test_svg_has_a_background_of_its_own(life: nx.MultiDiGraph) -> None:
    root = ElementTree.fromstring(svg(life, title="A life"))
    background = next(root.iter(f"{SVG}rect"))
    assert background.attrib["fill"] == "#ffffff"
    assert float(background.attrib["width"]) + 1 == float(root.attrib["width"])


def test_mermaid_quotes_labels_and_tells_main_steps_from_others(life: nx.MultiDiGraph) -> None:
    assert mermaid(life, 'The "life"').splitlines() == [
        "---",
        r'title: "The \"life\""',
        "---",
        "flowchart TB",
        '    n0(["free"])',
        '    n1(["a #34;b#34; #60;c#62; #38; #35;1#59; #92; #124;"])',
        "    start0((( ))) ==> n0",
        '    n0 ==>|"admit<br/>extend"| n1',
        '    n1 -->|"abort a #34;b#34; #60;c#62; #38; #35;1#59; #92; #124;"| n0',
        '    n1 -->|"execute"| n1',
        "    classDef kind0 fill:#f3f4f6,stroke:#6b7280,color:#1f2328",
        "    class n0 kind0",
        "    classDef kind1 fill:#dbeafe,stroke:#2563eb,color:#1f2328",
        "    class n1 kind1",
    ]


def test_dot_quotes_labels(life: nx.MultiDiGraph) -> None:
    written = dot(life, 'The "life"')
    assert r'label="The \"life\""' in written
    assert r'    n1 [label="a \"b\" <c> & #1; \\ |", ' in written
    assert r'    n0 -> n1 [label="admit\nextend", penwidth="2.5", weight="8"];' in written
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", written)
    assert re.fullmatch(r"[\w\s{}\[\];=,>-]*", outside)


def test_graphml_reads_back_as_the_same_graph(life: nx.MultiDiGraph) -> None:
    again = nx.parse_graphml(graphml(life), force_multigraph=True)
    assert again.graph["states"] == 3
    assert dict(again.nodes(data=True)) == dict(life.nodes(data=True))
    assert list(again.edges(keys=True, data=True)) == list(life.edges(keys=True, data=True))


def test_graphml_writes_other_attributes_as_strings() -> None:
    graph: nx.MultiDiGraph = nx.MultiDiGraph()
    graph.add_edge(1, 2, key=0, events=("tail handed off",))
    assert "(&#x27;tail handed off&#x27;,)" in graphml(graph) or "('tail handed off',)" in graphml(
        graph
    )


def test_wrapping_fills_lines_up_to_the_width_and_keeps_every_word() -> None:
    words = ["freed", "but", "cached", "and", "pinned", "by", "a", "job"]
    lines = wrapped(words, 14, 120)
    assert " ".join(lines).split() == words
    assert all(text_width(line, 14) <= 120 for line in lines)
    for line, following in pairwise(lines):
        assert text_width(f"{line} {following.split()[0]}", 14) > 120
