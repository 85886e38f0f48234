"""Sliding windows on the torch engine: tables, keys, hits, and what the device reads."""

from __future__ import annotations

import attrs
import torch

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import TorchEngine
from cowtail.models.observations import GARBAGE, Key, Observation
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba, sliding_window

SCOPE = Scope(
    name="window",
    groups=(sliding_window(2, 4),),
    hash_unit=2,
    num_blocks=20,
    requests=(RequestSpec("a", "abcdefghij", max_tokens=4), RequestSpec("b", "abcdefghijklm")),
    role=Role.NONE,
    num_ranks=2,
    token_budget=5,
)
HYBRID = attrs.evolve(SCOPE, groups=(full_attention(2), sliding_window(2, 4), mamba(2)))
STEP = "end_pass() execute() update_from_output()"
FIRST = f"submit(a) begin_pass() admit(a) {STEP}"
NEXT = f"begin_pass() extend(a) {STEP}"


def play(engine: TorchEngine, text: str) -> Observation:
    for action in parse_actions(text):
        engine.perform(action)
    return engine.observe()


def test_blocks_behind_the_window_are_given_back_once_the_device_is_past_them() -> None:
    engine = TorchEngine(attrs.evolve(SCOPE, max_steps_in_flight=2))
    ahead = play(engine, "submit(a) begin_pass() admit(a) end_pass() begin_pass() extend(a)")
    assert ahead.requests[0].tables == ((1, 2, 3, 4, 5),), "the step in flight reads them"
    play(engine, "end_pass() execute() execute() update_from_output() update_from_output()")
    after = play(engine, "begin_pass() extend(a)")
    assert after.requests[0].tables == ((0, 0, 0, 4, 5, 6),)
    assert after.free[-3:] == (3, 2, 1), "from the right"


def test_the_workers_keep_what_the_scheduler_gave_back() -> None:
    engine = TorchEngine(SCOPE)
    view = play(engine, f"{FIRST} {NEXT} begin_pass() extend(a)").requests[0]
    assert view.tables == ((0, 0, 0, 4, 5, 6),)
    assert view.worker_tables == ((1, 2, 3, 4, 5, 6),)


def test_a_window_alone_leads_to_the_digests_of_whole_prefixes() -> None:
    memory = play(TorchEngine(SCOPE), f"{FIRST} {NEXT} {NEXT} {NEXT}").memory
    assert memory[5] == ("abcdefghi", "abcdefghij")
    assert memory[6] == ("abcdefghijz", "abcdefghijzz")


def test_only_what_the_window_reaches_matters() -> None:
    for block, token, good in ((1, 1, True), (1, 0, True), (2, 2, False), (2, 3, False)):
        engine = TorchEngine(SCOPE)
        play(engine, FIRST)
        for worker in engine.workers:
            worker.memory.digests[block, token % 2] = torch.tensor(7)
        (table,) = play(engine, NEXT).requests[0].tables
        written = engine.observe().memory[table[-1]]
        assert written == (("abcdefghi", "abcdefghij") if good else (GARBAGE, GARBAGE))


def test_a_hit_adopts_only_what_the_window_reaches() -> None:
    engine = TorchEngine(HYBRID)
    play(engine, f"{FIRST} {NEXT} submit(b)")
    observed = play(engine, "begin_pass() admit(b)")
    assert observed.effects.hit == 8
    full, window, _ = observed.requests[1].tables
    assert 0 not in full
    assert window[:2] == (0, 0)
    assert window[2:4] != (0, 0)
    key = Key(1, "abcdef")
    assert [block for block, keys in enumerate(observed.keys) if key in keys] == [window[2]]
    assert [observed.ref_counts[block] for block in (*full[:2], *window[2:4])] == [2, 2, 2, 2]
    (dropped,) = (n for n, keys in enumerate(observed.keys) if Key(1, "ab") in keys)
    assert observed.ref_counts[dropped] == 1, "the hit does not touch what it does not adopt"


def test_a_sibling_computes_on_what_it_hit() -> None:
    engine = TorchEngine(HYBRID)
    observed = play(engine, f"{FIRST} {NEXT} submit(b) begin_pass() admit(b) end_pass() execute()")
    full, window, _ = observed.requests[1].tables
    assert observed.memory[full[4]] == ("abcdefghi", "abcdefghij")
    assert observed.memory[window[4]] == ("abcdefghi", "abcdefghij")


def test_keys_are_kept_where_hits_may_end() -> None:
    scope = attrs.evolve(SCOPE, groups=(full_attention(8), sliding_window(2, 4)), token_budget=64)
    keys = play(TorchEngine(scope), "submit(a) begin_pass() admit(a)").keys
    lengths = sorted(len(key.prefix) for each in keys for key in each if key.group == 1)
    assert lengths == [6, 8]
