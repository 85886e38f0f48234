"""Reducing a failing run to one in which no action can be left out.

Delta debugging on plain actions. A candidate leaves some actions out; the model says what
remains possible (actions that are not are dropped, or replaced by their nearest kin), and the
target says whether it still diverges. Chunks go first, then single actions, then smaller scopes,
pairs, and random walks in the scope as it has become, until nothing helps: then no single action
can be left out. Every accepted candidate is shorter or in a smaller scope, so it ends.

Not done, and why: Hypothesis shrinks choice sequences, not actions, and every dropped choice
changes the meaning of all that follow; on machines like this one it stops early.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable

import attrs

from cowtail.harness.lockstep import Diverged, Divergence, Lockstep, run
from cowtail.harness.simplify import simpler_scopes
from cowtail.harness.target import Target
from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.errors import LifecycleError
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.spec.machine import LifecycleMachine
from cowtail.spec.refusals import why_refused
from cowtail.spec.traces import Refused

Actions = tuple[Action, ...]

MAX_TARGET_ACTIONS = 60_000
"""How many actions a reduction may carry out on the target, by default; printed when reached."""

CHEAP_TARGET_ACTIONS = 4_000
"""How many actions on the target the search for a still shorter run may take after a reduction."""

MAX_PAIR_LENGTH = 40
"""Runs longer than this are not searched for pairs: that takes a quadratic number of replays."""


RANDOM_WALKS = 100
"""Walks tried in the smaller scope when nothing more can be left out, shorter than the run."""


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
    request or rank (a report of the job that is there now), and dropped if there is none. So is
    one to be refused that need not be. A run on which the model itself fails ends there.
    """
    state = lifecycle.initial(scope)
    taken: list[Action] = []
    for wanted in candidate:
        if isinstance(wanted, Refused):
            if why_refused(scope, state, wanted.action):
                taken.append(wanted)
            continue
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
    work = _Reduction(
        _Failing(scope, given[: result.actions], result.divergence),
        _Trials(target, max_target_actions),
        progress,
    )
    minimal = True
    try:
        while work.round(keep_scope):
            pass
    except _BoundReached:
        minimal = False
    best = work.best
    return Reduced(best.scope, best.actions, best.divergence, minimal, work.trials.target_actions)


class _Reduction:
    """The best run so far, and the ways to make it smaller."""

    def __init__(
        self, best: _Failing, trials: _Trials, progress: Callable[[int], None] | None
    ) -> None:
        self.best = best
        self.trials = trials
        self._progress = progress

    def round(self, keep_scope: bool) -> bool:
        """Try every way once; whether one of them helped.

        A round that did not help has tried to leave out each single action of what it ends with.
        """
        before = self.best
        self._whole_requests_and_ranks()
        size = len(self.best.actions) // 2
        while size:
            self._chunks(size)
            size //= 2
        if not keep_scope:
            self._scopes()
        if self.best is before and len(before.actions) <= MAX_PAIR_LENGTH:
            self._a_pair()
        if self.best is before:
            self._walks()
        return self.best is not before

    def _try(self, scope: Scope, candidate: Iterable[Action], shorter_than: int) -> bool:
        found = self.trials.fails(scope, candidate, shorter_than)
        if found is None:
            return False
        self.best = found
        if self._progress is not None:
            self._progress(len(found.actions))
        return True

    def _whole_requests_and_ranks(self) -> None:
        for field in ("request", "rank"):
            for value in sorted(
                {getattr(a, field) for a in self.best.actions if hasattr(a, field)}
            ):
                actions = self.best.actions
                rest = tuple(a for a in actions if getattr(a, field, None) != value)
                self._try(self.best.scope, rest, len(actions))

    def _chunks(self, size: int) -> None:
        """Leave out chunks of one size, from the end, carrying on with whatever is left."""
        start = len(self.best.actions) - size
        while start >= 0:
            actions = self.best.actions
            rest = actions[:start] + actions[start + size :]
            if self._try(self.best.scope, rest, len(actions)):
                start = min(start, len(self.best.actions))
            start -= size
        # The first chunk may be a short one.
        if -size < start < 0:
            actions = self.best.actions
            self._try(self.best.scope, actions[start + size :], len(actions))

    def _scopes(self) -> None:
        """Move to smaller scopes for as long as the run there is not longer."""
        found = True
        while found:
            best = self.best
            found = any(
                self._try(scope, best.actions, len(best.actions) + 1)
                for scope in simpler_scopes(best.scope, best.actions)
            )

    def _a_pair(self) -> None:
        """Leave out two actions that need each other, and then whatever else they kept."""
        best = self.best
        for pair in itertools.combinations(range(len(best.actions)), 2):
            if self._try(best.scope, _without(best.actions, pair), len(best.actions)):
                return

    def _walks(self) -> None:
        """Walk at random in the smaller scope, for a way that leaving out does not lead to."""
        rng = random.Random(len(self.best.actions))
        for _ in range(RANDOM_WALKS):
            if self._walk(rng):
                return

    def _walk(self, rng: random.Random) -> bool:
        scope, length = self.best.scope, len(self.best.actions)
        wrong = [action for action in self.best.actions if isinstance(action, Refused)]
        state = lifecycle.initial(scope)
        actions: list[Action] = []
        while len(actions) < length - 1 and (enabled := lifecycle.enabled(scope, state)):
            sent = [each for each in wrong if why_refused(scope, state, each.action)]
            actions.append(rng.choice((*enabled, *sent)))
            if isinstance(actions[-1], Refused):
                continue
            try:
                state = lifecycle.step(scope, state, actions[-1]).state
            except LifecycleError:
                break
        return self._try(scope, actions, length)


def _without(actions: Actions, positions: Iterable[int]) -> Actions:
    left_out = set(positions)
    return tuple(action for i, action in enumerate(actions) if i not in left_out)


@attrs.frozen
class Search:
    """What a breadth-first search came to: the shortest failing run, or none.

    ``complete``: every run as short as was asked for was tried, up to what the explorer takes for
    equal; if it is false, the bound came first.
    """

    found: Reduced | None
    complete: bool


def shortest(
    scope: Scope, target: Target, *, max_length: int, max_target_actions: int = 20_000
) -> Search:
    """Search the scope breadth first for a divergence within ``max_length`` actions.

    States that the explorer takes for equal are visited once, by their first path, so a target
    that tells them apart may have a shorter divergence still.
    """
    machine = LifecycleMachine(scope)
    start = machine.initial()
    seen = {machine.key(start)}
    queue: deque[tuple[State, Actions]] = deque([(start, ())])
    spent = 0
    while queue:
        state, path = queue.popleft()
        if len(path) >= max_length:
            break
        for action, successor, _ in machine.successors(state):
            if spent >= max_target_actions:
                return Search(None, complete=False)
            result = run(scope, (*path, action), target)
            spent += result.actions
            if result.divergence is not None:
                taken = (*path, action)[: result.actions]
                return Search(Reduced(scope, taken, result.divergence, True, spent), complete=True)
            key = machine.key(successor)
            if key not in seen:
                seen.add(key)
                queue.append((successor, (*path, action)))
    return Search(None, complete=True)


def shortest_known(
    scope: Scope,
    actions: Iterable[Action],
    target: Target,
    *,
    progress: Callable[[int], None] | None = None,
) -> Reduced:
    """Reduce a failing run, then search breadth first for a shorter one, where that is cheap.

    Raises ValueError if the given run does not diverge.
    """
    reduced = reduce(scope, actions, target, progress=progress)
    shorter = shortest(
        reduced.scope,
        target,
        max_length=len(reduced.actions) - 1,
        max_target_actions=CHEAP_TARGET_ACTIONS,
    )
    return shorter.found or reduced


def diverges(scope: Scope, actions: Iterable[Action], target: Target) -> Divergence | None:
    """Return the divergence that the run ends in, or None; also if the model forbids the run."""
    with Lockstep(scope, target) as pair:
        for action in actions:
            if not pair.allows(action):
                return None
            try:
                pair.perform(action)
            except Diverged as error:
                return error.divergence
    return None
