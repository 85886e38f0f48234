"""Lockstep: the model and an implementation take every action together and must agree.

>>> from cowtail.harness.target import ModelTarget
>>> from cowtail.spec.scopes import scope_named
>>> pair = Lockstep(scope_named("lone_producer"), ModelTarget())
>>> pair.perform(pair.enabled()[0]).events
()
>>> pair.actions
[submit(a)]
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable
from types import TracebackType

import attrs

from cowtail.harness.differences import AREAS, Difference, differences
from cowtail.harness.target import PropertyViolated, Session, Target
from cowtail.models import lifecycle
from cowtail.models.actions import (
    Action,
    Admit,
    BeginPass,
    EndPass,
    Execute,
    Extend,
    FinishSend,
    JobOutcome,
    LoadOutcome,
    LookUp,
    Preempt,
    Report,
    ReportLoad,
    RunJob,
    RunLoad,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.errors import LifecycleError, NotEnabled
from cowtail.models.observations import Effects, Status, StoreEntry
from cowtail.models.scope import Scope
from cowtail.models.state import State
from cowtail.models.transition import Transition
from cowtail.spec.refusals import why_refused
from cowtail.spec.traces import Refused

RECENT_ACTIONS = 5
"""How many actions before the last one an explanation shows."""

MAX_DRAIN_ACTIONS = 2_000
"""Draining longer than this is taken for never: the bound is printed."""


class Kind(enum.StrEnum):
    """How a divergence shows itself."""

    OBSERVATION = "observation"
    ENGINE_ERROR = "engine error"
    PROPERTY = "property"
    MODEL_ERROR = "model error"
    NO_DRAIN = "no drain"
    NOT_REFUSED = "not refused"


@attrs.frozen
class Divergence:
    """Where a target leaves the model: after ``action``, the ``index``-th (0 is the first).

    ``differences`` are those of the observations; ``error`` is what was raised instead.
    ``recent`` holds the actions just before.
    """

    index: int
    action: Action
    kind: Kind
    differences: tuple[Difference, ...] = ()
    error: str = ""
    recent: tuple[Action, ...] = ()

    @property
    def field(self) -> str:
        """What diverges first: a field of the observation, or the kind of divergence."""
        return self.differences[0].field if self.differences else self.kind.value

    @property
    def killed_by(self) -> str:
        """The property or requirements that the divergence offends."""
        return self.error if not self.differences else f"{self.field}: {AREAS[self.field]}"

    def explain(self, limit: int = 12) -> str:
        """Return the divergence as a person would explain it; at most ``limit`` differences."""
        lines = [f"Divergence at action {self.index + 1}, {self.action}"]
        if self.error:
            lines.append(f"  {self.kind.value}: {self.error}")
        shown = self.differences[:limit]
        lines += [f"  {line}" for each in shown for line in str(each).split("\n")]
        if len(self.differences) > limit:
            lines.append(f"  and {len(self.differences) - limit} more differences")
        areas = dict.fromkeys(str(AREAS[each.field]) for each in shown)
        if areas:
            lines.append("  this is about " + "; ".join(list(areas)[:3]))
        if self.recent:
            lines.append("The actions before it:")
            first = self.index - len(self.recent) + 1
            lines += [f"  {first + i:4d}  {action}" for i, action in enumerate(self.recent)]
        return "\n".join(lines)


@attrs.frozen
class Finding:
    """A run in which the target diverged, as plain actions; the last one is where it did."""

    scope: Scope
    actions: tuple[Action, ...]
    divergence: Divergence


class Diverged(AssertionError):
    """The model and the target disagree; ``divergence`` says where and how."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__("\n" + divergence.explain())
        self.divergence = divergence


class NotATrace(ValueError):
    """The model does not allow an action of a trace: names the position and the guard."""

    def __init__(self, index: int, action: Action, guard: str) -> None:
        super().__init__(f"action {index + 1}, {guard}")
        self.index = index
        self.action = action
        self.guard = guard


@attrs.frozen
class Result:
    """One run in lockstep: how many actions were taken, what happened, and how it ended."""

    actions: int
    events: tuple[tuple[str, int], ...]
    divergence: Divergence | None


class Lockstep:
    """A model state and a session that move together.

    Use as a context manager, or call ``close``. Once diverged, a pair is of no further use.
    """

    def __init__(self, scope: Scope, target: Target) -> None:
        self.scope = scope
        self.state = lifecycle.initial(scope)
        self.actions: list[Action] = []
        self.events: Counter[str] = Counter()
        self.refusals = 0
        self._refusal = target.refusal
        self._expected = lifecycle.observe(scope, self.state, Effects())
        self._session: Session = target.open(scope)

    def __enter__(self) -> Lockstep:
        """Return the pair."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the session."""
        self.close()

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def enabled(self) -> tuple[Action, ...]:
        """Return what the model allows now."""
        return lifecycle.enabled(self.scope, self.state)

    def allows(self, action: Action) -> bool:
        """Whether ``perform`` would take ``action`` now."""
        if isinstance(action, Refused):
            return bool(why_refused(self.scope, self.state, action.action))
        return action in self.enabled()

    def perform(self, action: Action) -> Transition:
        """Take ``action`` on both sides and compare all that can be observed.

        One that must be refused (Refused) is sent to the target only, if it promises to refuse.
        Raises NotATrace if the model does not allow it, and Diverged if the two disagree.
        """
        if isinstance(action, Refused):
            return self._refuse(action)
        try:
            transition = lifecycle.step(self.scope, self.state, action)
        except NotEnabled as error:
            raise NotATrace(len(self.actions), action, error.guard) from None
        except LifecycleError as error:
            raise Diverged(self._divergence(action, Kind.MODEL_ERROR, error=str(error))) from error
        try:
            self._session.perform(action)
            seen = self._session.observe()
        except PropertyViolated as error:
            raise Diverged(self._divergence(action, Kind.PROPERTY, error=str(error))) from error
        except Exception as error:  # an implementation may fail in any way
            said = f"{type(error).__name__}: {error}"
            raise Diverged(self._divergence(action, Kind.ENGINE_ERROR, error=said)) from error
        expected = lifecycle.observe(self.scope, transition.state, transition.effects)
        if seen != expected:
            found = differences(expected, seen)
            raise Diverged(self._divergence(action, Kind.OBSERVATION, found))
        self._expected = expected
        self.state = transition.state
        self.actions.append(action)
        self.events.update(transition.events)
        return transition

    def share_store(self, store: tuple[StoreEntry, ...]) -> None:
        """Take over what another engine made of the store that both use.

        The target must have the same store already: the next observation shows it.
        """
        self.state = attrs.evolve(self.state, store=store)
        self._expected = attrs.evolve(self._expected, store=store)

    def _refuse(self, refused: Refused) -> Transition:
        """Send what must be refused: it is, with the error promised, and nothing changes."""
        why = why_refused(self.scope, self.state, refused.action)
        if not why:
            guard = f"{refused.action}: it need not be refused here"
            raise NotATrace(len(self.actions), refused, guard)
        if self._refusal is not None:
            try:
                self._session.perform(refused.action)
            except Exception as error:  # an implementation may fail in any way
                if type(error) is not self._refusal:
                    said = f"{type(error).__name__} ({error}) instead of {self._refusal.__name__}"
                    raise self._not_refused(refused, f"{said}, although {why}") from error
            else:
                raise self._not_refused(refused, f"it was carried out, although {why}")
            seen = attrs.evolve(self._session.observe(), effects=self._expected.effects)
            if seen != self._expected:
                found = differences(self._expected, seen)
                raise Diverged(self._divergence(refused, Kind.OBSERVATION, found))
        self.refusals += 1
        self.actions.append(refused)
        return Transition(self.state)

    def _not_refused(self, refused: Refused, error: str) -> Diverged:
        return Diverged(self._divergence(refused, Kind.NOT_REFUSED, error=error))

    def _divergence(
        self,
        action: Action,
        kind: Kind,
        found: tuple[Difference, ...] = (),
        error: str = "",
    ) -> Divergence:
        recent = tuple(self.actions[-RECENT_ACTIONS:])
        return Divergence(len(self.actions), action, kind, found, error, recent)

    def drain(self) -> None:
        """Act like a system that nobody sends anything any more, until it is at rest.

        Raises Diverged, also where that takes more than MAX_DRAIN_ACTIONS actions.
        """
        for _ in range(MAX_DRAIN_ACTIONS):
            action = next_to_drain(self.enabled(), loaded_requests(self.scope, self.state))
            if action is None:
                break
            self.perform(action)
        if not lifecycle.is_quiescent(self.scope, self.state):
            last = self.actions[-1]
            error = f"not at rest after {len(self.actions)} actions (bound {MAX_DRAIN_ACTIONS})"
            raise Diverged(self._divergence(last, Kind.NO_DRAIN, error=error))


def loaded_requests(scope: Scope, state: State) -> frozenset[str]:
    """Return the requests whose load is complete, by name: they hold blocks and wait."""
    pairs = zip(scope.requests, state.requests, strict=True)
    return frozenset(spec.name for spec, each in pairs if each.status is Status.LOADED)


def next_to_drain(
    enabled: Iterable[Action], loaded: Collection[str] = frozenset()
) -> Action | None:
    """Return the action that brings the system closer to rest, or None.

    Running requests go first, in order, so that somebody always finishes; nothing new is
    submitted, nothing aborted, and nothing fails. Then come those that are ``loaded``: else
    another could take turns with itself, for ever, in what blocks they leave.
    """
    ranked = [(rank, action) for action in enabled if (rank := _drain_rank(action)) is not None]
    if not ranked:
        return None
    first = min(rank for rank, _ in ranked)
    choices = [action for rank, action in ranked if rank == first]
    choices.sort(key=lambda a: not (isinstance(a, Admit) and a.request in loaded))  # stable
    return choices[-1 if isinstance(choices[0], Preempt) else 0]  # the last comer yields


def _drain_rank(action: Action) -> int | None:
    """Return how soon an action is due while draining, or None if it is not taken at all."""
    if is_mishap(action) or type(action) not in _DRAIN_ORDER:
        return None
    return _DRAIN_ORDER.index(type(action))


_DRAIN_ORDER = (
    UpdateConnectorOutput,
    Report,
    ReportLoad,
    FinishSend,
    RunJob,
    RunLoad,
    UpdateFromOutput,
    Execute,
    LookUp,
    Extend,
    Admit,
    EndPass,
    Preempt,
    BeginPass,
)


def is_mishap(action: Action) -> bool:
    """Whether something goes wrong: a put, a load or a lookup fails, a report comes twice."""
    match action:
        case Report(again=flag) | LookUp(failed=flag) | Admit(lookup_failed=flag):
            return flag
        case RunJob(outcome=outcome):
            return outcome is not JobOutcome.OK
        case RunLoad(outcome=loaded):
            return loaded is not LoadOutcome.OK
    return False


def run(scope: Scope, actions: Iterable[Action], target: Target) -> Result:
    """Take ``actions`` in lockstep. Raises NotATrace if the model does not allow one."""
    with Lockstep(scope, target) as pair:
        divergence = None
        try:
            for action in actions:
                pair.perform(action)
        except Diverged as error:
            divergence = error.divergence
        taken = len(pair.actions) + (divergence is not None)
        return Result(taken, tuple(sorted(pair.events.items())), divergence)


def assert_lockstep(scope: Scope, actions: Iterable[Action], target: Target) -> None:
    """Take ``actions`` in lockstep. Raises Diverged (an AssertionError), explaining itself."""
    with Lockstep(scope, target) as pair:
        for action in actions:
            pair.perform(action)
