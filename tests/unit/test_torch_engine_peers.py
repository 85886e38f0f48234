"""Peers and several connectors on the torch engine: who serves, who is held, who takes a tail."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import EngineError, TorchEngine
from cowtail.impl.torch_engine.connector_base import Connector
from cowtail.models.observations import Held, Load, Observation
from cowtail.models.scope import (
    BASE,
    STORE,
    Child,
    Lookup,
    RequestSpec,
    Scope,
    full_attention,
    mamba,
    peer,
)

SCOPE = Scope(
    name="peers",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=12,
    requests=(RequestSpec("a", "abcd"), RequestSpec("b", "abcd")),
    lookup=Lookup.SYNC,
    foreign=("a",),
)
STEP = "end_pass() execute() update_from_output()"
FINISHED = f"submit(a) begin_pass() admit(a) {STEP} abort(a)"


def engine_with(*children: Child) -> TorchEngine:
    return TorchEngine(attrs.evolve(SCOPE, children=children, foreign=()))


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def test_a_peer_serves_every_prompt_with_true_bytes() -> None:
    engine = engine_with(peer(serves=True))
    observed = play(engine, "submit(a) begin_pass() admit(a)")
    assert observed.effects.external == 3
    assert play(engine, "end_pass()").effects.loads == (Load("a", 0, 0, 3),)
    memory = play(engine, "run_load(0) run_load(1)").memory
    attention, state = observed.requests[0].tables
    assert memory[attention[0]] + memory[attention[1]] == ("a", "ab", "abc", "")
    assert memory[state[1]][0] == "abc"


def test_the_first_connector_that_supplies_more_wins() -> None:
    scope = attrs.evolve(SCOPE, children=(STORE, peer(serves=True)))
    for text, winner in (("", 1), ("foreign_put(a)", 0)):
        engine = TorchEngine(scope)
        loads = play(engine, f"{text} submit(a) begin_pass() admit(a) end_pass()").effects.loads
        assert [load.child for load in loads] == [winner]


def test_blocks_stay_until_every_rank_has_sent_them_to_every_peer() -> None:
    engine = engine_with(peer(retains=True), STORE, peer(retains=True))
    held = play(engine, FINISHED)
    assert held.held == (Held("a", (0, 1)),)
    tables = held.requests[0].tables
    assert any(tables)
    sends = play(engine, "begin_pass() end_pass() execute()").ranks[1].sends
    assert sends == (("a", 0), ("a", 2))
    assert play(engine, "finish_send(1, 2, a)").send_inbox == ()
    observed = play(engine, "finish_send(1, 0, a) finish_send(0, 0, a) update_connector_output()")
    assert observed.held == (Held("a", (0,)),)
    assert observed.requests[0].tables == tables
    last = play(engine, "finish_send(0, 2, a) update_connector_output()")
    assert last.held == ()
    assert last.requests[0].tables == ((), ())
    with pytest.raises(EngineError, match="sends nothing"):
        play(engine, "finish_send(0, 2, a)")


def test_what_has_no_block_is_not_held() -> None:
    observed = play(engine_with(peer(retains=True)), "submit(a) abort(a)")
    assert observed.held == ()
    assert observed.untold == ("a",)


def test_a_request_aborted_while_it_loads_is_not_sent() -> None:
    engine = engine_with(peer(serves=True, retains=True))
    play(engine, "submit(a) begin_pass() admit(a) end_pass() abort(a) execute()")
    observed = play(engine, "update_from_output() begin_pass() end_pass() execute()")
    assert [rank.sends for rank in observed.ranks] == [(), ()]
    text = "run_load(0) run_load(1) report_load(0, a) report_load(1, a) update_connector_output()"
    assert play(engine, text).held == ()


def test_any_connector_may_take_a_tail_and_that_delays_no_free() -> None:
    for children in ((BASE, STORE), (STORE, BASE)):
        scope = attrs.evolve(SCOPE, requests=(RequestSpec("a", "ab"),), children=children)
        observed = play(TorchEngine(attrs.evolve(scope, foreign=())), FINISHED)
        assert len(observed.effects.handoffs) == 1
        assert len(observed.effects.jobs) == 1
        assert observed.held == ()


def test_the_base_connector_takes_nothing_and_delays_nothing() -> None:
    scope = attrs.evolve(SCOPE, requests=(RequestSpec("a", "ab"),), children=(BASE,), foreign=())
    engine = TorchEngine(scope)
    connector = engine.scheduler.connector
    assert type(connector) is Connector
    observed = play(engine, FINISHED)
    assert not observed.effects.handoffs
    assert not observed.effects.jobs
    assert not any(observed.ref_counts)
    request = engine.scheduler.requests["a"]
    assert connector.register_finished_partial_tail(request, ((1,), (2,)), []) is False
    assert connector.request_finished(request, ((1,), (2,))) == 0
