"""The explorer: breadth first, shortest counterexamples, bounds printed with the verdict.

It is generic over any ``Machine`` and judges invariants on every state, step invariants and
events on every transition, and deadlocks. Symmetry is the machine's: states with one key are
explored once, through the concrete state that was found first, so that every path can be
replayed as it stands.

>>> class Counter:
...     def initial(self): return 0
...     def successors(self, state):
...         if state < 3: yield "up", state + 1, ()
...         if state > 0: yield "reset", 0, ("went back",)
...     def key(self, state): return state
...     def action_name(self, action): return action
...     def is_quiescent(self, state): return False
>>> below_3 = Invariant("I1", "below 3", "The count is below 3.", "this example",
...                     lambda count: None if count < 3 else f"the count is {count}")
>>> found = explore(Counter(), invariants=[below_3])
>>> print(found.violation)
invariant I1 after 3 actions: the count is 3
>>> found.violation.path
('up', 'up', 'up')
>>> explore(Counter(), required_actions=["up", "reset"]).verdict.value
'holds'

A state graph is kept on demand only. The search itself keeps keys, and of states those of the
level at hand: keeping a frontier on disk, or hashes instead of keys, was left out, because
every scope that is worth waiting for fits into memory and a hash collision would be a silent
hole in the proof. Objects that are alive between levels are frozen for the garbage collector
until the search ends (``gc.freeze``): states are never cyclic garbage.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic

from cowtail.spec.exploration import (
    A,
    Bounds,
    Exploration,
    Invariant,
    Machine,
    Progress,
    S,
    SearchTree,
    Sometimes,
    StateGraph,
    StepInvariant,
    Verdict,
    Violation,
    ViolationKind,
    names_missing,
)

__all__ = [
    "Bounds",
    "Exploration",
    "Invariant",
    "Machine",
    "Progress",
    "SearchTree",
    "Sometimes",
    "StateGraph",
    "StepInvariant",
    "Verdict",
    "Violation",
    "ViolationKind",
    "explore",
]

DEFAULT_MAX_STATES = 2_000_000
DEFAULT_MAX_SECONDS = 300.0
_SECONDS_BETWEEN_PROGRESS = 0.2


def explore(
    machine: Machine[S, A],
    *,
    invariants: Sequence[Invariant[S]] = (),
    step_invariants: Sequence[StepInvariant[S, A]] = (),
    sometimes: Sequence[Sometimes] = (),
    required_actions: Sequence[str] = (),
    max_states: int | None = DEFAULT_MAX_STATES,
    max_seconds: float | None = DEFAULT_MAX_SECONDS,
    max_depth: int | None = None,
    keep_graph: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Exploration[S, A]:
    """Explore every reachable state within the bounds, breadth first.

    The first violation ends the search. Invariants are judged when a state is found, step
    invariants on every transition, also on one that leads to a state already seen. A required
    action or a sometimes-event that never happened is a violation if the search was complete;
    otherwise the verdict is undetermined.

    Args:
        machine: what to explore.
        invariants: judged on every state, in this order.
        step_invariants: judged on every transition, in this order.
        sometimes: events that must happen.
        required_actions: names of actions that must be taken.
        max_states: stop before a state beyond this many is added.
        max_seconds: stop when the search has lasted this long.
        max_depth: states that need more actions than this are counted as out of bounds.
        keep_graph: keep all states and transitions, for liveness and projections.
        progress: called about five times a second.

    Raises:
        ValueError: a bound is not positive.
        Exception: whatever the machine or a check raises, with the path added as a note.
    """
    bounds = Bounds(max_states, max_seconds, max_depth)
    search = _Search(machine, invariants, step_invariants, bounds, keep_graph, progress)
    violation = search.run()
    complete = violation is None and search.bound_hit is None
    seconds = search.elapsed()
    action_counts = search.count_actions()
    event_counts = dict(sorted(search.event_counts.items()))
    missing_actions = names_missing(required_actions, action_counts)
    missing_sometimes = names_missing([s.name for s in sometimes], event_counts)
    if complete:
        violation = _unreached(missing_actions, missing_sometimes)
    if violation is not None:
        verdict = Verdict.VIOLATED
    else:
        verdict = Verdict.HOLDS if search.bound_hit is None else Verdict.UNDETERMINED
    return Exploration(
        verdict=verdict,
        violation=violation,
        complete=complete,
        states=len(search.tree.parents),
        edges=search.edges,
        depth=search.depth,
        seconds=seconds,
        action_counts=action_counts,
        event_counts=event_counts,
        bounds=bounds,
        bound_hit=search.bound_hit,
        required_actions=tuple(required_actions),
        missing_actions=missing_actions,
        missing_sometimes=missing_sometimes,
        graph=search.graph(complete),
    )


def _unreached(actions: tuple[str, ...], events: tuple[str, ...]) -> Violation[A] | None:
    """Return the violation of what a complete search should have met, and has not."""
    missing = actions + events
    if not missing:
        return None
    parts = []
    if actions:
        parts.append(f"never taken: {', '.join(actions)}")
    if events:
        parts.append(f"never happened: {', '.join(events)}")
    return Violation(ViolationKind.UNREACHED, missing[0], "; ".join(parts))


class _Search(Generic[S, A]):
    """One run of the search; what it has counted is valid however the run ends."""

    def __init__(
        self,
        machine: Machine[S, A],
        invariants: Sequence[Invariant[S]],
        step_invariants: Sequence[StepInvariant[S, A]],
        bounds: Bounds,
        keep_graph: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.machine = machine
        self.invariants = invariants
        self.step_invariants = step_invariants
        self.bounds = bounds
        self.progress = progress
        self.tree: SearchTree[A] = SearchTree(array("I"), [])
        self.edges = 0
        self.depth = 0
        self.times_taken: defaultdict[A, int] = defaultdict(int)
        self.event_counts: defaultdict[str, int] = defaultdict(int)
        self.bound_hit: str | None = None
        self.recorder: _Recorder[S, A] | None = _Recorder() if keep_graph else None
        self._started = time.perf_counter()
        self._progress_due = self._started + _SECONDS_BETWEEN_PROGRESS

    def run(self) -> Violation[A] | None:
        """Expand level after level until none is left, a bound is hit, or a property violated."""
        initial = self.machine.initial()
        ids: dict[Hashable, int] = {self.machine.key(initial): 0}
        violation = self._found(initial, 0, None)
        level, first = [initial], 0
        try:
            while level and violation is None and self.bound_hit in (None, "max_depth"):
                next_level: list[S] = []
                violation = self._expand(level, first, next_level, ids)
                first += len(level)
                level = next_level
                gc.freeze()  # or the collector walks every state kept, again and again
        finally:
            gc.unfreeze()
        return violation

    def _expand(
        self, level: list[S], first: int, next_level: list[S], ids: dict[Hashable, int]
    ) -> Violation[A] | None:
        """Expand the states of one level, numbered from ``first``; append the new to the next.

        This is the inner loop. A transition to a known state costs one lookup and one count;
        attributes are bound to locals, because that is measurable here.
        """
        successors, key, known = self.machine.successors, self.machine.key, ids.get
        times_taken, record, steps = self.times_taken, self.recorder, self.step_invariants
        full, deepest = self.bounds.max_states, self.depth == self.bounds.max_depth
        source, edges = first, self.edges
        try:
            for source, state in enumerate(level, first):
                self.edges = edges
                if self._out_of_time(waiting=len(ids) - source):
                    return None
                if record is not None:
                    record.start(source)
                for action, successor, events in successors(state):
                    edges += 1
                    times_taken[action] += 1
                    if events:
                        for event in events:
                            self.event_counts[event] += 1
                    if steps:
                        violation = self._judge_step(source, state, action, successor, events)
                        if violation is not None:
                            return violation
                    packed = key(successor)
                    target = known(packed)
                    if target is None:
                        if deepest:
                            self.bound_hit = "max_depth"
                            continue
                        target = len(ids)
                        if target == full:
                            self.bound_hit = "max_states"
                            return None
                        ids[packed] = target
                        next_level.append(successor)
                        violation = self._found(successor, source, action)
                        if violation is not None:
                            return violation
                    if record is not None:
                        record.add(source, target, action, events)
                if edges == self.edges and not self.machine.is_quiescent(state):
                    return self._violation(
                        ViolationKind.DEADLOCK, "deadlock", f"nothing is enabled in {state}", source
                    )
        except Exception as error:
            path = ", ".join(str(action) for action in self.tree.path_to(source))
            error.add_note(f"while expanding the state after [{path}]")
            raise
        finally:
            self.edges = edges
            self.depth += bool(next_level)
        return None

    def _found(self, state: S, parent: int, action: A | None) -> Violation[A] | None:
        """Number a new state and judge the invariants on it."""
        number = len(self.tree.parents)
        self.tree.parents.append(parent)
        self.tree.actions.append(action)
        if self.recorder is not None:
            self.recorder.states.append(state)
        for invariant in self.invariants:
            reason = invariant.check(state)
            if reason is not None:
                return self._violation(
                    ViolationKind.INVARIANT, invariant.identifier, reason, number
                )
        return None

    def _judge_step(
        self, source: int, state: S, action: A, successor: S, events: tuple[str, ...]
    ) -> Violation[A] | None:
        """Judge the step invariants on one transition."""
        for step in self.step_invariants:
            reason = step.check(state, action, successor, events)
            if reason is not None:
                path = (*self.tree.path_to(source), action)
                return Violation(ViolationKind.STEP_INVARIANT, step.identifier, reason, path)
        return None

    def _violation(
        self, kind: ViolationKind, identifier: str, reason: str, state: int
    ) -> Violation[A]:
        return Violation(kind, identifier, reason, self.tree.path_to(state))

    def _out_of_time(self, waiting: int) -> bool:
        """Report progress when it is due; whether the time allowed is used up."""
        now = time.perf_counter()
        seconds = now - self._started
        if self.progress is not None and now >= self._progress_due:
            self._progress_due = now + _SECONDS_BETWEEN_PROGRESS
            states = len(self.tree.parents)
            self.progress(Progress(states, self.edges, self.depth, waiting, seconds))
        if self.bounds.max_seconds is None or seconds < self.bounds.max_seconds:
            return False
        self.bound_hit = "max_seconds"
        return True

    def elapsed(self) -> float:
        """Return the seconds since the search was set up."""
        return time.perf_counter() - self._started

    def count_actions(self) -> dict[str, int]:
        """Return how often actions of each name were taken, sorted by name."""
        counts: defaultdict[str, int] = defaultdict(int)
        for action, times in self.times_taken.items():
            counts[self.machine.action_name(action)] += times
        return dict(sorted(counts.items()))

    def graph(self, complete: bool) -> StateGraph[S, A] | None:
        """Return the graph if it was to be kept."""
        return None if self.recorder is None else self.recorder.finish(self.tree, complete)


class _Recorder(Generic[S, A]):
    """Collects the state graph during the search; equal actions and events are kept once."""

    def __init__(self) -> None:
        self.states: list[S] = []
        self._actions: dict[A, int] = {}
        self._events: dict[tuple[str, ...], int] = {}
        self._sources = array("I")
        self._targets = array("I")
        self._action_of = array("I")
        self._events_of = array("I")
        self._first_edges = array("I")

    def start(self, source: int) -> None:
        """Note that the edges added from here on leave ``source``, the next in number."""
        assert source == len(self._first_edges), f"state {source} is expanded out of order"
        self._first_edges.append(len(self._sources))

    def add(self, source: int, target: int, action: A, events: tuple[str, ...]) -> None:
        """Add one edge."""
        self._sources.append(source)
        self._targets.append(target)
        self._action_of.append(self._actions.setdefault(action, len(self._actions)))
        self._events_of.append(self._events.setdefault(events, len(self._events)))

    def finish(self, tree: SearchTree[A], complete: bool) -> StateGraph[S, A]:
        """Return the graph; states that were not expanded have no edges."""
        unexpanded = len(self.states) + 1 - len(self._first_edges)
        self._first_edges.extend([len(self._sources)] * unexpanded)
        return StateGraph(
            states=self.states,
            tree=tree,
            complete=complete,
            actions=list(self._actions),
            events=list(self._events),
            sources=self._sources,
            targets=self._targets,
            action_of=self._action_of,
            events_of=self._events_of,
            first_edges=self._first_edges,
        )
