"""The explorer: shortest counterexamples, coverage, three verdicts, bounds, symmetry."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator

import pytest

from cowtail.spec.explorer import (
    Exploration,
    Invariant,
    Progress,
    Sometimes,
    StepInvariant,
    Verdict,
    ViolationKind,
    explore,
)

Transition = tuple[str, str, tuple[str, ...]]


class Drawn:
    """A machine that is drawn as ``"a go b !event"`` lines; what ends in ``.`` may rest."""

    def __init__(self, *lines: str) -> None:
        self.edges: dict[str, list[Transition]] = {}
        for line in lines:
            source, action, target, *events = line.split()
            self.edges.setdefault(source, []).append(
                (action, target, tuple(event.removeprefix("!") for event in events))
            )
        self.start = lines[0].split()[0]

    def initial(self) -> str:
        return self.start

    def successors(self, state: str) -> list[Transition]:
        return self.edges.get(state, [])

    def key(self, state: str) -> str:
        return state

    def action_name(self, action: str) -> str:
        return action.partition(":")[0]

    def is_quiescent(self, state: str) -> bool:
        return state.endswith(".")


class Tokens:
    """Interchangeable tokens on a short road: one walks if it is not ahead of another."""

    def __init__(self, tokens: int, length: int, *, symmetry: bool) -> None:
        self.tokens, self.length, self.symmetry = tokens, length, symmetry

    def initial(self) -> tuple[int, ...]:
        return (0,) * self.tokens

    def successors(
        self, state: tuple[int, ...]
    ) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
        for i, position in enumerate(state):
            if position < self.length and position == min(state):
                yield f"walk:{i}", (*state[:i], position + 1, *state[i + 1 :]), ()

    def key(self, state: tuple[int, ...]) -> Hashable:
        return tuple(sorted(state)) if self.symmetry else state

    def action_name(self, action: str) -> str:
        return action.partition(":")[0]

    def is_quiescent(self, state: tuple[int, ...]) -> bool:
        return set(state) == {self.length}


def never(*bad: str) -> Invariant[str]:
    """Forbid states by name."""
    return Invariant("N", "never", "", "", lambda state: f"it is {state}" if state in bad else None)


DIAMOND = ("a long b", "b long c", "a short c", "c on d.", "b aside e.")


def test_counterexample_is_the_shortest_path() -> None:
    found = explore(Drawn(*DIAMOND), invariants=[never("d.")])
    assert found.verdict is Verdict.VIOLATED
    assert found.violation is not None
    assert found.violation.kind is ViolationKind.INVARIANT
    assert (found.violation.identifier, found.violation.reason) == ("N", "it is d.")
    assert found.violation.path == ("short", "on")
    assert not found.complete


def test_initial_state_is_judged() -> None:
    found = explore(Drawn(*DIAMOND), invariants=[never("a")])
    assert found.violation is not None
    assert found.violation.path == ()


def test_shallowest_of_several_violations_is_reported() -> None:
    found = explore(Drawn(*DIAMOND), invariants=[never("d.", "e.", "b")])
    assert found.violation is not None
    assert found.violation.path == ("long",)


def test_counts_of_a_complete_search() -> None:
    found = explore(Drawn(*DIAMOND), invariants=[never("elsewhere")])
    assert (found.states, found.edges, found.depth) == (5, 5, 2)
    assert found.action_counts == {"aside": 1, "long": 2, "on": 1, "short": 1}
    assert found.verdict is Verdict.HOLDS
    assert found.complete


def test_step_invariants_see_transitions_to_known_states() -> None:
    seen: list[tuple[str, str, str, tuple[str, ...]]] = []

    def back_home(before: str, action: str, after: str, events: tuple[str, ...]) -> str | None:
        seen.append((before, action, after, events))
        return "home again" if action == "home" else None

    found = explore(
        Drawn("a go b", "b home a !returned"),
        step_invariants=[StepInvariant("T", "no return", "", "", back_home)],
    )
    assert found.violation is not None
    assert found.violation.kind is ViolationKind.STEP_INVARIANT
    assert found.violation.path == ("go", "home")
    assert seen[-1] == ("b", "home", "a", ("returned",))


def test_events_are_counted_on_transitions_to_known_states() -> None:
    found = explore(
        Drawn("a go b !left", "b home a !returned !rested"),
        sometimes=[Sometimes("returned", "", "")],
    )
    assert found.event_counts == {"left": 1, "rested": 1, "returned": 1}
    assert found.verdict is Verdict.HOLDS


def test_state_without_successors_is_a_deadlock_unless_quiescent() -> None:
    found = explore(Drawn("a go b", "b go c", "a stop d."))
    assert found.violation is not None
    assert found.violation.kind is ViolationKind.DEADLOCK
    assert found.violation.path == ("go", "go")
    assert "'c'" not in found.violation.reason
    assert found.violation.reason.endswith("c")


@pytest.mark.parametrize(
    ("actions", "events", "reason"),
    [
        (["go", "fly"], [], "never taken: fly"),
        ([], ["left", "crashed"], "never happened: crashed"),
        (["fly"], ["crashed"], "never taken: fly; never happened: crashed"),
    ],
)
def test_what_never_happened_fails_a_complete_search(
    actions: list[str], events: list[str], reason: str
) -> None:
    found = explore(
        Drawn("a go b. !left"),
        required_actions=actions,
        sometimes=[Sometimes(event, "", "") for event in events],
    )
    assert found.verdict is Verdict.VIOLATED
    assert found.violation is not None
    assert found.violation.kind is ViolationKind.UNREACHED
    assert found.violation.reason == reason
    assert found.complete


def test_what_never_happened_is_undetermined_in_a_bounded_search() -> None:
    found = explore(Drawn("a go b", "b go c", "c fly d."), required_actions=["fly"], max_states=2)
    assert found.verdict is Verdict.UNDETERMINED
    assert found.violation is None
    assert found.missing_actions == ("fly",)


def test_violation_within_the_bounds_is_a_violation() -> None:
    found = explore(Drawn("a go b", "b go c", "c go d."), invariants=[never("b")], max_states=2)
    assert found.verdict is Verdict.VIOLATED


def test_bound_on_states_is_hit_only_by_a_state_beyond_it() -> None:
    road = Drawn("a go b", "b go c", "c go d.", "d. back a")
    assert explore(road, max_states=4).verdict is Verdict.HOLDS
    stopped = explore(road, max_states=3)
    assert (stopped.verdict, stopped.bound_hit, stopped.states) == (
        Verdict.UNDETERMINED,
        "max_states",
        3,
    )


def test_bound_on_depth_is_hit_only_by_a_state_beyond_it() -> None:
    road = Drawn("a go b", "b go c", "b stay b", "c back a")
    assert explore(road, max_depth=2).verdict is Verdict.HOLDS
    stopped = explore(road, max_depth=1)
    assert (stopped.verdict, stopped.bound_hit, stopped.states) == (
        Verdict.UNDETERMINED,
        "max_depth",
        2,
    )
    assert stopped.action_counts["stay"] == 1, "the deepest states are expanded all the same"


def test_bound_on_time_is_undetermined() -> None:
    found = explore(Drawn("a go b."), max_seconds=1e-9)
    assert (found.verdict, found.bound_hit) == (Verdict.UNDETERMINED, "max_seconds")


@pytest.mark.parametrize("bound", ["max_states", "max_seconds", "max_depth"])
def test_bound_that_allows_nothing_is_refused(bound: str) -> None:
    with pytest.raises(ValueError, match=rf"{bound}=0: a bound is greater than 0; use None"):
        explore(Drawn("a go b."), **{bound: 0})  # type: ignore[arg-type]


def without_time(found: Exploration[str, str]) -> str:
    head, _, tail = found.summary("road").rpartition(" s, ")
    return f"{head.rpartition(' ')[0]} _ s, {tail}"


def test_summary_names_verdict_coverage_and_bounds() -> None:
    road = Drawn("a go b", "b stay b", "b go c.")
    found = explore(road, required_actions=["go", "stay"], max_states=2_000, max_seconds=None)
    assert without_time(found) == (
        "road: 3 states, 3 edges, depth 2, actions 2/2, _ s, holds (bounds: 2,000 states)"
    )
    stopped = explore(road, required_actions=["go", "fly"], max_seconds=None, max_depth=1)
    assert without_time(stopped) == (
        "road: 2 states, 3 edges, depth 1, actions 1/2, _ s, undetermined: max_depth reached "
        "(bounds: 2,000,000 states, depth 1)"
    )
    broken = explore(road, invariants=[never("b")], max_states=None, max_seconds=None)
    assert without_time(broken) == (
        "road: 2 states, 1 edges, depth 1, actions 1, _ s, "
        "violated: invariant N after 1 actions: it is b (no bounds)"
    )


def test_exception_of_the_machine_names_the_path() -> None:
    class Broken(Drawn):
        def successors(self, state: str) -> list[Transition]:
            if state == "c":
                raise ZeroDivisionError("in the machine")
            return super().successors(state)

    with pytest.raises(ZeroDivisionError, match="in the machine") as caught:
        explore(Broken("a go:1 b", "b go:2 c"))
    assert caught.value.__notes__ == ["while expanding the state after [go:1, go:2]"]
    assert gc.get_freeze_count() == 0


def test_symmetric_states_are_explored_once() -> None:
    plain = explore(Tokens(3, 2, symmetry=False))
    symmetric = explore(Tokens(3, 2, symmetry=True))
    # Behind the leaders everybody is level: 2 rounds of 3 walks, 2 x (2^3 - 1) + 1 states.
    assert (plain.states, symmetric.states) == (15, 7)
    assert (plain.depth, symmetric.depth) == (6, 6)


def test_path_under_symmetry_can_be_taken_as_it_stands() -> None:
    machine = Tokens(3, 4, symmetry=True)
    arrived = Invariant[tuple[int, ...]](
        "A", "", "", "", lambda state: "all arrived" if set(state) == {4} else None
    )
    found = explore(machine, invariants=[arrived])
    assert found.violation is not None
    state = machine.initial()
    for action in found.violation.path:
        state = {a: successor for a, successor, _ in machine.successors(state)}[action]
    assert state == (4, 4, 4)


def test_graph_has_every_transition_grouped_by_source() -> None:
    machine = Drawn("a go b !left", "a go c", "b home a !returned", "b on c", "c on d.")
    graph = explore(machine, keep_graph=True).graph
    assert graph is not None
    assert graph.complete
    assert graph.states == ["a", "b", "c", "d."]
    drawn = [
        (
            graph.states[graph.sources[edge]],
            graph.actions[graph.action_of[edge]],
            graph.states[graph.targets[edge]],
            graph.events[graph.events_of[edge]],
        )
        for state in range(len(graph.states))
        for edge in graph.edges_from(state)
    ]
    assert drawn == [
        (source, *transition) for source in machine.edges for transition in machine.edges[source]
    ]
    assert graph.path_to(3) == ("go", "on")
    assert [graph.targets[edge] for edge in graph.edges_to(3)] == [2, 3]


def test_graph_of_a_stopped_search_is_incomplete_and_its_frontier_has_no_edges() -> None:
    machine = Drawn("a go b", "a on c", "b go c", "b on d.", "c go a")
    stopped = explore(machine, keep_graph=True, max_states=3)
    assert stopped.graph is not None
    assert not stopped.graph.complete
    assert [list(stopped.graph.edges_from(state)) for state in (0, 1, 2)] == [[0, 1], [2], []]


def test_path_along_edges_is_made_concrete_under_symmetry() -> None:
    class Round(Tokens):
        """Tokens that start again once they have all arrived."""

        def successors(
            self, state: tuple[int, ...]
        ) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
            if set(state) == {self.length}:
                for i in range(self.tokens):
                    yield f"back:{i}", (*state[:i], 0, *state[i + 1 :]), ()
                yield "rest", state, ()
            yield from super().successors(state)

    machine = Round(2, 1, symmetry=True)
    graph = explore(machine, keep_graph=True).graph
    assert graph is not None
    walk_first, walk_second, back = (next(iter(graph.edges_from(s))) for s in range(3))
    rest = graph.edges_from(2)[-1]
    twice_around = [walk_first, walk_second, rest, back, walk_second, back, walk_second]
    path = graph.concrete_path(machine, twice_around)
    state = machine.initial()
    for action, edge in zip(path, twice_around, strict=True):
        state = {a: successor for a, successor, _ in machine.successors(state)}[action]
        assert machine.key(state) == machine.key(graph.states[graph.targets[edge]])
    stored = tuple(graph.actions[graph.action_of[edge]] for edge in twice_around)
    assert path != stored, "the stored actions name the wrong token the second time around"
    with pytest.raises(ValueError, match="but the path is at 0"):
        graph.concrete_path(machine, [walk_second])


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cowtail.spec.explorer._SECONDS_BETWEEN_PROGRESS", 0.0)
    reports: list[Progress] = []
    explore(Drawn("a go b", "a go c", "b go d.", "c go d."), progress=reports.append)
    assert [(p.states, p.edges, p.depth, p.waiting) for p in reports] == [
        (1, 0, 0, 1),
        (3, 2, 1, 2),
        (4, 3, 1, 2),
        (4, 4, 2, 1),
    ]
