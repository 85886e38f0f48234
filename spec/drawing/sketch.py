"""A graph in layers before anything has a place: sizes, chains of long arrows, rows of labels."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

import attrs
import networkx as nx

from cowtail.spec.drawing import text
from cowtail.spec.drawing.arrows import Arrow, is_initial, merged_arrows, node_label
from cowtail.spec.drawing.layers import Layering, Link, layerings
from cowtail.spec.drawing.ordering import Layered, Strand

COLUMN_GAP = 16
"""The least distance between what stands beside each other in a row."""

NODE_PADDING = 14
"""Room between a node's text, or its outermost arrow, and its sides."""

_NODE_WIDTH = 170
_LABEL_PADDING = 4


@attrs.frozen
class Sketch:
    """A graph in layers, before anything has a place.

    ``chains`` has for each arrow that is no loop the items of the layers that it passes, from the
    upper to the lower end; ``labelled`` the layer below which it has its label; ``upward`` the
    arrows whose source is their lower end; ``loops`` the loop of each node that has one.
    """

    names: tuple[Hashable, ...]
    node_lines: tuple[tuple[str, ...], ...]
    node_sizes: tuple[tuple[int, int], ...]
    arrows: tuple[Arrow, ...]
    arrow_lines: tuple[tuple[str, ...], ...]
    label_sizes: tuple[tuple[int, int], ...]
    loops: dict[int, int]
    started: frozenset[int]
    chains: dict[int, tuple[int, ...]]
    depth: dict[int, int]
    upward: frozenset[int]
    labelled: dict[int, int]
    layered: Layered


def sketches(graph: nx.MultiDiGraph) -> Iterator[tuple[int, Sketch]]:
    """Yield the length of the arrows, in layers, and the graph in a layering, shortest first."""
    number = {name: index for index, name in enumerate(graph)}
    started = [number[name] for name in graph if is_initial(graph, name)]
    links = {
        index: Link(number[arrow.source], number[arrow.target], arrow.main)
        for index, arrow in enumerate(merged_arrows(graph))
        if not arrow.is_loop
    }
    for length, layering in layerings(len(number), list(links.values()), started):
        yield length, _sketch(graph, layering, links, started)


def _sketch(
    graph: nx.MultiDiGraph, layering: Layering, links: dict[int, Link], started: list[int]
) -> Sketch:
    names = tuple(graph)
    number = {name: index for index, name in enumerate(names)}
    arrows = merged_arrows(graph)
    chains, depth, layered = _in_layers(layering, links)
    arrow_lines = tuple(text.stacked(arrow.actions) for arrow in arrows)
    label_sizes = tuple(map(_label_size, arrows, arrow_lines))
    node_lines = tuple(
        text.wrapped(node_label(graph, name).split(), text.NODE_SIZE, _NODE_WIDTH) for name in names
    )
    return Sketch(
        names=names,
        node_lines=node_lines,
        node_sizes=tuple(_node_size(lines) for lines in node_lines),
        arrows=arrows,
        arrow_lines=arrow_lines,
        label_sizes=label_sizes,
        loops={number[arrow.source]: i for i, arrow in enumerate(arrows) if arrow.is_loop},
        started=frozenset(started),
        chains=chains,
        depth=depth,
        upward=frozenset(
            index for index, chain in chains.items() if names[chain[0]] != arrows[index].source
        ),
        labelled=_label_layers(chains, depth, label_sizes),
        layered=layered,
    )


def _node_size(lines: tuple[str, ...]) -> tuple[int, int]:
    widths = [text.text_width(line, text.NODE_SIZE, bold=True) for line in lines]
    return (
        max(widths, default=0) + 2 * NODE_PADDING,
        text.text_height(len(lines), text.NODE_SIZE) + 14,
    )


def _label_size(arrow: Arrow, lines: tuple[str, ...]) -> tuple[int, int]:
    widths = [text.text_width(line, text.LABEL_SIZE, bold=arrow.main) for line in lines]
    return (
        max(widths) + 2 * _LABEL_PADDING,
        text.text_height(len(lines), text.LABEL_SIZE) + 2,
    )


def _in_layers(
    depths: Sequence[int], links: dict[int, Link]
) -> tuple[dict[int, tuple[int, ...]], dict[int, int], Layered]:
    """Cut links into strands; return the chain of each link, the depth of each item, the layers."""
    depth = dict(enumerate(depths))
    chains: dict[int, tuple[int, ...]] = {}
    strands: list[list[Strand]] = [[] for _ in range(max(depths))]
    for index, link in links.items():
        upper, lower = sorted((link.source, link.target), key=depth.__getitem__)
        chain = [upper]
        for layer in range(depth[upper] + 1, depth[lower]):
            chain.append(len(depth))
            depth[chain[-1]] = layer
        chain.append(lower)
        chains[index] = tuple(chain)
        for above, below in pairwise(chain):
            strands[depth[above]].append(Strand(index, above, below, link.main))
    items = tuple(
        tuple(item for item, layer in depth.items() if layer == at) for at in range(max(depths) + 1)
    )
    return chains, depth, Layered(len(depths), items, tuple(map(tuple, strands)))


def _label_layers(
    chains: dict[int, tuple[int, ...]],
    depth: dict[int, int],
    sizes: Sequence[tuple[int, int]],
) -> dict[int, int]:
    """Choose the row of each label: the emptiest that its arrow passes, short arrows first."""
    used: dict[int, int] = {}
    chosen: dict[int, int] = {}
    for index, chain in sorted(chains.items(), key=lambda entry: len(entry[1])):
        rows = range(depth[chain[0]], depth[chain[-1]])
        row = min(rows, key=lambda row: (used.get(row, 0), row))
        chosen[index] = row
        used[row] = used.get(row, 0) + sizes[index][0] + COLUMN_GAP
    return chosen
