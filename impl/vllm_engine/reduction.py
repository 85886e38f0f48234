"""Reducing a failing run on real vLLM until no single action can be left out.

Delta debugging: every candidate is carried out on the real engine, and counts if the same
property fails in the same way (same known finding, or same message but for names and numbers).
Requests go first, then halves, quarters and single actions; stretches of plain progress become
one ``run_to_rest()``; then the configuration is made plainer, and so on until nothing helps.
The bound is on actions carried out, not on time, so that the same failure reduces the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from cowtail.impl.vllm_engine.composite import RunToRest, WholeStep
from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.failures import Failure, attempt
from cowtail.impl.vllm_engine.simpler import simpler_configs, weight
from cowtail.models.actions import (
    Abort,
    Action,
    Execute,
    JobOutcome,
    RunJob,
    SchedulePass,
    Submit,
)

MAX_CARRIED_OUT = 60_000
"""How many actions one reduction may carry out on the real engine: about half a minute."""


@attrs.frozen
class Reduced:
    """A failure after reduction.

    ``minimal``: no single action can be left out. If it is false, ``why`` says what came first:
    the bound, or that a replay of the actions alone does not repeat the failure.
    ``carried_out`` is how many actions the reduction carried out on the real engine.
    """

    failure: Failure
    minimal: bool
    carried_out: int
    why: str = ""


class _BoundReached(Exception):
    """The reduction has carried out as many actions as it may."""


def reduce_failure(
    failure: Failure,
    *,
    max_carried_out: int = MAX_CARRIED_OUT,
    progress: Callable[[int], None] | None = None,
) -> Reduced:
    """Return the failure with whatever its cause does not need left out.

    ``progress`` is told each new number of actions.
    """
    work = _Reduction(failure, max_carried_out, progress)
    try:
        if not work.repeats():
            why = "a replay of the actions alone does not repeat it"
            return Reduced(failure, False, work.carried_out, why)
        while work.round():
            pass
    except _BoundReached:
        why = f"stopped at the bound of {max_carried_out:,} actions carried out"
        return Reduced(work.best, False, work.carried_out, why)
    return Reduced(work.best, True, work.carried_out)


def _measure(failure: Failure) -> tuple[int, ...]:
    unusual = sum(_usual(action) != action for action in failure.actions)
    return (len(failure.actions), unusual, *weight(failure.config))


def _usual(action: Action) -> Action:
    """Return the action without the failure that the environment adds to it."""
    match action:
        case RunJob(rank, outcome) if outcome is not JobOutcome.OK:
            return RunJob(rank)
        case RunLoad(rank, True):
            return RunLoad(rank)
    return action


class _Reduction:
    """The best failure so far, and the ways to make it smaller."""

    def __init__(
        self, failure: Failure, max_carried_out: int, progress: Callable[[int], None] | None
    ) -> None:
        self.best = failure
        self.carried_out = 0
        self._signature = failure.signature
        self._max = max_carried_out
        self._progress = progress
        self._fine: set[tuple[EngineConfig, tuple[Action, ...]]] = set()

    def repeats(self) -> bool:
        """Whether the actions alone lead to the failure; if so, it is folded and cut there."""
        found = self._failing(self.best.config, self.best.actions)
        if found is not None:
            self.best = found
        return found is not None

    def round(self) -> bool:
        """Try every way once; whether one of them helped."""
        before = self.best
        self._requests()
        size = len(self.best.actions) // 2
        while size:
            self._chunks(size)
            size //= 2
        self._rests()
        self._usual_actions()
        self._configs()
        self._names()
        return self.best is not before

    def _failing(self, config: EngineConfig, actions: Sequence[Action]) -> Failure | None:
        candidate = (config, tuple(actions))
        if candidate in self._fine:
            return None
        if self.carried_out >= self._max:
            raise _BoundReached
        tried = attempt(*candidate)
        self.carried_out += tried.carried_out
        found = tried.failure
        if found is None or found.signature != self._signature:
            self._fine.add(candidate)
            return None
        return attrs.evolve(found, seed=self.best.seed, episode=self.best.episode)

    def _try(self, config: EngineConfig, actions: Sequence[Action]) -> bool:
        found = self._failing(config, actions)
        if found is None:
            return False
        if _measure(found) >= _measure(self.best):
            self._fine.add((config, tuple(actions)))
            return False
        self.best = found
        if self._progress is not None:
            self._progress(len(found.actions))
        return True

    def _requests(self) -> None:
        """Leave out all that is done with one request."""
        for name in [request.name for request in self.best.config.requests]:
            rest = [a for a in self.best.actions if getattr(a, "request", None) != name]
            if len(rest) < len(self.best.actions):
                self._try(self.best.config, rest)

    def _chunks(self, size: int) -> None:
        """Leave out chunks of one size, from the end, carrying on with whatever is left."""
        start = len(self.best.actions) - size
        while start > -size:
            actions = self.best.actions
            rest = actions[: max(start, 0)] + actions[start + size :]
            if self._try(self.best.config, rest):
                start = min(start, len(self.best.actions))
            start -= size

    def _rests(self) -> None:
        """Put one ``run_to_rest()`` in place of a stretch between two actions on requests.

        And where a whole step does what its parts, further apart, do, the step.
        """
        start = 0
        while start < len(self.best.actions):
            actions = self.best.actions
            stop = start
            while stop < len(actions) and not isinstance(actions[stop], Submit | Abort):
                stop += 1
            if stop - start > 1 or (stop > start and actions[start] != RunToRest()):
                self._try(self.best.config, (*actions[:start], RunToRest(), *actions[stop:]))
            start = stop + 1
        for index, action in enumerate(self.best.actions):
            if isinstance(action, SchedulePass | Execute):
                actions = self.best.actions
                self._try(self.best.config, (*actions[:index], WholeStep(), *actions[index + 1 :]))

    def _usual_actions(self) -> None:
        """Let puts and loads succeed, where their failure is not what it takes."""
        for index in range(len(self.best.actions)):
            actions = self.best.actions
            if index < len(actions) and (usual := _usual(actions[index])) != actions[index]:
                self._try(self.best.config, (*actions[:index], usual, *actions[index + 1 :]))

    def _configs(self) -> None:
        """Move to plainer configurations for as long as that helps."""
        found = True
        while found:
            best = self.best
            found = any(
                self._try(config, best.actions)
                for config in simpler_configs(best.config, best.actions)
                if weight(config) < weight(best.config)
            )

    def _names(self) -> None:
        """Call the requests a, b, c in the order in which they are submitted."""
        best = self.best
        order = [action.request for action in best.actions if isinstance(action, Submit)]
        names = {name: "abcdefghijklmnopqrstuvwxyz"[index] for index, name in enumerate(order)}
        if set(names) != {request.name for request in best.config.requests}:
            return
        rank = {name: index for index, name in enumerate(order)}
        requests = sorted(best.config.requests, key=lambda request: rank[request.name])
        config = attrs.evolve(
            best.config,
            requests=tuple(attrs.evolve(each, name=names[each.name]) for each in requests),
            stored=tuple(
                attrs.evolve(each, name=f"stored_{index}")
                for index, each in enumerate(best.config.stored)
            ),
        )
        actions = [
            attrs.evolve(action, request=names[action.request])  # type: ignore[call-arg]
            if hasattr(action, "request")
            else action
            for action in best.actions
        ]
        if (config, tuple(actions)) == (best.config, best.actions):
            return
        found = self._failing(config, actions)
        if found is not None and len(found.actions) <= len(best.actions):
            self.best = found
