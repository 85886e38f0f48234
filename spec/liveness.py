"""Liveness on a complete state graph: what can always happen, and what must happen in the end.

Both questions are answered by walking the graph backwards once, in time linear in its edges:

- ``can_reach``: from every reachable state *some* path leads to a goal (no state is a trap);
- ``drains``: *every* path of fair actions ends, and ends well. States without fair successors
  are peeled off until none is left; what cannot be peeled has a fair successor for ever, so it
  is exactly what leads into a cycle. Strongly connected components would say the same; peeling
  needs no stack as deep as the graph, and networkx would take a dict an edge, of which there
  are a million.

A bounded search cannot answer either: an incomplete graph is refused.

With symmetry both hold of the machine if they hold of the graph, provided that the predicates
do not tell interchangeable parts apart either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from cowtail.spec.exploration import A, Machine, S, StateGraph, Violation, ViolationKind


def can_reach(
    graph: StateGraph[S, A],
    goal: Callable[[S], bool],
    follow: Callable[[A], bool] = lambda action: True,
) -> Violation[A] | None:
    """Return None if from every state some path of followed actions leads to a goal state.

    Otherwise return the shortest path to a state from which none does (kind "goal lost").

    Raises:
        ValueError: the graph is incomplete.
    """
    _require_complete(graph)
    predecessors = _predecessors(graph, _chosen(graph, follow))
    good = bytearray(goal(state) for state in graph.states)
    waiting = deque(number for number, is_goal in enumerate(good) if is_goal)
    while waiting:
        for source in predecessors[waiting.popleft()]:
            if not good[source]:
                good[source] = True
                waiting.append(source)
    lost = good.find(0)
    if lost < 0:
        return None
    reason = f"no path of the followed actions leads to a goal from {graph.states[lost]}"
    return Violation(ViolationKind.GOAL_LOST, "can reach", reason, graph.path_to(lost))


def drains(
    graph: StateGraph[S, A],
    fair: Callable[[A], bool],
    settled: Callable[[S], bool],
    machine: Machine[S, A] | None = None,
) -> Violation[A] | None:
    """Return None if every run of fair actions, from wherever, ends in a settled state.

    Otherwise return the shortest path to a state that has no fair action and is not settled
    (kind "stuck"), or a path to a cycle and the cycle (kind "cycle").

    Args:
        graph: a complete graph.
        fair: the actions that are taken as long as one is enabled.
        settled: what must hold where no fair action is enabled.
        machine: with symmetry, makes the actions of the cycle concrete; without it they are
            those of the states that represent the others, possibly renamed.

    Raises:
        ValueError: the graph is incomplete.
    """
    _require_complete(graph)
    chosen = _chosen(graph, fair)
    action_of = graph.action_of
    fair_successors = [
        sum(1 for edge in graph.edges_from(state) if chosen[action_of[edge]])
        for state in range(len(graph.states))
    ]
    sinks = [state for state, count in enumerate(fair_successors) if not count]
    for sink in sinks:
        if not settled(graph.states[sink]):
            reason = f"no fair action is enabled, and it is not settled: {graph.states[sink]}"
            return Violation(ViolationKind.STUCK, "drains", reason, graph.path_to(sink))
    predecessors = _predecessors(graph, chosen)
    peeled = 0
    while sinks:
        peeled += 1
        for source in predecessors[sinks.pop()]:
            fair_successors[source] -= 1
            if not fair_successors[source]:
                sinks.append(source)
    if peeled == len(graph.states):
        return None
    endless = [bool(count) for count in fair_successors]
    return _lasso(graph, chosen, endless, machine)


def _require_complete(graph: StateGraph[S, A]) -> None:
    if not graph.complete:
        raise ValueError(
            f"the graph of {len(graph.states):,} states is incomplete: liveness is judged on "
            "complete graphs only; raise the bound that the search hit"
        )


def _chosen(graph: StateGraph[S, A], wanted: Callable[[A], bool]) -> bytes:
    """Return for each action of the graph whether it is wanted: one call an action, not an edge."""
    return bytes(bool(wanted(action)) for action in graph.actions)


def _predecessors(graph: StateGraph[S, A], chosen: bytes) -> list[list[int]]:
    """Return for each state the sources of its chosen edges, one entry an edge."""
    predecessors: list[list[int]] = [[] for _ in graph.states]
    for source, target, action in zip(graph.sources, graph.targets, graph.action_of, strict=True):
        if chosen[action]:
            predecessors[target].append(source)
    return predecessors


def _lasso(
    graph: StateGraph[S, A], chosen: bytes, endless: list[bool], machine: Machine[S, A] | None
) -> Violation[A]:
    """Return a cycle among the endless states, each of which has a fair edge to another one.

    From the shallowest endless state on, such edges are walked until a state repeats: that one
    is on a cycle, and the shortest cycle through it is reported, from its shallowest state on.
    """

    def endless_edges(state: int) -> Iterator[int]:
        for edge in graph.edges_from(state):
            if chosen[graph.action_of[edge]] and endless[graph.targets[edge]]:
                yield edge

    at, walked = endless.index(True), set[int]()
    while at not in walked:
        walked.add(at)
        at = graph.targets[next(endless_edges(at))]
    loop = _shortest_cycle(graph, at, endless_edges)
    turn = min(range(len(loop)), key=lambda i: graph.sources[loop[i]])
    loop = loop[turn:] + loop[:turn]
    stem = graph.edges_to(graph.sources[loop[0]])
    if machine is not None:
        path = graph.concrete_path(machine, stem + loop)
    else:
        path = tuple(graph.actions[graph.action_of[edge]] for edge in stem + loop)
    reason = f"fair actions can go on for ever: a cycle of {len(loop)}"
    return Violation(
        ViolationKind.CYCLE, "drains", reason, path[: len(stem)], cycle=path[len(stem) :]
    )


def _shortest_cycle(
    graph: StateGraph[S, A], start: int, edges_from: Callable[[int], Iterator[int]]
) -> list[int]:
    """Return the edges of a shortest cycle through a state that is known to be on one."""
    arrival: dict[int, int] = {}
    waiting = deque([start])
    while start not in arrival:
        for edge in edges_from(waiting.popleft()):
            if graph.targets[edge] not in arrival:
                arrival[graph.targets[edge]] = edge
                waiting.append(graph.targets[edge])
    loop = [arrival[start]]
    while graph.sources[loop[-1]] != start:
        loop.append(arrival[graph.sources[loop[-1]]])
    return loop[::-1]
