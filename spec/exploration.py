"""What an exploration is asked and what it answers: machines, properties, verdicts, graphs.

Nothing here knows what is explored. A machine offers states, successors and search keys; a
property says what must hold of them; an exploration says how far the search came and what it
found, with every bound that was set (R36). The search itself is in ``explorer``.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import attrs

S = TypeVar("S")
A = TypeVar("A")


class Machine(Protocol[S, A]):
    """A labelled transition system. All of it is deterministic, in a fixed order.

    Actions are hashable. An action may lead to several states, but each transition that a
    machine yields once, it yields again whenever it is asked.
    """

    def initial(self) -> S:
        """Return the state that the search starts from."""
        ...

    def successors(self, state: S) -> Iterable[tuple[A, S, tuple[str, ...]]]:
        """Return each transition: its action, the next state, and the events that happened."""
        ...

    def key(self, state: S) -> Hashable:
        """Return the search key: states with equal keys are explored once.

        Without symmetry it may be the state itself.
        """
        ...

    def action_name(self, action: A) -> str:
        """Return the name under which the action is counted and drawn."""
        ...

    def is_quiescent(self, state: S) -> bool:
        """Whether the state may have no successors without being a deadlock."""
        ...


@attrs.frozen
class Invariant(Generic[S]):
    """What must hold of every state; ``check`` returns None, or the reason why it does not."""

    identifier: str
    name: str
    sentence: str
    source: str
    check: Callable[[S], str | None]


@attrs.frozen
class StepInvariant(Generic[S, A]):
    """What must hold of every transition: state before, action, state after, events."""

    identifier: str
    name: str
    sentence: str
    source: str
    check: Callable[[S, A, S, tuple[str, ...]], str | None]


@attrs.frozen
class Sometimes:
    """An event that must happen on some transition, lest a green verdict mean nothing.

    ``name`` is the event's name.
    """

    name: str
    sentence: str
    source: str


class Verdict(enum.Enum):
    """What was established. A search that hit a bound without a finding is undetermined."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNDETERMINED = "undetermined"


class ViolationKind(enum.StrEnum):
    """What kind of property was violated."""

    INVARIANT = "invariant"
    STEP_INVARIANT = "step invariant"
    DEADLOCK = "deadlock"
    UNREACHED = "unreached"
    GOAL_LOST = "goal lost"
    CYCLE = "cycle"
    STUCK = "stuck"


@attrs.frozen
class Violation(Generic[A]):
    """What does not hold, why, and a way to see it.

    ``path`` are the actions from the initial state, as few as possible for the kind of
    violation; ``cycle`` are those that can be repeated for ever after it (kind "cycle").
    """

    kind: ViolationKind
    identifier: str
    reason: str
    path: tuple[A, ...] = ()
    cycle: tuple[A, ...] = ()

    def __str__(self) -> str:
        """Return one line: what, after how many actions, why."""
        return f"{self.kind} {self.identifier} after {len(self.path)} actions: {self.reason}"


@attrs.frozen
class Bounds:
    """The limits of a search; None is no limit. ``max_depth`` is in actions."""

    max_states: int | None = None
    max_seconds: float | None = None
    max_depth: int | None = None

    def __attrs_post_init__(self) -> None:
        """Raise ValueError unless every bound that is set is positive."""
        for field in attrs.fields(Bounds):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ValueError(
                    f"{field.name}={value!r}: a bound is greater than 0; use None for no bound"
                )

    def __str__(self) -> str:
        """Return the bounds as a summary prints them, ``no bounds`` if there are none."""
        parts = []
        if self.max_states is not None:
            parts.append(f"{self.max_states:,} states")
        if self.max_seconds is not None:
            parts.append(f"{self.max_seconds:g} s")
        if self.max_depth is not None:
            parts.append(f"depth {self.max_depth:,}")
        return f"bounds: {', '.join(parts)}" if parts else "no bounds"


@attrs.frozen
class Progress:
    """How far a running search is; ``waiting`` states are found but not yet expanded."""

    states: int
    edges: int
    depth: int
    waiting: int
    seconds: float


@attrs.frozen(eq=False)
class SearchTree(Generic[A]):
    """How each state was first reached: the parent's index and the action taken there.

    Both lists are as long as there are states; those of the initial state, 0, mean nothing.
    """

    parents: array[int]
    actions: list[A | None]

    def path_to(self, state: int) -> tuple[A, ...]:
        """Return the actions that first led to a state; the search being breadth first, the fewest.

        With symmetry too they can be taken one after the other: what the search expands is the
        concrete state that it found, and never a renamed one.
        """
        path: list[A] = []
        while state:
            action = self.actions[state]
            assert action is not None, f"state {state} has no action that led to it"
            path.append(action)
            state = self.parents[state]
        return tuple(reversed(path))


@attrs.frozen(eq=False)
class StateGraph(Generic[S, A]):
    """Every state and transition of a search, compactly; state 0 is the initial one.

    States are numbered in the order in which they were found, so a smaller index is never
    deeper. Edge ``e`` leads from ``sources[e]`` to ``targets[e]``; its action is
    ``actions[action_of[e]]`` and its events are ``events[events_of[e]]``. Edges are in the order
    in which they were explored, so those of one source are consecutive: see ``edges_from``.

    With symmetry, the target of an edge is the state that represents the successor; it may name
    interchangeable parts otherwise than the source does. ``concrete_path`` renames them back.
    """

    states: list[S]
    tree: SearchTree[A]
    complete: bool
    actions: list[A]
    events: list[tuple[str, ...]]
    sources: array[int]
    targets: array[int]
    action_of: array[int]
    events_of: array[int]
    first_edges: array[int]

    def edges_from(self, state: int) -> range:
        """Return the edges that leave a state."""
        return range(self.first_edges[state], self.first_edges[state + 1])

    def path_to(self, state: int) -> tuple[A, ...]:
        """Return the fewest actions that lead to a state."""
        return self.tree.path_to(state)

    def edges_to(self, state: int) -> list[int]:
        """Return the edges of ``path_to``: those by which the search first came to each state."""
        edges: list[int] = []
        while state:
            parent = self.tree.parents[state]
            edges.append(next(e for e in self.edges_from(parent) if self.targets[e] == state))
            state = parent
        return edges[::-1]

    def concrete_path(self, machine: Machine[S, A], edges: Iterable[int]) -> tuple[A, ...]:
        """Return the actions that follow consecutive edges from the initial state, concretely.

        With symmetry, an edge stands for every transition with the same name between states
        with the same keys; this picks the one that is enabled where the path has led so far.

        Raises:
            ValueError: the edges do not follow each other from state 0.
        """
        state, at = machine.initial(), 0
        path: list[A] = []
        for edge in edges:
            if self.sources[edge] != at:
                raise ValueError(
                    f"edge {edge} leaves state {self.sources[edge]}, but the path is at {at}; "
                    "a path starts at state 0 and its edges follow each other"
                )
            at = self.targets[edge]
            wanted = (
                machine.action_name(self.actions[self.action_of[edge]]),
                self.events[self.events_of[edge]],
                machine.key(self.states[at]),
            )
            action, state = next(
                (action, successor)
                for action, successor, events in machine.successors(state)
                if (machine.action_name(action), events, machine.key(successor)) == wanted
            )
            path.append(action)
        return tuple(path)


@attrs.frozen(eq=False)
class Exploration(Generic[S, A]):
    """The result of a search; ``complete`` if every reachable state was expanded.

    ``states`` counts distinct search keys, ``edges`` the transitions that were taken, ``depth``
    the actions to the deepest state. ``action_counts`` and ``event_counts`` say how often each
    happened, by name, sorted. ``seconds`` is the only value that differs between equal runs.
    """

    verdict: Verdict
    violation: Violation[A] | None
    complete: bool
    states: int
    edges: int
    depth: int
    seconds: float
    action_counts: dict[str, int]
    event_counts: dict[str, int]
    bounds: Bounds
    bound_hit: str | None
    required_actions: tuple[str, ...]
    missing_actions: tuple[str, ...]
    missing_sometimes: tuple[str, ...]
    graph: StateGraph[S, A] | None = None

    def summary(self, name: str = "") -> str:
        """Return one line with counts, coverage, time, verdict, and every bound that was set."""
        return (
            f"{name + ': ' if name else ''}{self.states:,} states, {self.edges:,} edges, "
            f"depth {self.depth:,}, actions {self._coverage()}, {self.seconds:.1f} s, "
            f"{self._outcome()} ({self.bounds})"
        )

    def _coverage(self) -> str:
        required = len(self.required_actions)
        if not required:
            return str(len(self.action_counts))
        return f"{required - len(self.missing_actions)}/{required}"

    def _outcome(self) -> str:
        if self.violation is not None:
            return f"{self.verdict.value}: {self.violation}"
        if self.bound_hit is not None:
            return f"{self.verdict.value}: {self.bound_hit} reached"
        return self.verdict.value


def names_missing(wanted: Sequence[str], counts: dict[str, int]) -> tuple[str, ...]:
    """Return the wanted names that never occurred, in the order in which they are wanted."""
    return tuple(name for name in wanted if not counts.get(name))
