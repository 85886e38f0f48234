"""Two engines, one store: what one stores the other finds, loads and computes on."""

from __future__ import annotations

import random

import attrs
import pytest

from cowtail.harness.duo import CONSUMER, PRODUCER, Duo, Scopes, Step, draw_scopes, fuzz_duos
from cowtail.harness.lockstep import NotATrace
from cowtail.harness.notation import parse_actions
from cowtail.models import lifecycle
from cowtail.models.actions import Evict, Submit
from cowtail.models.scope import Lookup, RequestSpec, Role, Scope, full_attention, mamba

STORES = Scope(
    name="stores",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=12,
    requests=(RequestSpec("a", "abcde"), RequestSpec("b", "abcdef")),
    role=Role.PRODUCER,
)
LOOKS_UP = attrs.evolve(
    STORES, name="looks_up", role=Role.CONSUMER, lookup=Lookup.ASYNC, max_evictions=1
)
SCOPES: Scopes = (STORES, LOOKS_UP)


def _perform(duo: Duo, engine: int, text: str) -> None:
    for action in parse_actions(text):
        duo.perform(engine, action)


def test_what_one_engine_stores_the_other_finds_loads_and_computes_on() -> None:
    with Duo(SCOPES) as duo:
        _perform(duo, PRODUCER, "submit(a)")
        duo.drain(PRODUCER)
        stored = duo.pairs[PRODUCER].state.store
        assert stored
        assert duo.pairs[CONSUMER].state.store == stored
        _perform(duo, CONSUMER, "submit(b)")
        duo.drain(CONSUMER)
        events = duo.pairs[CONSUMER].events
    for event in ("found in the store", "load begun from the store", "continued after a load"):
        assert events[event] == 1, event
    assert not duo.pairs[PRODUCER].events["load begun from the store"]


def test_a_lease_of_one_engine_binds_the_other() -> None:
    evicting = attrs.evolve(STORES, max_evictions=1)
    with Duo((evicting, LOOKS_UP)) as duo:
        _perform(duo, PRODUCER, "submit(a)")
        duo.drain(PRODUCER)
        assert any(isinstance(action, Evict) for action in duo.enabled(PRODUCER))
        _perform(duo, CONSUMER, "submit(a) look_up(a)")
        assert duo.pairs[CONSUMER].state.requests[0].leased
        evictable = {a.prefix for a in duo.enabled(PRODUCER) if isinstance(a, Evict)}
        assert "abcd" not in evictable


def test_what_is_evicted_between_answer_and_load_is_missed() -> None:
    scopes = (attrs.evolve(STORES, max_evictions=1), attrs.evolve(LOOKS_UP, max_expired_leases=1))
    with Duo(scopes) as duo:
        _perform(duo, PRODUCER, "submit(a)")
        duo.drain(PRODUCER)
        _perform(duo, CONSUMER, "submit(a) look_up(a) expire_lease(a)")
        gone = next(a for a in duo.enabled(PRODUCER) if isinstance(a, Evict))
        duo.perform(PRODUCER, gone)
        duo.drain(CONSUMER)
        assert duo.pairs[CONSUMER].events["load found a key gone"] == 1
        assert lifecycle.is_quiescent(scopes[CONSUMER], duo.pairs[CONSUMER].state)


def test_engines_that_mean_different_things_by_a_key_cannot_share_a_store() -> None:
    other = attrs.evolve(LOOKS_UP, groups=(full_attention(4), mamba(2)))
    with pytest.raises(ValueError, match=r"groups .*: engines that share a store need the same"):
        Duo((STORES, other))


def test_what_a_model_does_not_allow_is_not_performed() -> None:
    with Duo(SCOPES) as duo, pytest.raises(NotATrace):
        _perform(duo, CONSUMER, "execute()")


@pytest.mark.parametrize("seed", range(30))
def test_drawn_scopes_can_share_a_store(seed: int) -> None:
    producer, consumer = draw_scopes(random.Random(seed))
    assert producer.groups == consumer.groups
    assert consumer.lookup is not Lookup.OFF
    assert producer.role in (Role.PRODUCER, Role.BOTH)


def test_producers_and_consumers_agree_with_their_models() -> None:
    report = fuzz_duos(seed=3, max_examples=12)
    assert report.finding is None, report.finding[2].explain()
    assert report.events[PRODUCER]["put succeeded"] > 5
    assert report.events[CONSUMER]["load complete"] > 1
    assert report.events[CONSUMER]["continued after a load"] > 1
    again = fuzz_duos(seed=3, max_examples=12)
    assert attrs.evolve(again, seconds=0.0) == attrs.evolve(report, seconds=0.0)


def test_a_fault_of_the_producer_shows_in_a_duo_with_the_steps_that_lead_to_it() -> None:
    report = fuzz_duos(seed=1, max_examples=30, faults=(("K08",), ()))
    assert report.finding is not None
    scopes, steps, divergence = report.finding
    assert steps[-1] == Step(PRODUCER, divergence.action)
    with Duo(scopes) as sound:
        for step in steps:
            sound.perform(step.engine, step.action)


def test_a_step_prints_as_a_reader_would_write_it() -> None:
    assert repr(Step(CONSUMER, Submit("a"))) == "consumer: submit(a)"
