"""``cowtail diff``: what changed is shown, what did not is established, and how is said."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import typer.testing

import cowtail
from cowtail.cli import app, common
from cowtail.harness import revisions
from cowtail.models.actions import Action
from cowtail.models.state import State
from cowtail.spec.comparison.differences import (
    MAX_ARROWS,
    Comparison,
    ViewChanges,
    as_markdown,
    compare,
    mermaid,
)
from cowtail.spec.comparison.equivalence import Equivalence, compare_graphs
from cowtail.spec.comparison.page import as_html
from cowtail.spec.comparison.recorder import record_scope
from cowtail.spec.machine import LifecycleMachine
from cowtail.spec.scopes import scope_named

GOLDEN = Path(__file__).parents[1] / "golden" / "diff_without_the_finish_handoff.md"


def _run(*words: object) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["diff", *map(str, words)])


def _graph(out: list[list[tuple[str, int]]], fingerprint: str) -> dict[str, Any]:
    """Return a record whose states all look alike, its edges given as name and target."""
    names = sorted({name for leaving in out for name, _ in leaving})
    return {
        "bound_hit": None,
        "seen": [[]],
        "seen_of": [0] * len(out),
        "labels": [[name, [], []] for name in names],
        "out": [[[names.index(name), target] for name, target in leaving] for leaving in out],
        "fingerprint": fingerprint,
    }


class _Backwards(LifecycleMachine):
    """The same machine, its successors in the opposite order: other numbers, same behaviour."""

    def successors(self, state: State) -> Iterator[tuple[Action, State, tuple[str, ...]]]:
        yield from reversed(list(super().successors(state)))


def test_a_model_is_equal_to_itself_and_it_says_how() -> None:
    result = _run(".", ".", "--scope", "window_tail")
    assert result.exit_code == common.HOLDS
    last = result.stdout.splitlines()[-1]
    assert last == "no change in behaviour: equality of the full graph up to renaming"


def test_another_order_of_exploring_gives_an_equal_graph() -> None:
    scope = scope_named("consumer_load")
    graphs = [record_scope(kind(scope), 10_000, 60) for kind in (LifecycleMachine, _Backwards)]
    assert graphs[0]["out"] != graphs[1]["out"]
    assert compare_graphs(graphs[0], graphs[1]) is Equivalence.EQUAL


def test_renamed_states_are_found_although_their_keys_differ() -> None:
    old = _graph([[("a", 1), ("b", 2)], [("c", 2)], []], "old")
    new = _graph([[("b", 1), ("a", 2)], [], [("c", 1)]], "new")
    assert compare_graphs(old, new) is Equivalence.EQUAL


def test_an_unrolled_loop_is_bisimilar_and_not_equal() -> None:
    loop = _graph([[("a", 0)]], "loop")
    unrolled = _graph([[("a", 1)], [("a", 0)]], "unrolled")
    assert compare_graphs(loop, unrolled) is Equivalence.BISIMILAR


def test_bisimulation_is_finer_than_equal_traces() -> None:
    """One chooses after a, the other at a: both can do ab and ac, and they are different."""
    late = _graph([[("a", 1)], [("b", 2), ("c", 2)], []], "late")
    early = _graph([[("a", 1), ("a", 2)], [("b", 3)], [("c", 3)], []], "early")
    assert compare_graphs(late, early) is Equivalence.DIFFERENT


@pytest.fixture(scope="module")
def without_handoff() -> Comparison:
    """The model compared with itself without the finish-time handoff."""
    names = (".", "rule:tail_dropped_at_finish")
    records = [revisions.record_of(name, ["lone_producer"], 100_000, 120.0) for name in names]
    return compare(*records, names, "100,000 states, 120 s")


def test_without_the_finish_handoff_exactly_its_edges_are_gone(without_handoff: Comparison) -> None:
    (scope,) = without_handoff.scopes
    assert without_handoff.different
    assert scope.equivalence == Equivalence.DIFFERENT.value
    assert all(not v.edges_added and not v.nodes_added for v in scope.views.values())
    assert scope.views["handoff"].nodes_removed == ["handed off at finish"]
    assert scope.views["handoff"].edges_removed == [
        ("handed off at finish", "end_pass", "handed off, shipped"),
        ("registered", "abort", "handed off at finish"),
    ]


def test_the_page_for_a_comment(without_handoff: Comparison) -> None:
    assert as_markdown(without_handoff) == GOLDEN.read_text(encoding="utf-8")


def test_the_html_page_stands_alone_and_marks_changes_in_words(
    without_handoff: Comparison,
) -> None:
    page = as_html(without_handoff)
    assert "http" not in page
    assert "src=" not in page
    assert "<b>removed</b>: registered — abort → handed off at finish" in page
    assert "<b>added</b>" not in page
    hostile = attrs.evolve(without_handoff, old="<script>")
    assert "<script>" not in as_html(hostile)


def test_json_has_the_verdict_and_every_scope() -> None:
    result = _run(".", ".", "--scope", "window_tail", "--format", "json")
    found = json.loads(result.stdout)
    assert found["verdict"].startswith("no change in behaviour")
    assert [scope["scope"] for scope in found["scopes"]] == ["window_tail"]


def test_a_bound_makes_it_undetermined_and_is_printed() -> None:
    result = _run(".", "rule:tail_dropped_at_finish", "--max-states", 100)
    assert result.exit_code == common.UNDETERMINED
    assert "OLD: max_states" in result.stdout
    assert "undetermined: a bound was hit (100 states, 120 s)" in result.stdout


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_a_saved_graph_is_the_same_bytes_again_and_can_be_compared(
    tmp_path: Path, name: str
) -> None:
    files = [tmp_path / str(number) / name for number in range(2)]
    for file in files:
        _run(".", ".", "--scope", "base_connector", "--save", file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert _run(files[0], ".", "--scope", "base_connector").exit_code == common.HOLDS


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("nowhere.json", "."), "nowhere.json: no graph can be read"),
        (("git:no-such-revision", "."), "git:no-such-revision: no such revision"),
        (("rule:no_rule", "."), "broken rule 'no_rule'"),
        ((".", ".", "--scope", "no_scope"), "scope 'no_scope'"),
        ((".", ".", "--format", "pdf"), "format 'pdf'"),
    ],
)
def test_bad_input_gets_one_line(words: tuple[str, ...], complaint: str) -> None:
    result = _run(*words)
    assert result.exit_code == common.USAGE
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"cowtail: {complaint}")


def test_a_revision_that_changes_a_comment_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(
        cowtail.__path__[0], repository / "cowtail", ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.chdir(repository)
    _commit("first")
    rules = repository / "cowtail" / "models" / "lifecycle.py"
    rules.write_text(rules.read_text() + "\n# a remark\n")
    _commit("second")
    before = set(Path(revisions.tempfile.gettempdir()).glob("cowtail-diff-*"))
    result = _run("git:HEAD~1", "git:HEAD", "--scope", "base_connector")
    assert result.exit_code == common.HOLDS, result.output
    assert "equality of the full graph" in result.stdout
    assert set(Path(revisions.tempfile.gettempdir()).glob("cowtail-diff-*")) <= before


def _commit(message: str) -> None:
    who = ["-c", "user.name=cowtail", "-c", "user.email=cowtail@example.org"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", *who, "commit", "-qm", message], check=True)


def test_a_reworded_property_differs_although_no_behaviour_does() -> None:
    record = revisions.record_of(".", ["base_connector"], 1_000, 60.0)
    reworded = record | {"properties": record["properties"] | {"S1": "Other words."}}
    found = compare(record, reworded, ("old", "new"), "")
    assert found.different
    assert found.verdict().startswith("no change in behaviour: equality")
    assert found.verdict().endswith("properties, actions or constants of scopes changed")


def test_a_diagram_has_a_bound_and_counts_what_it_leaves_out() -> None:
    edges = [(f"from {n}", "act", f"to {n}") for n in range(MAX_ARROWS + 3)]
    lines = mermaid(ViewChanges([], [], edges, []))
    assert sum("==>" in line for line in lines) == MAX_ARROWS
    assert lines[-1] == '    more["and 3 more changed edges"]'
