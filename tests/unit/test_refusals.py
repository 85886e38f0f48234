"""What no driver could make right is refused and changes nothing."""

from __future__ import annotations

import random

import attrs
import pytest

from cowtail.harness import Diverged, Level, Lockstep, ModelTarget, NotATrace, parse_actions, run
from cowtail.harness.fuzz import fuzz
from cowtail.harness.lockstep import Kind
from cowtail.harness.reducer import possible, reduce
from cowtail.harness.scope_strategies import draw_scope
from cowtail.harness.target import ModelSession
from cowtail.models import lifecycle
from cowtail.models.actions import (
    Action,
    Admit,
    BeginPass,
    Execute,
    Extend,
    Preempt,
    Report,
    Submit,
)
from cowtail.models.errors import NotEnabled
from cowtail.models.scope import Scope
from cowtail.spec.refusals import why_refused, wrong_actions
from cowtail.spec.scopes import scope_named
from cowtail.spec.traces import Refused, Trace, dump_trace, parse_trace

LONE = scope_named("lone_producer")
RUNNING = "submit(a) begin_pass() admit(a) end_pass() execute() update_from_output()"


class _Careless(ModelSession):
    """Refuses as it should, but for one kind of action, of which it makes something."""

    def __init__(self, scope: Scope, kind: type[Action], instead: str) -> None:
        super().__init__(scope, ())
        self._kind, self._instead = kind, instead

    def perform(self, action: Action) -> None:
        try:
            super().perform(action)
        except NotEnabled:
            if not isinstance(action, self._kind):
                raise
            if self._instead == "another error":
                raise IndexError("list index out of range") from None
            if self._instead == "half of it":
                super().perform(BeginPass())
                raise


@attrs.frozen
class _CarelessTarget:
    kind: type[Action]
    instead: str
    name: str = "careless"
    level: Level = Level.EXACT
    faults: tuple[str, ...] = ()
    refusal: type[Exception] | None = NotEnabled

    def open(self, scope: Scope) -> _Careless:
        return _Careless(scope, self.kind, self.instead)


@pytest.mark.parametrize("seed", range(40))
def test_what_must_be_refused_is_not_enabled(seed: int) -> None:
    rng = random.Random(seed)
    scope = draw_scope(rng)
    state = lifecycle.initial(scope)
    sent = 0
    for _ in range(60):
        enabled = lifecycle.enabled(scope, state)
        wrong = wrong_actions(scope, state)
        assert wrong
        assert not set(wrong) & set(enabled)
        sent += len(wrong)
        if not enabled:
            break
        state = lifecycle.step(scope, state, rng.choice(enabled)).state
    assert sent > 50


@pytest.mark.parametrize(
    ("before", "action", "why"),
    [
        ("submit(a)", Submit("a"), "'a' was submitted already"),
        ("submit(a)", Admit("a"), "no pass is open"),
        ("submit(a) begin_pass()", Extend("a"), "'a' has no tokens to schedule"),
        ("submit(a) begin_pass()", BeginPass(), "a pass is open"),
        ("submit(a) begin_pass() admit(a)", Admit("a"), "'a' is running, not waiting"),
        (RUNNING, Execute(), "no step is waiting to run"),
        (RUNNING, Report(1, 5), "job 5 is not in the outbox of rank 1"),
        (RUNNING, Preempt("a"), "no pass is open"),
        ("submit(a) begin_pass()", Execute(), ""),
        ("submit(a)", BeginPass(), ""),
        ("submit(a)", Submit("nobody"), ""),
    ],
)
def test_why_an_action_must_be_refused(before: str, action: Action, why: str) -> None:
    state = lifecycle.initial(LONE)
    for each in parse_actions(before):
        state = lifecycle.step(LONE, state, each).state
    assert why_refused(LONE, state, action) == why


def test_a_preemption_beyond_the_budget_need_not_be_refused() -> None:
    scope = attrs.evolve(LONE, max_preemptions=0)
    state = lifecycle.initial(scope)
    for each in parse_actions(f"{RUNNING} begin_pass()"):
        state = lifecycle.step(scope, state, each).state
    assert Preempt("a") not in lifecycle.enabled(scope, state)
    assert not why_refused(scope, state, Preempt("a"))


def test_a_refusal_leaves_the_pair_as_it_was() -> None:
    with Lockstep(LONE, ModelTarget()) as pair:
        before = pair.state
        pair.perform(Refused(Execute()))
        assert (pair.state, pair.refusals) == (before, 1)


@pytest.mark.parametrize(
    ("instead", "kind", "said"),
    [
        ("nothing", Kind.NOT_REFUSED, "it was carried out, although no step is waiting to run"),
        ("another error", Kind.NOT_REFUSED, "IndexError (list index out of range) instead of NotE"),
    ],
)
def test_what_is_not_refused_as_promised_is_a_divergence(
    instead: str, kind: Kind, said: str
) -> None:
    with Lockstep(LONE, _CarelessTarget(Execute, instead)) as pair, pytest.raises(Diverged) as info:
        pair.perform(Refused(Execute()))
    assert info.value.divergence.kind is kind
    assert said in info.value.divergence.explain()


def test_a_refusal_that_changes_something_is_found_later_and_reduced_with_it() -> None:
    target = _CarelessTarget(Execute, "half of it")
    finding = fuzz(target, seed=1, max_examples=20, refusals=True).finding
    assert finding is not None
    reduced = reduce(finding.scope, finding.actions, target)
    assert Refused(Execute()) in reduced.actions
    assert len(reduced.actions) <= 3
    assert run(reduced.scope, reduced.actions, ModelTarget()).divergence is None


def test_nothing_is_sent_to_a_target_that_promises_nothing() -> None:
    target = _CarelessTarget(Execute, "another error", refusal=None)
    report = fuzz(target, seed=1, max_examples=3, refusals=True)
    assert (report.finding, report.refused) == (None, 0)


def test_the_model_refuses_in_a_fuzz() -> None:
    report = fuzz(ModelTarget(), seed=1, max_examples=3, refusals=True)
    assert report.finding is None
    assert report.refused > 10


def test_what_need_not_be_refused_is_no_trace() -> None:
    with pytest.raises(NotATrace, match="it need not be refused here"):
        run(LONE, (Refused(Submit("a")),), ModelTarget())
    assert possible(LONE, (Refused(Submit("a")), Refused(Execute()))) == (Refused(Execute()),)


def test_traces_and_text_hold_refusals() -> None:
    actions = parse_actions("submit(a) refused(report(1, 0)) refused(execute()) begin_pass()")
    assert actions[1] == Refused(Report(1, 0))
    assert parse_actions(" ".join(map(repr, actions))) == actions
    trace = Trace(LONE, actions)
    assert parse_trace(dump_trace(trace)) == trace
