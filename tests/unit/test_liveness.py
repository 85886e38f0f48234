"""Liveness: every state can reach a goal; every fair run ends, and ends well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cowtail.spec.explorer import StateGraph, ViolationKind, explore
from cowtail.spec.liveness import can_reach, drains


class Drawn:
    """A machine that is drawn as ``"a go b"`` lines; every state may rest."""

    def __init__(self, *lines: str) -> None:
        self.edges: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
        for line in lines:
            source, action, target = line.split()
            self.edges.setdefault(source, []).append((action, target, ()))
        self.start = lines[0].split()[0]

    def initial(self) -> str:
        return self.start

    def successors(self, state: str) -> list[tuple[str, str, tuple[str, ...]]]:
        return self.edges.get(state, [])

    def key(self, state: str) -> str:
        return state

    def action_name(self, action: str) -> str:
        return action

    def is_quiescent(self, state: str) -> bool:
        return True


def graph_of(*lines: str) -> StateGraph[str, str]:
    graph = explore(Drawn(*lines), keep_graph=True).graph
    assert graph is not None
    return graph


def at_rest(state: str) -> bool:
    return state == "rest"


def fair(action: str) -> bool:
    return action != "submit"


def test_goal_that_every_state_can_reach() -> None:
    graph = graph_of("rest submit busy", "busy work busy", "busy finish rest")
    assert can_reach(graph, at_rest) is None


def test_shortest_path_to_a_trap_is_reported() -> None:
    graph = graph_of(
        "rest submit busy",
        "busy finish rest",
        "busy fail lost",
        "lost retry lost2",
        "lost2 back lost",
    )
    found = can_reach(graph, at_rest)
    assert found is not None
    assert found.kind is ViolationKind.GOAL_LOST
    assert found.path == ("submit", "fail")
    assert found.reason.endswith("from lost")


def test_only_followed_actions_lead_to_the_goal() -> None:
    graph = graph_of("rest go waiting", "waiting submit busy", "busy finish rest")
    assert can_reach(graph, at_rest) is None
    found = can_reach(graph, at_rest, follow=fair)
    assert found is not None
    assert found.path == ("go",)


def test_fair_runs_that_all_settle() -> None:
    graph = graph_of("rest submit busy", "busy work done", "busy finish rest", "done finish rest")
    assert drains(graph, fair, at_rest) is None


def test_cycle_that_needs_an_unfair_action_is_no_cycle() -> None:
    graph = graph_of("rest submit busy", "busy finish rest")
    assert drains(graph, fair, at_rest) is None
    found = drains(graph, lambda action: True, at_rest)
    assert found is not None
    assert found.kind is ViolationKind.CYCLE
    assert (found.path, found.cycle) == ((), ("submit", "finish"))


def test_state_without_fair_actions_that_is_not_settled() -> None:
    graph = graph_of(
        "rest submit busy", "busy work stuck", "stuck submit busy2", "busy2 finish rest"
    )
    found = drains(graph, fair, at_rest)
    assert found is not None
    assert found.kind is ViolationKind.STUCK
    assert found.path == ("submit", "work")
    assert found.reason.endswith("not settled: stuck")


def test_self_loop_is_a_cycle() -> None:
    graph = graph_of("rest submit busy", "busy poll busy", "busy finish rest")
    found = drains(graph, fair, at_rest)
    assert found is not None
    assert (found.path, found.cycle) == (("submit",), ("poll",))


def test_lasso_leads_to_the_shallowest_state_of_a_shortest_cycle() -> None:
    graph = graph_of(
        "rest submit a",  # a leads into the cycles and is on none
        "a go b",
        "b long c",
        "c long d",
        "d long b",
        "d short e",
        "e short d",
        "b finish rest",
    )
    found = drains(graph, fair, at_rest)
    assert found is not None
    assert found.path == ("submit", "go")
    assert found.cycle == ("long", "long", "long")


def test_parallel_edges_are_peeled_one_by_one() -> None:
    graph = graph_of("rest submit a", "a left b", "a right b", "b finish rest")
    assert drains(graph, fair, at_rest) is None


def test_cycle_is_concrete_under_symmetry_if_the_machine_is_given() -> None:
    class Tokens:
        """Two interchangeable tokens that take turns: who is behind walks; around and around."""

        def initial(self) -> tuple[int, int]:
            return (0, 0)

        def successors(
            self, state: tuple[int, int]
        ) -> Iterator[tuple[str, tuple[int, int], tuple[str, ...]]]:
            for i, position in enumerate(state):
                if state == (2, 2) or (position < 2 and position == min(state)):
                    yield f"walk:{i}", (*state[:i], (position + 1) % 3, *state[i + 1 :]), ()  # type: ignore[misc]

        def key(self, state: tuple[int, int]) -> tuple[int, ...]:
            return tuple(sorted(state))

        def action_name(self, action: str) -> str:
            return "walk"

        def is_quiescent(self, state: tuple[int, int]) -> bool:
            return False

    machine = Tokens()
    graph = explore(machine, keep_graph=True).graph
    assert graph is not None
    found = drains(graph, lambda action: True, lambda state: False, machine)
    assert found is not None
    state = machine.initial()
    for action in found.path + found.cycle:
        state = {a: successor for a, successor, _ in machine.successors(state)}[action]
    entry = machine.initial()
    for action in found.path:
        entry = {a: successor for a, successor, _ in machine.successors(entry)}[action]
    assert machine.key(state) == machine.key(entry)


def test_incomplete_graph_is_refused() -> None:
    graph = explore(Drawn("a go b", "b go c"), keep_graph=True, max_states=2).graph
    assert graph is not None
    refusal = "the graph of 2 states is incomplete"
    with pytest.raises(ValueError, match=refusal):
        can_reach(graph, at_rest)
    with pytest.raises(ValueError, match=refusal):
        drains(graph, fair, at_rest)
