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


def test_lasso_enters_its_cycle_where_that_is_soonest() -> None:
    graph = graph_of("rest submit a", "rest enter x", "a go y", "x on y", "y back x")
    found = drains(graph, lambda action: action in ("go", "on", "back"), at_rest)
    assert found is not None
    # Walking from a, the first endless state, comes to the cycle at y; x is nearer.
    assert (found.path, found.cycle) == (("enter",), ("on", "back"))


class Seesaw:
    """Two interchangeable tokens; one of them is put on a seesaw and goes up and down for ever."""

    def initial(self) -> tuple[str, str]:
        return ("off", "off")

    def successors(
        self, state: tuple[str, str]
    ) -> Iterator[tuple[str, tuple[str, str], tuple[str, ...]]]:
        first, second = state
        if state == ("off", "off"):
            yield "low:0", ("low", "off"), ()
            yield "low:1", ("off", "low"), ()
            yield "high:1", ("off", "high"), ()
            yield "high:0", ("high", "off"), ()
        elif second == "off":
            yield (
                ("up:0", ("high", second), ())
                if first == "low"
                else ("down:0", ("low", second), ())
            )
        else:
            yield (
                ("up:1", (first, "high"), ()) if second == "low" else ("down:1", (first, "low"), ())
            )

    def key(self, state: tuple[str, str]) -> tuple[str, ...]:
        return tuple(sorted(state))

    def action_name(self, action: str) -> str:
        return action.partition(":")[0]

    def is_quiescent(self, state: tuple[str, str]) -> bool:
        return False


def test_cycle_is_concrete_under_symmetry_if_the_machine_is_given() -> None:
    graph = explore(Seesaw(), keep_graph=True).graph
    assert graph is not None

    def moves(action: str) -> bool:
        return action.startswith(("up", "down"))

    found = drains(graph, moves, lambda state: True, Seesaw())
    assert found is not None
    assert (found.path, found.cycle) == (("low:0",), ("up:0", "down:0"))
    represented = drains(graph, moves, lambda state: True)
    assert represented is not None
    assert represented.cycle == ("up:0", "down:1"), "the token that was found high is the other"


def test_incomplete_graph_is_refused() -> None:
    graph = explore(Drawn("a go b", "b go c"), keep_graph=True, max_states=2).graph
    assert graph is not None
    refusal = "the graph of 2 states is incomplete"
    with pytest.raises(ValueError, match=refusal):
        can_reach(graph, at_rest)
    with pytest.raises(ValueError, match=refusal):
        drains(graph, fair, at_rest)
