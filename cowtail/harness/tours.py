"""Tours: runs that take every edge of a scope's state graph, replayed against a target.

Complete within the scope, which no amount of fuzzing is. An edge is an action's name between
two search keys; with symmetry one concrete step stands for all that are equal to it up to the
names of blocks, ranks and equal requests. Every step checks that it led where the graph says.

A greedy walk: take an edge not taken yet, else go to the nearest one ahead, else start again.
The exact minimum (a flow problem) was left out: a run in lockstep costs the same whichever way
its steps are cut into tests, and greedy tours are a small multiple of the edges.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Hashable

import attrs

from cowtail.harness.lockstep import Diverged, Finding, Lockstep
from cowtail.harness.target import Target
from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.exploration import StateGraph
from cowtail.spec.explorer import explore
from cowtail.spec.machine import LifecycleMachine

MAX_STATES = 200_000
"""A scope with more states is not toured: its graph would not fit into patience or memory."""

Edge = tuple[str, int]
"""The action's name and the state that it leads to."""


class TooLarge(Exception):
    """A scope has more states than a tour can remember; the message names both."""


@attrs.frozen
class TourReport:
    """How much of a scope's graph was taken against a target, in how many tests and steps.

    ``seconds`` is the only value that differs between equal runs.
    """

    scope: str
    edges: int
    taken: int
    tests: int
    steps: int
    seconds: float
    finding: Finding | None

    def summary(self) -> str:
        """Return one line."""
        outcome = "diverged" if self.finding else "every edge" if self.complete else "bound reached"
        return (
            f"{self.scope}: {self.taken:,} of {self.edges:,} edges, {self.tests:,} tests, "
            f"{self.steps:,} steps, {self.seconds:.1f} s, {outcome}"
        )

    @property
    def complete(self) -> bool:
        """Whether every edge was taken and agreed on."""
        return self.finding is None and self.taken == self.edges


class _Plan:
    """The edges not taken yet, and the way to the nearest of them."""

    def __init__(self, edges: list[list[Edge]]) -> None:
        self._edges = edges
        self._untaken = [dict.fromkeys(out) for out in edges]
        self._spent = [False] * len(edges)  # nothing untaken is left at or beyond this state

    def take(self, state: int, edge: Edge) -> bool:
        """Note that an edge was taken; whether it was for the first time."""
        new = edge in self._untaken[state]
        self._untaken[state].pop(edge, None)
        return new

    def route(self, start: int) -> list[tuple[int, Edge]]:
        """Return the shortest way from ``start`` that ends with an untaken edge; empty if none.

        Each step is a state and the edge to take from it.
        """
        came_from: dict[int, tuple[int, Edge] | None] = {start: None}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            for edge in self._untaken[state]:
                return [*_way(came_from, state), (state, edge)]
            for edge in self._edges[state]:
                following = edge[1]
                if following not in came_from and not self._spent[following]:
                    came_from[following] = (state, edge)
                    queue.append(following)
        for state in came_from:
            self._spent[state] = True
        return []


def _way(came_from: dict[int, tuple[int, Edge] | None], state: int) -> list[tuple[int, Edge]]:
    way = []
    while (step := came_from[state]) is not None:
        way.append(step)
        state = step[0]
    return way[::-1]


def edges_of(graph: StateGraph[State, Action]) -> list[dict[Edge, Action]]:
    """Return the distinct edges that leave each state, with the action of its representative."""
    edges: list[dict[Edge, Action]] = [{} for _ in graph.states]
    for source, target, action in zip(graph.sources, graph.targets, graph.action_of, strict=True):
        taken = graph.actions[action]
        edges[source].setdefault((taken.name, target), taken)
    return edges


@attrs.frozen(eq=False)
class _Map:
    """A scope's graph with its edges; ``keys`` are filled in as they are needed."""

    machine: LifecycleMachine
    graph: StateGraph[State, Action]
    edges: list[dict[Edge, Action]]
    keys: dict[int, Hashable] = attrs.field(factory=dict)

    def key_of(self, state: int) -> Hashable:
        """Return the search key of a state of the graph."""
        if state not in self.keys:
            self.keys[state] = self.machine.key(self.graph.states[state])
        return self.keys[state]


@functools.lru_cache(maxsize=4)  # the kill matrix tours the same few scopes once a fault
def _map_of(scope: Scope) -> _Map:
    """Explore a scope with the model's rules as they are: never under a broken one."""
    machine = LifecycleMachine(scope)
    exploration = explore(machine, max_states=MAX_STATES, max_seconds=None, keep_graph=True)
    return _map_from(scope, exploration.graph)


def _map_from(scope: Scope, graph: StateGraph[State, Action] | None) -> _Map:
    if graph is None or not graph.complete or len(graph.states) > MAX_STATES:
        raise TooLarge(
            f"scope {scope.name!r} has more than {MAX_STATES:,} states: too many for a tour; "
            "use a smaller scope, or fuzz"
        )
    return _Map(LifecycleMachine(scope), graph, edges_of(graph))


class _Tour:
    """One tour of a scope: what was planned, taken, and found."""

    def __init__(
        self, scope: Scope, target: Target, graph: StateGraph[State, Action] | None
    ) -> None:
        self.scope = scope
        self.target = target
        self.map = _map_of(scope) if graph is None else _map_from(scope, graph)
        self.in_all = sum(map(len, self.map.edges))
        self.plan = _Plan([list(out) for out in self.map.edges])
        self.detours: list[tuple[int, Edge]] = []
        self.taken = self.tests = self.steps = 0

    def walk(self) -> bool:
        """Start afresh and take edges for as long as there are new ones ahead.

        Returns false if there are none from the start. Raises Diverged.
        """
        route = self.plan.route(0)
        if not route:
            return False
        with self._test() as pair:
            while route:
                for state, edge in route:
                    action = self._action(pair.state, edge)
                    if action is None:
                        # The concrete state, equal in key, goes another way: take the new edge
                        # of this route later, from the representative of its own state.
                        self.plan.take(*route[-1])
                        self.detours.append(route[-1])
                        return True
                    self._perform(pair, action)
                    self.taken += self.plan.take(state, edge)
                route = self.plan.route(route[-1][1][1])
        return True

    def _action(self, state: State, edge: Edge) -> Action | None:
        """Return the action of ``edge`` as ``state`` has it, with its own blocks and ranks."""
        name, following = edge
        wanted = self.map.key_of(following)
        for action in lifecycle.enabled(self.scope, state):
            if action.name == name:
                successor = lifecycle.step(self.scope, state, action).state
                if self.map.machine.key(successor) == wanted:
                    return action
        return None

    def detour(self, state: int, edge: Edge) -> None:
        """Take an edge from the representative of its state. Raises Diverged."""
        with self._test() as pair:
            for action in (*self.map.graph.path_to(state), self.map.edges[state][edge]):
                self._perform(pair, action)
        self.taken += 1

    def _test(self) -> Lockstep:
        self.tests += 1
        return Lockstep(self.scope, self.target)

    def _perform(self, pair: Lockstep, action: Action) -> None:
        self.steps += 1
        try:
            pair.perform(action)
        except Diverged as error:
            raise _Found(Finding(self.scope, (*pair.actions, action), error.divergence)) from error


class _Found(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self.finding = finding


def tour(
    scope: Scope,
    target: Target,
    *,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    graph: StateGraph[State, Action] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TourReport:
    """Take every edge of ``scope`` in lockstep with ``target``, until it diverges.

    ``max_steps`` bounds the steps taken and ``max_seconds`` the time, looked at between tests.
    ``graph`` is the scope's complete graph under symmetry, if it is known; else the scope is
    explored first, in as long as it takes. ``progress`` is told edges taken and edges in all.
    Raises TooLarge for a scope of more than MAX_STATES states.
    """
    started = time.perf_counter()
    work = _Tour(scope, target, graph)

    def within_bounds() -> bool:
        if max_steps is not None and work.steps >= max_steps:
            return False
        return max_seconds is None or time.perf_counter() - started < max_seconds

    finding: Finding | None = None
    try:
        while within_bounds():
            if not work.walk():
                if not work.detours:
                    break
                work.detour(*work.detours.pop())
            if progress is not None:
                progress(work.taken, work.in_all)
    except _Found as error:
        finding = error.finding
    seconds = time.perf_counter() - started
    return TourReport(scope.name, work.in_all, work.taken, work.tests, work.steps, seconds, finding)
