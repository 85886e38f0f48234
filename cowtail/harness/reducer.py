"""Reducing a failing run to one in which no action can be left out.

Delta debugging on plain actions. A candidate leaves some actions out; the model says what
remains possible (actions that are not are dropped, or replaced by their nearest kin), and the
target says whether it still diverges. Chunks go first, then single actions, then pairs, until
no single action can be left out. Every accepted candidate is shorter, so it ends.

Not done, and why: Hypothesis shrinks choice sequences, not actions, and every dropped choice
changes the meaning of all that follow; on machines like this one it stops early.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import attrs

from cowtail.harness.lockstep import Diverged, Divergence, Lockstep, run
from cowtail.harness.simplify import simpler_scopes
from cowtail.harness.target import Target
from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.block_pool import LifecycleError
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.machine import LifecycleMachine

Actions = tuple[Action, ...]

MAX_TARGET_ACTIONS = 60_000
"""How many actions a reduction may carry out on the target, by default; printed when reached."""

MAX_PAIR_LENGTH = 40
"""Runs longer than this are not searched for pairs: that takes a quadratic number of replays."""


@attrs.frozen
class Reduced:
    """A failing run after reduction; its last action is the one that diverges.

    ``minimal`` is true if no single action can be left out, false if the bound came first.
    ``target_actions`` is how many actions were carried out on the target to find it.
    """

    scope: Scope
    actions: Actions
    divergence: Divergence
    minimal: bool
    target_actions: int


class _BoundReached(Exception):
    """The reduction has carried out as many actions on the target as it may."""


@attrs.frozen
class _Failing:
    scope: Scope
    actions: Actions
    divergence: Divergence


class _Trials:
    """Tries candidates on the model and then on the target, each once, within a bound."""

    def __init__(self, target: Target, max_target_actions: int) -> None:
        self._target = target
        self._left = max_target_actions
        self._fine: set[tuple[Scope, Actions]] = set()
        self.target_actions = 0

    def fails(
        self, scope: Scope, candidate: Iterable[Action], shorter_than: int
    ) -> _Failing | None:
        """Return the failing run that the candidate amounts to, if it is one and short enough."""
        actions = possible(scope, candidate)
        if (scope, actions) in self._fine:
            return None
        if self.target_actions >= self._left:
            raise _BoundReached
        result = run(scope, actions, self._target)
        self.target_actions += result.actions
        if result.divergence is None:
            self._fine.add((scope, actions))
            return None
        if result.actions >= shorter_than:
            return None
        return _Failing(scope, actions[: result.actions], result.divergence)


def possible(scope: Scope, candidate: Iterable[Action]) -> Actions:
    """Return the run that the model makes of a candidate.

    An action that is not enabled is replaced by the first enabled one of its kind for the same
    request or rank (a report of the job that is there now), and dropped if there is none. A run
    on which the model itself fails ends there.
    """
    state = lifecycle.initial(scope)
    taken: list[Action] = []
    for wanted in candidate:
        action = _nearest(wanted, lifecycle.enabled(scope, state))
        if action is None:
            continue
        taken.append(action)
        try:
            state = lifecycle.step(scope, state, action).state
        except LifecycleError:
            break
    return tuple(taken)


def _nearest(wanted: Action, enabled: tuple[Action, ...]) -> Action | None:
    if wanted in enabled:
        return wanted
    rank = getattr(wanted, "rank", None)
    kin = (a for a in enabled if rank is not None and a.name == wanted.name)
    return next((action for action in kin if getattr(action, "rank", None) == rank), None)


def reduce(
    scope: Scope,
    actions: Iterable[Action],
    target: Target,
    *,
    max_target_actions: int = MAX_TARGET_ACTIONS,
    keep_scope: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Reduced:
    """Return a run as short as can be had by leaving actions out, still diverging at its end.

    Any divergence of the target counts as the same finding. ``keep_scope`` forbids smaller
    scopes (fewer requests and ranks, shorter prompts). ``progress`` is told each new length.
    Raises ValueError if the given run does not diverge.
    """
    given = tuple(actions)
    result = run(scope, given, target)
    if result.divergence is None:
        raise ValueError(
            f"the target does not diverge in these {len(given)} actions: there is nothing to "
            "reduce; start it with the fault that it diverged with"
        )
    best = _Failing(scope, given[: result.actions], result.divergence)
    trials = _Trials(target, max_target_actions)
    minimal = False
    try:
        while not minimal:
            for shorter in _improvements(best, trials, keep_scope):
                if shorter is not None:
                    best = shorter
                    if progress is not None:
                        progress(len(best.actions))
                    break
            else:
                minimal = True
    except _BoundReached:
        minimal = False
    return Reduced(best.scope, best.actions, best.divergence, minimal, trials.target_actions)


def _improvements(best: _Failing, trials: _Trials, keep_scope: bool) -> Iterator[_Failing | None]:
    """Yield what each candidate amounts to: the coarsest cuts first, pairs last."""
    length = len(best.actions)
    for candidate in _shorter_candidates(best.actions):
        yield trials.fails(best.scope, candidate, length)
    if not keep_scope:
        for scope in simpler_scopes(best.scope, best.actions):
            yield trials.fails(scope, best.actions, length + 1)
    if length <= MAX_PAIR_LENGTH:
        for pair in itertools.combinations(range(length), 2):
            yield trials.fails(best.scope, _without(best.actions, pair), length)


def _shorter_candidates(actions: Actions) -> Iterator[Actions]:
    """Yield the run without a request or a rank, without chunks of it, without one action."""
    for field in ("request", "rank"):
        for value in sorted({getattr(a, field) for a in actions if hasattr(a, field)}):
            yield tuple(a for a in actions if getattr(a, field, None) != value)
    size = len(actions) // 2
    while size:
        for start in reversed(range(0, len(actions), size)):
            yield actions[:start] + actions[start + size :]
        size //= 2


def _without(actions: Actions, positions: Iterable[int]) -> Actions:
    left_out = set(positions)
    return tuple(action for i, action in enumerate(actions) if i not in left_out)


def shortest(
    scope: Scope, target: Target, *, max_length: int, max_target_actions: int = 20_000
) -> Reduced | None:
    """Search the scope breadth first for a divergence within ``max_length`` actions.

    States that the explorer takes for equal are visited once, by their first path, so a target
    that tells them apart may have a shorter divergence still. Returns None if there is none, or
    if the bound on actions carried out on the target comes first.
    """
    machine = LifecycleMachine(scope)
    start = machine.initial()
    seen = {machine.key(start)}
    queue: deque[tuple[State, Actions]] = deque([(start, ())])
    spent = 0
    while queue:
        state, path = queue.popleft()
        if len(path) >= max_length:
            return None
        for action, successor, _ in machine.successors(state):
            key = machine.key(successor)
            fresh = key not in seen
            if spent >= max_target_actions:
                return None
            result = run(scope, (*path, action), target)
            spent += result.actions
            if result.divergence is not None:
                taken = (*path, action)[: result.actions]
                return Reduced(scope, taken, result.divergence, True, spent)
            if fresh:
                seen.add(key)
                queue.append((successor, (*path, action)))
    return None


def diverges(scope: Scope, actions: Iterable[Action], target: Target) -> Divergence | None:
    """Return the divergence that the run ends in, or None; also if the model forbids the run."""
    with Lockstep(scope, target) as pair:
        for action in actions:
            if action not in pair.enabled():
                return None
            try:
                pair.perform(action)
            except Diverged as error:
                return error.divergence
    return None
