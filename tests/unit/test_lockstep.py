"""Lockstep notices every difference, says it as a person would, and brings systems to rest."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from cowtail.harness import Diverged, Level, Lockstep, ModelTarget, NotATrace, parse_actions, run
from cowtail.harness.differences import differences
from cowtail.harness.lockstep import Kind
from cowtail.harness.target import ModelSession
from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.observations import (
    Effects,
    Marker,
    Observation,
    Pin,
    RankView,
    StoreEntry,
)
from cowtail.models.scope import Scope
from cowtail.spec.scopes import SCOPES, scope_named

LONE = scope_named("lone_producer")
TO_THE_TAIL = parse_actions("submit(a) begin_pass() admit(a) end_pass() execute()")


class _Altered(ModelSession):
    """A model whose observation is altered."""

    def __init__(self, scope: Scope, alter: Callable[[Observation], Observation]) -> None:
        super().__init__(scope, ())
        self._alter = alter

    def observe(self) -> Observation:
        return self._alter(super().observe())


@attrs.frozen
class _AlteredTarget:
    alter: Callable[[Observation], Observation]
    name: str = "altered"
    level: Level = Level.EXACT
    faults: tuple[str, ...] = ()
    refusal: type[Exception] | None = None

    def open(self, scope: Scope) -> _Altered:
        return _Altered(scope, self.alter)


class _Failing(ModelSession):
    def perform(self, action: Action) -> None:
        if action.name == "execute":
            raise RuntimeError("out of blocks")
        super().perform(action)


@attrs.frozen
class _FailingTarget:
    name: str = "failing"
    level: Level = Level.EXACT
    faults: tuple[str, ...] = ()
    refusal: type[Exception] | None = None

    def open(self, scope: Scope) -> _Failing:
        return _Failing(scope, ())


@pytest.mark.parametrize("name", SCOPES)
def test_the_model_agrees_with_itself_down_to_rest(name: str) -> None:
    scope = SCOPES[name]
    with Lockstep(scope, ModelTarget()) as pair:
        for spec in scope.requests:
            pair.perform(parse_actions(f"submit({spec.name})")[0])
        pair.drain()
        assert lifecycle.is_quiescent(scope, pair.state)
        assert pair.events["finished"] == len(scope.requests)


def _observed() -> Observation:
    state = lifecycle.initial(LONE)
    for action in TO_THE_TAIL:
        state, effects, _ = attrs.astuple(lifecycle.step(LONE, state, action), recurse=False)
    return lifecycle.observe(LONE, state, effects)


def _request(seen: Observation, **changes: object) -> Observation:
    return attrs.evolve(seen, requests=(attrs.evolve(seen.requests[0], **changes),))  # type: ignore[arg-type]


def _rank(seen: Observation, **changes: object) -> Observation:
    first: RankView = attrs.evolve(seen.ranks[0], **changes)  # type: ignore[arg-type]
    return attrs.evolve(seen, ranks=(first, *seen.ranks[1:]))


ALTERATIONS: dict[str, Callable[[Observation], Observation]] = {
    "hit": lambda o: attrs.evolve(o, effects=Effects(hit=1)),
    "released": lambda o: attrs.evolve(o, effects=Effects(released=(0,))),
    "puts": lambda o: attrs.evolve(o, effects=Effects(puts=(StoreEntry(0, 1, "a", ("a",)),))),
    "computed": lambda o: _request(o, computed=2),
    "known": lambda o: _request(o, known=9),
    "tables": lambda o: _request(o, tables=((1,), (3,))),
    "markers": lambda o: _request(o, markers=(None, Marker(2, 2))),
    "reference counts": lambda o: attrs.evolve(o, ref_counts=(0, 1, 2, 0, 0, 0)),
    "free list": lambda o: attrs.evolve(o, free=tuple(reversed(o.free))),
    "keys": lambda o: attrs.evolve(o, keys=((),) * len(o.keys)),
    "pins": lambda o: attrs.evolve(o, pins=(Pin(0, (1,), (0, 1)),)),
    "queued tails": lambda o: attrs.evolve(o, queued_tails=(0,)),
    "steps in flight": lambda o: attrs.evolve(o, steps_in_flight=0),
    "queue": lambda o: _rank(o, queue=(0,)),
    "outbox": lambda o: _rank(o, outbox=(0,)),
    "saved": lambda o: _rank(o, saved=(2,)),
    "inbox": lambda o: attrs.evolve(o, inbox=((0, 1),)),
    "memory": lambda o: attrs.evolve(o, memory=(("?", ""), *o.memory[1:])),
    "store": lambda o: attrs.evolve(o, store=(StoreEntry(0, 1, "a", ("?",)),)),
}


@pytest.mark.parametrize("field", ALTERATIONS)
def test_a_difference_in_any_field_is_found_and_placed(field: str) -> None:
    seen = _observed()
    altered = ALTERATIONS[field](seen)
    found = differences(seen, altered)
    assert {each.field for each in found} == {field}
    result = run(LONE, TO_THE_TAIL, _AlteredTarget(ALTERATIONS[field]))
    assert result.divergence is not None
    assert field in {each.field for each in result.divergence.differences}


def test_equal_observations_have_no_place_where_they_differ() -> None:
    seen = _observed()
    (difference,) = differences(seen, _observed())  # only asked for where they are not equal
    assert difference.field == "type"


def test_a_value_of_another_type_is_a_difference() -> None:
    def with_a_list(seen: Observation) -> Observation:
        return attrs.evolve(seen, free=list(seen.free))  # type: ignore[arg-type]

    result = run(LONE, TO_THE_TAIL, _AlteredTarget(with_a_list))
    assert result.divergence is not None
    assert result.divergence.field == "type"


def test_an_explanation_names_action_places_values_and_the_actions_before() -> None:
    result = run(LONE, TO_THE_TAIL, _AlteredTarget(ALTERATIONS["markers"]))
    assert result.divergence is not None
    assert result.divergence.explain() == (
        "Divergence at action 1, submit(a)\n"
        "  markers, request a, group 1\n"
        "      model:  nothing\n"
        "      engine: block 2 at 2 tokens\n"
        "  this is about the registered tail (R1, R9)"
    )


def test_what_an_engine_raises_is_a_divergence_with_its_last_actions() -> None:
    result = run(LONE, TO_THE_TAIL, _FailingTarget())
    divergence = result.divergence
    assert divergence is not None
    assert (divergence.kind, divergence.index) == (Kind.ENGINE_ERROR, 4)
    assert divergence.error == "RuntimeError: out of blocks"
    assert divergence.recent == TO_THE_TAIL[:4]
    assert divergence.explain().endswith("   4  end_pass()")


def test_a_property_that_fails_is_a_divergence_of_the_model_target() -> None:
    actions = (*TO_THE_TAIL, *parse_actions("update_from_output() abort(a)"))
    result = run(LONE, actions, ModelTarget(("job_not_pinned",)))
    assert result.divergence is not None
    assert result.divergence.kind is Kind.PROPERTY
    assert result.divergence.error.startswith("S9 (no reuse while busy) fails")
    assert run(LONE, actions, ModelTarget()).divergence is None


def test_a_broken_rule_does_not_break_the_model_it_is_compared_with() -> None:
    with Lockstep(LONE, ModelTarget(("tail_dropped_at_finish",))) as pair:
        for action in (*TO_THE_TAIL, *parse_actions("update_from_output()")):
            pair.perform(action)
        with pytest.raises(Diverged):
            pair.perform(parse_actions("abort(a)")[0])
    assert run(LONE, (*pair.actions, *parse_actions("abort(a)")), ModelTarget()).divergence is None


def test_an_action_that_the_model_forbids_is_named_with_its_guard() -> None:
    with pytest.raises(NotATrace, match=r"action 2, execute\(\): no step is waiting to run"):
        run(LONE, parse_actions("submit(a) execute()"), ModelTarget())


def test_an_unknown_broken_rule_is_refused_when_a_session_opens() -> None:
    with pytest.raises(ValueError, match="no such broken rule; did you mean 'job_not_pinned'"):
        ModelTarget(("job_not_pined",)).open(LONE)
