"""Fuzzing in lockstep: Hypothesis draws what the model enables, and the target must follow.

Every example is a Hypothesis state machine run: a scope is drawn, then actions, first their
kind and then one of the kind, until nothing is left to do; then the next life begins in a new
scope. An example ends by draining to rest, under lockstep as well.

A divergence ends the run at once with the actions as they were taken. Hypothesis does not
shrink them: the reducer does.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable

import attrs
import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from cowtail.harness.draws import BACKEND, register_backend
from cowtail.harness.lockstep import Diverged, Finding, Lockstep, is_mishap
from cowtail.harness.scope_strategies import SMALL, Paces, Profile, paces, scopes
from cowtail.harness.target import Target
from cowtail.models.actions import ACTIONS, Abort, Action, SchedulePass
from cowtail.models.scope import Scope
from cowtail.spec.exploration import Verdict
from cowtail.spec.refusals import wrong_actions
from cowtail.spec.sometimes import SOMETIMES
from cowtail.spec.traces import Refused

REFUSAL_PERIOD = 16
"""In one of so many moments something is sent that must be refused."""

ABORTS_AT_A_TAIL = 6
"""Where a request stands at a registered tail, one draw in this many aborts it.

The finish path has most to do there, and the moment is soon over. Not where nobody aborts.
"""

MISHAPS = 4
"""Of actions of one kind, one draw in this many is of those in which something goes wrong."""

MAX_EXAMPLES = 1_000_000_000
"""For Hypothesis, which wants a number; the run's own bounds come first."""

REQUIRED_ACTIONS = tuple(kind.name for kind in ACTIONS if kind is not SchedulePass)
"""What a run must have done before it can say that the target holds."""

SELDOM = (
    "tail refused by the connector",
    "load found a key gone",
    "store has space again",
    "aborted while loaded",
    "put failed in part",
    "load failed: finished",
    "load failed: recompute",
    "job skipped: store is full",
    "load begun after a local hit",
    "consumer copy-on-write from a registered tail",
    "scratch block relocated",
    "load reported out of order",
    "junction registered",
)
"""What happens fewer than five times in 10,000 actions of small scopes, the rarest first.

A run of seconds is not asked for it, but says what did not happen; a long one is.
"""

LONG_RUN = 300_000
"""From so many actions on, what happens seldom must have happened too."""

REQUIRED_EVENTS = tuple(
    event for event in dict.fromkeys(each.event for each in SOMETIMES) if event not in SELDOM
)
"""What must have happened in a run, however short, before it can say that the target holds."""


@attrs.frozen
class FuzzReport:
    """What a run did and found.

    ``profile`` is the name of the scopes' profile, ``lives`` counts the scopes that were lived
    through, ``refused`` what was sent beside the ``actions`` and refused as it must be.
    ``seconds`` is the only value that differs between equal runs. ``required_actions`` and
    ``required_events`` are what had to happen for the run to count.
    """

    target: str
    faults: tuple[str, ...]
    seed: int
    profile: str
    examples: int
    lives: int
    actions: int
    refused: int
    seconds: float
    action_counts: dict[str, int]
    event_counts: dict[str, int]
    finding: Finding | None
    required_actions: tuple[str, ...] = REQUIRED_ACTIONS
    required_events: tuple[str, ...] = REQUIRED_EVENTS

    @property
    def missing(self) -> tuple[str, ...]:
        """What should have happened and did not, so that "holds" would say too little."""
        seldom = SELDOM if self.actions >= LONG_RUN else ()
        return self._not_counted(*self.required_actions, *self.required_events, *seldom)

    @property
    def seldom(self) -> tuple[str, ...]:
        """What did not happen in a run that is too short to be asked for it."""
        return () if self.actions >= LONG_RUN else self._not_counted(*SELDOM)

    def _not_counted(self, *names: str) -> tuple[str, ...]:
        counts = {**self.action_counts, **self.event_counts}
        return tuple(name for name in names if name not in counts)

    @property
    def verdict(self) -> Verdict:
        """Violated on a finding; undetermined if too little happened; holds otherwise."""
        if self.finding is not None:
            return Verdict.VIOLATED
        return Verdict.UNDETERMINED if self.missing else Verdict.HOLDS


class _Stop(BaseException):
    """Ends the run. Not an Exception, because Hypothesis would take one for a failed example."""


class _Campaign:
    """One fuzzing run: its bounds, its counts, and what it found."""

    def __init__(
        self,
        target: Target,
        profile: Profile,
        refusals: bool,
        max_examples: int | None,
        max_seconds: float | None,
        progress: Callable[[int, float], None] | None,
    ) -> None:
        self.target = target
        self.profile = profile
        self.refusals = refusals and target.refusal is not None
        self.refused = 0
        self.examples = 0
        self.lives = 0
        self.actions: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.finding: Finding | None = None
        self._max_examples = max_examples
        self._max_seconds = max_seconds
        self._progress = progress
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._started

    def begin_example(self) -> None:
        """Count an example, unless a bound is reached: then stop."""
        if self._progress is not None:
            self._progress(self.actions.total(), self.seconds)
        if self._max_examples is not None and self.examples >= self._max_examples:
            raise _Stop
        if self._max_seconds is not None and self.seconds >= self._max_seconds:
            raise _Stop
        self.examples += 1

    def open_life(self, scope: Scope) -> Lockstep:
        """Start the model and the target in a new scope."""
        self.lives += 1
        return Lockstep(scope, self.target)

    def close_life(self, pair: Lockstep) -> None:
        """Bring a life to rest, in lockstep, and count what happened in it."""
        try:
            pair.drain()
        except Diverged as error:
            self.found(pair, error)
        self._count(pair)
        pair.close()

    def found(self, pair: Lockstep, error: Diverged) -> None:
        """Keep the failing run, and stop."""
        self._count(pair)
        actions = (*pair.actions, error.divergence.action)
        self.finding = Finding(pair.scope, actions, error.divergence)
        raise _Stop from error

    def _count(self, pair: Lockstep) -> None:
        taken = (action for action in pair.actions if not isinstance(action, Refused))
        self.actions.update(action.name for action in taken)
        self.events.update(pair.events)
        self.refused += pair.refusals


class _Life(RuleBasedStateMachine):
    """The state machine that Hypothesis runs: one rule, which takes one action."""

    campaign: _Campaign

    def __init__(self) -> None:
        super().__init__()
        self.pair: Lockstep | None = None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Begin the example's first life."""
        self.campaign.begin_example()
        self.data = data
        self.new_life()

    def new_life(self) -> None:
        """Draw a scope and how eager everybody is in it."""
        scope = self.data.draw(scopes(self.campaign.profile))
        self.paces: Paces = self.data.draw(paces())
        self.moment = 0
        self.pair = self.campaign.open_life(scope)

    @rule(choice=st.integers(0, 2**32 - 1))
    def act(self, choice: int) -> None:
        """Take one of the actions that the model enables, or begin another life."""
        pair = self.pair
        assert pair is not None
        enabled = pair.enabled()
        if not enabled:
            self.pair = None
            self.campaign.close_life(pair)
            self.new_life()
            return
        self.moment += 1
        action = choose(enabled, self.paces, self.moment, choice)
        at_a_tail = _aborts_at_a_tail(pair, enabled) if self.paces[Abort] else ()
        if at_a_tail and (choice >> 16) % ABORTS_AT_A_TAIL == 0:
            action = at_a_tail[0]
        try:
            if self.campaign.refusals and self.moment % REFUSAL_PERIOD == 0:
                pair.perform(self._wrong(pair, choice))
            pair.perform(action)
        except Diverged as error:
            self.pair = None
            self.campaign.found(pair, error)

    def _wrong(self, pair: Lockstep, choice: int) -> Refused:
        """Choose what is sent to be refused; there is always something that no pass allows."""
        wrong = wrong_actions(pair.scope, pair.state)
        return Refused(choose(wrong, {}, self.moment, choice))

    def teardown(self) -> None:
        """End the example at rest, unless it ended in a finding."""
        if self.pair is not None:
            pair, self.pair = self.pair, None
            self.campaign.close_life(pair)


def _aborts_at_a_tail(pair: Lockstep, enabled: tuple[Action, ...]) -> tuple[Action, ...]:
    """Return the aborts of requests that stand at a registered tail."""
    return tuple(
        abort
        for spec, request in zip(pair.scope.requests, pair.state.requests, strict=True)
        if any(table.marker is not None for table in request.tables)
        and (abort := Abort(spec.name)) in enabled
    )


def choose(enabled: tuple[Action, ...], due: Paces, moment: int, choice: int) -> Action:
    """Return one of the actions: first a kind that is due is chosen, then an action of that kind.

    Of a kind, what goes well is chosen more often: else what may go wrong a few times only would
    be over before there is much to go wrong.
    """
    kinds: dict[type[Action], list[Action]] = {}
    for action in enabled:
        kinds.setdefault(type(action), []).append(action)
    offered = [kind for kind in kinds if _is_due(due.get(kind, 1), moment)]
    offered = offered or _most_eager(list(kinds), due)
    rest, index = divmod(choice, len(offered))
    rest, mishap = divmod(rest, MISHAPS)
    candidates = kinds[offered[index]]
    candidates = [a for a in candidates if is_mishap(a) == (not mishap)] or candidates
    return candidates[rest % len(candidates)]


def _most_eager(kinds: list[type[Action]], due: Paces) -> list[type[Action]]:
    """Return the kinds that are due most often: when nothing is due, time passes until one is."""
    periods = {kind: due.get(kind, 1) or math.inf for kind in kinds}
    return [kind for kind in kinds if periods[kind] == min(periods.values())]


def _is_due(period: int, moment: int) -> bool:
    return period > 0 and moment % period == 0


def fuzz(
    target: Target,
    *,
    seed: int,
    profile: Profile = SMALL,
    refusals: bool = True,
    max_examples: int | None = None,
    max_seconds: float | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> FuzzReport:
    """Fuzz ``target`` until a bound is reached or it diverges; at least one bound must be given.

    The same seed and number of examples give the same run everywhere; a bound in seconds only
    decides how many examples there are. With ``refusals``, now and then something is sent that
    the target, if it promises so, must refuse. ``progress`` is told actions taken and seconds
    gone.
    Raises ValueError without a bound.
    """
    if max_examples is None and max_seconds is None:
        raise ValueError("no bound: give max_examples or max_seconds")
    register_backend()
    campaign = _Campaign(target, profile, refusals, max_examples, max_seconds, progress)
    machine = type("Life", (_Life,), {"campaign": campaign})
    settings = hypothesis.settings(
        backend=BACKEND,
        database=None,
        deadline=None,
        max_examples=MAX_EXAMPLES,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        stateful_step_count=profile.steps,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with contextlib.suppress(_Stop):
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=settings)
    return FuzzReport(
        target=target.name,
        faults=target.faults,
        seed=seed,
        profile=profile.name,
        examples=campaign.examples,
        lives=campaign.lives,
        actions=campaign.actions.total(),
        refused=campaign.refused,
        seconds=campaign.seconds,
        action_counts=dict(sorted(campaign.actions.items())),
        event_counts=dict(sorted(campaign.events.items())),
        finding=campaign.finding,
    )
