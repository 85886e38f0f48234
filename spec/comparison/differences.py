"""The differences between two recorded models, as values and as Markdown.

An edge of a view is (phase, action, phase). Edges and nodes are those of the projections, so
that a rule of the model that changes a thousand states shows up as the few arrows it is about.
"""

from __future__ import annotations

from typing import Any

import attrs

from cowtail.spec import markdown
from cowtail.spec.comparison.equivalence import Equivalence, Record, compare_graphs

MAX_ARROWS = 60
"""Changed edges in one Mermaid diagram; the rest are left out, and counted."""


@attrs.frozen
class ViewChanges:
    """Nodes and edges of one view of one scope that came or went."""

    nodes_added: list[str]
    nodes_removed: list[str]
    edges_added: list[tuple[str, str, str]]
    edges_removed: list[tuple[str, str, str]]


@attrs.frozen
class ScopeChanges:
    """What is different in one scope; ``figures`` and ``constants`` are (name, old, new)."""

    scope: str
    equivalence: str
    bounds_hit: list[str]
    constants: list[tuple[str, str, str]]
    figures: list[tuple[str, int, int]]
    views: dict[str, ViewChanges]


@attrs.frozen
class Comparison:
    """Everything that is different between two models; catalogue changes are one line each."""

    old: str
    new: str
    bounds: str
    catalogue: list[str]
    scopes: list[ScopeChanges]

    @property
    def undetermined(self) -> bool:
        """Whether a bound was hit in some scope."""
        return any(scope.bounds_hit for scope in self.scopes)

    @property
    def different(self) -> bool:
        """Whether anything that was compared differs, in the scopes that were complete."""
        return bool(self.catalogue) or any(
            scope.constants or scope.equivalence == Equivalence.DIFFERENT.value
            for scope in self.scopes
        )

    def verdict(self) -> str:
        """Return the outcome in a sentence."""
        if self.undetermined:
            return f"undetermined: a bound was hit ({self.bounds})"
        if any(scope.equivalence == Equivalence.DIFFERENT.value for scope in self.scopes):
            return "the behaviour differs"
        strengths = {scope.equivalence for scope in self.scopes}
        shown = [each.value for each in Equivalence if each.value in strengths]
        same = f"no change in behaviour: {' or, in other scopes, '.join(shown)}"
        if self.different:
            return f"{same}; properties, actions or constants of scopes changed"
        return same


def compare(old: Record, new: Record, names: tuple[str, str], bounds: str) -> Comparison:
    """Compare two records. Raises ValueError if they are not of the same scopes."""
    if list(old["scopes"]) != list(new["scopes"]):
        raise ValueError(
            f"{names[0]} has scopes {', '.join(old['scopes'])}, and {names[1]} has "
            f"{', '.join(new['scopes'])}: they must have the same; give --scope, or record again"
        )
    catalogue = [
        line
        for kind in ("properties", "actions")
        for line in _catalogue(kind, old[kind], new[kind])
    ]
    scopes = [_scope(name, old["scopes"][name], new["scopes"][name]) for name in old["scopes"]]
    return Comparison(*names, bounds, catalogue, scopes)


def _catalogue(kind: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    lines = [f"{kind}: {name} removed" for name in old if name not in new]
    lines += [f"{kind}: {name} added" for name in new if name not in old]
    changed = [name for name in old if name in new and old[name] != new[name]]
    return lines + [f"{kind}: {name} was {old[name]!r}, is {new[name]!r}" for name in changed]


def _scope(name: str, old: Record, new: Record) -> ScopeChanges:
    constants = [
        (key, old["constants"].get(key, "absent"), new["constants"].get(key, "absent"))
        for key in dict.fromkeys([*old["constants"], *new["constants"]])
        if old["constants"].get(key) != new["constants"].get(key)
    ]
    before, after = _figures(old), _figures(new)
    figures = [
        (key, before.get(key, 0), after.get(key, 0))
        for key in dict.fromkeys([*before, *after])
        if before.get(key, 0) != after.get(key, 0)
    ]
    hit = [f"{s}: {r['bound_hit']}" for s, r in (("OLD", old), ("NEW", new)) if r["bound_hit"]]
    views = {} if hit else _views(old, new)
    return ScopeChanges(name, compare_graphs(old, new).value, hit, constants, figures, views)


def _figures(graph: Record) -> dict[str, int]:
    figures = {"states": len(graph["out"]), "edges": sum(map(len, graph["out"]))}
    figures.update({f"action {name}": count for name, count in graph["actions"].items()})
    return figures | {f"event {name}": count for name, count in graph["events"].items()}


def _views(old: Record, new: Record) -> dict[str, ViewChanges]:
    """Return the views in which something came or went."""
    nodes_old, nodes_new = _nodes(old), _nodes(new)
    edges_old, edges_new = _edges(old), _edges(new)
    views = {}
    for view in sorted({view for view, _ in nodes_old | nodes_new}):
        changes = ViewChanges(
            sorted(phase for v, phase in nodes_new - nodes_old if v == view),
            sorted(phase for v, phase in nodes_old - nodes_new if v == view),
            sorted(edge[1:] for edge in edges_new - edges_old if edge[0] == view),
            sorted(edge[1:] for edge in edges_old - edges_new if edge[0] == view),
        )
        if any(attrs.astuple(changes)):
            views[view] = changes
    return views


def _nodes(graph: Record) -> set[tuple[str, str]]:
    return {(view, phase) for seen in graph["seen"] for view, phase, _ in seen}


def _edges(graph: Record) -> set[tuple[str, str, str, str]]:
    return {
        (view, was, action, becomes)
        for action, _, moves in graph["labels"]
        for view, was, becomes, _ in moves
    }


def as_markdown(found: Comparison) -> str:
    """Return a page for a comment: the verdict, then each scope with its diagrams and figures."""
    lines = [f"## `{found.old}` → `{found.new}`", "", f"**{found.verdict()}**", ""]
    lines += [f"Bounds of each scope: {found.bounds}.", ""]
    lines += [f"- {line}" for line in found.catalogue] + [""] * bool(found.catalogue)
    for scope in found.scopes:
        lines += [f"### {scope.scope}: {scope.equivalence}", ""]
        lines += [f"- bound hit: {hit}" for hit in scope.bounds_hit]
        lines += [f"- {name}: was `{was}`, is `{now}`" for name, was, now in scope.constants]
        lines += [""] * bool(scope.bounds_hit or scope.constants)
        for view, changes in scope.views.items():
            lines += [f"The life of a {view}:", "", "```mermaid", *mermaid(changes), "```", ""]
        if scope.figures:
            rows = [(name, f"{was:,}", f"{now:,}") for name, was, now in scope.figures]
            lines += [markdown.table(("figure", "old", "new"), rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def mermaid(changes: ViewChanges) -> list[str]:
    """Return the changed edges as a Mermaid flowchart: thick if added, dotted if removed.

    Labels say it in words: one that begins with a sign is taken for a list and not shown.
    """
    arrows = [("removed", "-.->", edge) for edge in changes.edges_removed]
    arrows += [("added", "==>", edge) for edge in changes.edges_added]
    shown = arrows[:MAX_ARROWS]
    phases = [*changes.nodes_removed, *changes.nodes_added]
    phases += [phase for _, _, (was, _, becomes) in shown for phase in (was, becomes)]
    names = {phase: f"n{index}" for index, phase in enumerate(dict.fromkeys(phases))}
    lines = ["flowchart TB"]
    for phase, name in names.items():
        came, went = phase in changes.nodes_added, phase in changes.nodes_removed
        lines.append(f'    {name}(["{"added: " * came}{"removed: " * went}{phase}"])')
    lines += [
        f'    {names[was]} {line}|"{sign}: {action}"| {names[becomes]}'
        for sign, line, (was, action, becomes) in shown
    ]
    if len(arrows) > len(shown):
        lines.append(f'    more["and {len(arrows) - len(shown)} more changed edges"]')
    return lines
