"""The contract level on real vLLM: the model follows every decision, and predicts the rest (R38).

The scenarios and seeded episodes show agreement; tampering shows that every compared field has
something that it catches.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from cowtail.harness.contract import VllmContract, contract_level, scope_of
from cowtail.harness.contract.vllm import CONTRACT
from cowtail.impl.vllm_engine import observer
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.decisions import Decisions
from cowtail.impl.vllm_engine.episodes import draw_config, run_episode
from cowtail.impl.vllm_engine.fuzz import fuzz
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import Abort, Execute, SchedulePass, Submit, UpdateFromOutput
from cowtail.models.observations import Held, Key, Marker, Observation, Pin, Status, StoreEntry
from cowtail.models.scope import RequestSpec, Role

pytestmark = pytest.mark.vllm

TEXT = "the quick brown fox jumps over the lazy dog, and then it jumps back again"
STEP = (SchedulePass(), Execute(), UpdateFromOutput())


def followed(config: EngineConfig) -> Session:
    """Return a session that the model follows."""
    session = Session(config)
    session.watcher = VllmContract(session)
    return session


def at_the_boundary() -> Session:
    """Return a followed producer whose prompt stands at its boundary, its tail registered."""
    session = followed(EngineConfig(requests=(RequestSpec("p", TEXT[:45]),), role=Role.PRODUCER))
    session.do(Submit("p"))
    while session.requests["p"].num_computed_tokens < 44:
        session.do_all(*STEP)
    return session


@pytest.mark.parametrize("num_tokens", [44, 45, 52])
@pytest.mark.parametrize("eagle", [False, True])
def test_the_model_predicts_a_producer_to_its_end(num_tokens: int, eagle: bool) -> None:
    request = RequestSpec("p", TEXT[:num_tokens], max_tokens=3)
    session = followed(EngineConfig(requests=(request,), role=Role.PRODUCER, eagle=eagle))
    session.do(Submit("p"))
    session.drain()
    assert session.statistics["actions at contract level"] == len(session.actions)


def test_the_model_predicts_the_handoff_of_an_aborted_request() -> None:
    session = at_the_boundary()
    session.do(Abort("p"))
    session.drain()
    assert session.statistics["tails handed off at finish"] == 1
    assert session.statistics["actions at contract level"] == len(session.actions)


def test_the_model_predicts_seeded_episodes_with_every_kind_of_event() -> None:
    with contract_level():
        report = fuzz(seed=7, episodes=60, reduce=False)
    assert not [finding for finding in report.findings if finding.failure.identifier == CONTRACT]
    followed_actions = report.statistics["actions at contract level"]
    # Sessions with windows, a MultiConnector or a pool below the minimum are counted, not followed.
    beside = report.statistics["actions beside the contract"]
    assert followed_actions > 0.95 * (report.actions - beside)
    assert beside < 0.25 * report.actions
    for event in ("preemptions", "loads done", "failed puts", "tails handed off by CoW"):
        assert report.statistics[event]


@pytest.mark.parametrize("number", range(12))
def test_the_model_predicts_priority_scheduling(number: int) -> None:
    rng = random.Random(f"priority/{number}")
    config = draw_config(rng)
    requests = tuple(attrs.evolve(r, priority=rng.randint(0, 2)) for r in config.requests)
    with contract_level():
        session = Session(attrs.evolve(config, priority=True, requests=requests))
        found = None
        try:
            run_episode(session, rng)
        except Violation as violation:
            found = violation
    assert found is None or found.identifier != CONTRACT, found


def test_a_pool_below_the_models_is_counted_not_followed() -> None:
    request = RequestSpec("p", TEXT[:45], max_tokens=5)
    config = EngineConfig(requests=(request,), num_blocks=9, eagle=True)
    with contract_level():
        session = Session(config)
    session.do_all(Submit("p"), *STEP)
    assert session.statistics["actions beside the contract"] == 4
    assert not session.statistics["actions at contract level"]
    assert [name for name in session.statistics if name.startswith("not at contract level")]


# Tampering: what is seen is altered, field by field


def _first_request(**changes: Any) -> Callable[[Observation], Observation]:
    def alter(seen: Observation) -> Observation:
        return attrs.evolve(seen, requests=(attrs.evolve(seen.requests[0], **changes),))

    return alter


def _first_rank(**changes: Any) -> Callable[[Observation], Observation]:
    def alter(seen: Observation) -> Observation:
        ranks = (attrs.evolve(seen.ranks[0], **changes), *seen.ranks[1:])
        return attrs.evolve(seen, ranks=ranks)

    return alter


def _field(**changes: Any) -> Callable[[Observation], Observation]:
    return lambda seen: attrs.evolve(seen, **changes)


ALTERED: dict[str, Callable[[Observation], Observation]] = {
    "status": _first_request(status=Status.WAITING),
    "computed": _first_request(computed=43),
    "known": _first_request(known=46),
    "tables": _first_request(tables=((1,), (2,))),
    "markers": _first_request(markers=(None, Marker(1, 40))),
    "junction": _first_request(junction=4),
    "reference counts": lambda seen: attrs.evolve(seen, ref_counts=(1, *seen.ref_counts[1:])),
    "free list": lambda seen: attrs.evolve(seen, free=seen.free[::-1]),
    "keys": lambda seen: attrs.evolve(seen, keys=((Key(0, "t"),), *seen.keys[1:])),
    "pins": _field(pins=(Pin(7, (1,), (0, 1)),)),
    "queued tails": _field(queued_tails=(3,)),
    "inbox": _field(inbox=((0, 0),)),
    "store": _field(store=(StoreEntry(0, 0, "the ", ("t", "th", "the", "the ")),)),
    "deferred": _field(deferred=((0, (1,)),)),
    "held": _field(held=(Held("p", ()),)),
    "queue": _first_rank(queue=(9,)),
    "outbox": _first_rank(outbox=(9,)),
    "saved": _first_rank(saved=(16,)),
    "rank loads": _first_rank(loads=("p",)),
    "skipping": _first_rank(skipping=("p",)),
}


@pytest.mark.parametrize("field", ALTERED)
def test_the_model_notices_when_what_is_seen_is_another(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = at_the_boundary()
    real = observer.observe
    monkeypatch.setattr(observer, "observe", lambda *given: ALTERED[field](real(*given)))
    with pytest.raises(Violation, match=f"^C: (.*; )?{field} ") as raised:
        session.do(SchedulePass())
    assert raised.value.identifier == CONTRACT


# Tampering: the real engine decides or does something else


def _computes_less(session: Session) -> None:
    session.scheduler.max_num_scheduled_tokens = 8


def _forgets_the_tail(session: Session) -> None:
    for manager in session.scheduler.kv_cache_manager.coordinator.single_type_managers:
        manager._producer_partial_tail_reqs = {}


@pytest.mark.parametrize(("tamper", "steps"), [(_computes_less, 1), (_forgets_the_tail, 2)])
def test_the_model_notices_when_the_engine_decides_otherwise(
    tamper: Callable[[Session], None], steps: int
) -> None:
    request = RequestSpec("p", TEXT[:46], max_tokens=3)
    session = followed(EngineConfig(requests=(request,), role=Role.PRODUCER))
    session.do_all(Submit("p"), *(STEP * steps))
    tamper(session)
    with pytest.raises(Violation, match=r"^C: "):
        session.drain()


def _without_copies(scheduled: Any) -> None:
    scheduled.kv_cache_block_copies = None


def _without_jobs(scheduled: Any) -> None:
    scheduled.kv_connector_metadata.requests.clear()


@pytest.mark.parametrize(("what", "strip"), [("copies", _without_copies), ("jobs", _without_jobs)])
def test_the_model_notices_when_a_pass_leaves_something_out(
    what: str, strip: Callable[[Any], None]
) -> None:
    session = at_the_boundary()
    real = session.scheduler.schedule

    def schedule() -> Any:
        scheduled = real()
        strip(scheduled)
        return scheduled

    session.scheduler.schedule = schedule
    with pytest.raises(Violation) as raised:
        session.do(SchedulePass())
    assert raised.value.identifier in (CONTRACT, "S9")
    if raised.value.identifier == CONTRACT:
        assert raised.value.reason.startswith(what)


def test_the_model_notices_when_a_handoff_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decisions, "_hear_offers", lambda self: self._take_offers())
    with pytest.raises(Violation, match=r"^C: handoffs"):
        at_the_boundary()


def test_the_model_notices_when_a_load_is_not_sent() -> None:
    stored = (RequestSpec("stored", TEXT[:40]),)
    session = followed(EngineConfig(requests=(RequestSpec("c", TEXT[:40]),), stored=stored))
    real = session.scheduler.schedule

    def schedule() -> Any:
        scheduled = real()
        for request in scheduled.kv_connector_metadata.requests:
            request.load_spec = None
        return scheduled

    session.scheduler.schedule = schedule
    session.do(Submit("c"))
    with pytest.raises(Violation, match=r"^C: loads"):
        session.do(SchedulePass())


def test_the_scope_of_a_configuration_has_its_sizes() -> None:
    config = EngineConfig(requests=(RequestSpec("p", TEXT),), num_ranks=3, token_budget=20)
    scope = scope_of(config)
    assert (scope.num_ranks, scope.token_budget, scope.num_blocks) == (3, 20, 64)
