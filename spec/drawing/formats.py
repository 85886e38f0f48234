"""The same graph for other tools: Mermaid, DOT, and GraphML.

>>> graph = nx.MultiDiGraph()
>>> graph.add_node("free", initial=True)
>>> _ = graph.add_edge("free", "held", action="admit")
>>> print(mermaid(graph, "A life"), end="")
---
title: "A life"
---
flowchart TB
    n0(["free"])
    n1(["held"])
    start0((( ))) ==> n0
    n0 -->|"admit"| n1
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping

import networkx as nx

from cowtail.spec.drawing.arrows import is_initial, merged_arrows, node_kind, node_label
from cowtail.spec.drawing.palette import colours


def mermaid(graph: nx.MultiDiGraph, title: str, *, legend: Mapping[str, str] | None = None) -> str:
    """Return a Mermaid flowchart, which GitHub draws in a Markdown block marked ``mermaid``."""
    names = _names(graph)
    lines = ["---", f"title: {json.dumps(title, ensure_ascii=False)}", "---", "flowchart TB"]
    for node, name in names.items():
        lines.append(f'    {name}(["{_mermaid_text(node_label(graph, node))}"])')
    lines += [
        f"    start{index}((( ))) ==> {name}"
        for index, (node, name) in enumerate(names.items())
        if is_initial(graph, node)
    ]
    for arrow in merged_arrows(graph):
        label = "<br/>".join(_mermaid_text(action) for action in arrow.actions)
        line = "==>" if arrow.main else "-->"
        lines.append(f'    {names[arrow.source]} {line}|"{label}"| {names[arrow.target]}')
    for index, (kind, colour) in enumerate(colours(graph, legend).items()):
        members = [name for node, name in names.items() if node_kind(graph, node) == kind]
        if kind and members:
            lines.append(
                f"    classDef kind{index} fill:{colour.fill},stroke:{colour.border},color:#1f2328"
            )
            lines.append(f"    class {','.join(members)} kind{index}")
    return "\n".join(lines) + "\n"


def dot(graph: nx.MultiDiGraph, title: str, *, legend: Mapping[str, str] | None = None) -> str:
    """Return the graph in the DOT language of Graphviz."""
    names = _names(graph)
    fills = colours(graph, legend)
    lines = [
        "digraph {",
        f'    graph [label={_quoted(title)}, labelloc="t", rankdir="TB"];',
        '    node [shape="box", style="rounded,filled", fontname="Helvetica"];',
        '    edge [fontname="Helvetica", fontsize="12"];',
    ]
    for node, name in names.items():
        colour = fills[node_kind(graph, node)]
        label = _quoted(node_label(graph, node))
        width = 3 if is_initial(graph, node) else 1
        lines.append(
            f'    {name} [label={label}, fillcolor="{colour.fill}", color="{colour.border}", '
            f'penwidth="{width}"];'
        )
    for arrow in merged_arrows(graph):
        label = _quoted("\n".join(arrow.actions))
        strength = ', penwidth="2.5", weight="8"' if arrow.main else ""
        lines.append(
            f"    {names[arrow.source]} -> {names[arrow.target]} [label={label}{strength}];"
        )
    return "\n".join([*lines, "}\n"])


def graphml(graph: nx.MultiDiGraph) -> str:
    """Return the graph as GraphML, edges unmerged, with every attribute that GraphML can hold.

    Attributes of other types (tuples of events, for instance) are written as strings.
    """
    plain: nx.MultiDiGraph = nx.MultiDiGraph(**_plain(graph.graph))
    for node, data in graph.nodes(data=True):
        plain.add_node(str(node), **_plain(data))
    for source, target, key, data in graph.edges(keys=True, data=True):
        plain.add_edge(str(source), str(target), key=str(key), **_plain(data))
    return "\n".join(nx.generate_graphml(plain)) + "\n"


def _plain(data: Mapping[str, object]) -> dict[str, bool | int | float | str]:
    return {
        str(key): value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in data.items()
    }


def _names(graph: nx.MultiDiGraph) -> dict[Hashable, str]:
    """Return an identifier for each node that needs no quoting anywhere."""
    return {node: f"n{index}" for index, node in enumerate(graph)}


def _quoted(string: str) -> str:
    """Return a DOT string: quotes and backslashes are escaped, a line break is ``\\n``."""
    escaped = string.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _mermaid_text(string: str) -> str:
    """Return text for a quoted Mermaid label: its special characters become entity codes."""
    return "".join(f"#{ord(char)};" if char in '#"<>&;`|\\' else char for char in string)
