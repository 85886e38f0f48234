"""What a producer owes to later requests (L6, R23, R29): 0.32.0 keeps it; a miss is seen."""

import pytest

from cowtail.impl.vllm_engine import promises
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.session import Session
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.actions import (
    Abort,
    Execute,
    JobOutcome,
    RunJob,
    SchedulePass,
    Submit,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role

pytestmark = pytest.mark.vllm

STEP = (SchedulePass(), Execute(), UpdateFromOutput())
TEXT = "the quick brown fox jumps over the lazy dog, and then it jumps back again"


def producer(num_tokens: int, *, eagle: bool = False, max_tokens: int = 1) -> Session:
    """Return a producer to which a request of that many tokens has been submitted."""
    request = RequestSpec("p", TEXT[:num_tokens], max_tokens=max_tokens)
    session = Session(EngineConfig(requests=(request,), role=Role.PRODUCER, eagle=eagle))
    session.do(Submit("p"))
    return session


@pytest.mark.parametrize("eagle", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 8, 15, 16, 17, 20, 31, 32, 33, 44, 45, 48, 52])
def test_what_a_producer_leaves_is_exactly_what_lengths_alone_say(
    num_tokens: int, max_tokens: int, eagle: bool
) -> None:
    session = producer(num_tokens, eagle=eagle, max_tokens=max_tokens)
    session.drain()
    owed = promises.replay_boundary(4, eagle, num_tokens)
    assert promises.found_in_store(session, TEXT[:num_tokens]) == owed
    assert promises.found_in_store(session, TEXT[:num_tokens] + "\0") == owed


def drop_every_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a defect: the connector hears of no boundary state."""
    manager = type(producer(44).scheduler.kv_cache_manager)
    monkeypatch.setattr(manager, "take_boundary_state_offloads", lambda self: {})


@pytest.mark.parametrize(("eagle", "identifier"), [(False, "L6"), (True, "R23")])
def test_a_tail_that_never_reaches_the_store_is_missed(
    monkeypatch: pytest.MonkeyPatch, eagle: bool, identifier: str
) -> None:
    drop_every_tail(monkeypatch)
    with pytest.raises(Violation) as caught:
        producer(44, eagle=eagle).drain()
    assert caught.value.identifier == identifier
    assert "ran to its end with 44 prompt tokens, but a longer prompt finds" in caught.value.reason


def test_a_resend_that_finds_less_than_a_longer_prompt_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = promises.found_in_store
    short = lambda session, prompt: found(session, prompt) if prompt.endswith("\0") else 32  # noqa: E731
    monkeypatch.setattr(promises, "found_in_store", short)
    with pytest.raises(Violation, match=r"^R29: .*the same prompt finds 32 of them .*, not 40"):
        producer(44).drain()


def test_a_miss_is_excused_by_a_failed_put(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_every_tail(monkeypatch)
    session = producer(44)
    session.do_all(SchedulePass(), Execute(), RunJob(0, JobOutcome.FAILED))
    session.drain()


def test_a_miss_is_excused_by_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_every_tail(monkeypatch)
    requests = (RequestSpec("p", TEXT[:44]), RequestSpec("q", "x" * 9))
    session = Session(EngineConfig(requests=requests))
    session.do_all(Submit("p"), Submit("q"), Abort("q"))
    session.drain()


def test_a_miss_is_excused_by_a_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_every_tail(monkeypatch)
    session = producer(44)
    session.statistics["preemptions"] += 1
    session.drain()


def test_a_consumer_owes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_every_tail(monkeypatch)
    config = EngineConfig(requests=(RequestSpec("c", TEXT[:44]),), role=Role.CONSUMER)
    session = Session(config)
    session.do(Submit("c"))
    session.drain()


def test_what_a_session_leaves_unchecked_it_does_not_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drop_every_tail(monkeypatch)
    config = EngineConfig(requests=(RequestSpec("p", TEXT[:44]),))
    session = Session(config, unchecked=("L6", "R29"))
    session.do(Submit("p"))
    session.drain()
    session = Session(config, unchecked=("L6",))
    session.do(Submit("p"))
    with pytest.raises(Violation, match=r"^R29: "):
        session.drain()


def test_promises_are_asked_of_the_release_itself() -> None:
    """A producer whose requests loaded what they lack from a store owes the same."""
    stored = (RequestSpec("stored", TEXT[:32]),)
    session = Session(EngineConfig(requests=(RequestSpec("p", TEXT[:45]),), stored=stored))
    session.do_all(Submit("p"), SchedulePass(), RunLoad(0), RunLoad(1))
    session.drain()
    assert session.statistics["loads done"] == 1
    assert promises.found_in_store(session, TEXT[:45]) == 44
    assert surface().release.boundary_below_prompt
