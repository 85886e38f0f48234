"""Every fault of the torch engine shows itself in a few actions, written by hand.

The engine with the fault and the one without take the same actions; their observations are equal
until the last one and differ then, in what the fault is about. A fault that does not show is no
fault, and one that shows elsewhere is not the one that it says it is.
"""

from __future__ import annotations

import contextlib

import attrs
import pytest

from cowtail.harness.notation import parse_actions
from cowtail.impl.torch_engine import TorchEngine
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.faults import FAULTS, parts_with
from cowtail.impl.torch_engine.parts import Parts
from cowtail.models.observations import Observation, Pin, Put, StoreEntry
from cowtail.models.scope import (
    BASE,
    STORE,
    Lookup,
    Policy,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    peer,
    sliding_window,
)


def small(
    prompt: str,
    max_tokens: int = 1,
    *more: RequestSpec,
    steps: int = 1,
    blocks: int = 10,
    role: Role = Role.BOTH,
) -> Scope:
    """Return a scope of two ranks with blocks of two tokens and hash units of one."""
    return Scope(
        name="small",
        groups=(full_attention(2), mamba(2)),
        hash_unit=1,
        num_blocks=blocks,
        requests=(RequestSpec("a", prompt, max_tokens), *more),
        max_steps_in_flight=steps,
        role=role,
    )


TAIL = small("ab")
"""Its tail is at 1: chunks end at 1 and 2."""

TWIN = small("ab", 1, RequestSpec("b", "ab"))
AHEAD = small("ab", 2, steps=2)

STORED = attrs.evolve(small("abcd"), lookup=Lookup.ASYNC, foreign=("a",))
"""Its whole prompt may be in the store; three tokens of it can be loaded."""

SENT = attrs.evolve(TAIL, children=(peer(retains=True), peer(retains=True)))

STEP = "end_pass() execute() update_from_output()"
FIRST = f"submit(a) begin_pass() admit(a) {STEP}"
TAIL_STORED = f"{FIRST} abort(a) begin_pass() end_pass() execute() run_job(0) report(0, 0)"
TWO_STEPS = "submit(a) begin_pass() admit(a) end_pass() begin_pass() extend(a) end_pass()"
NEXT_LIFE = (
    f"{TWO_STEPS} execute() execute() update_from_output() begin_pass() preempt(a) end_pass() "
    "update_from_output() begin_pass() admit(a) end_pass()"
)

LOADING = "foreign_put(a) submit(a) look_up(a) begin_pass() admit(a) end_pass()"
ONE_LOADED = f"{LOADING} run_load(0) report_load(0, a)"
LOADED = f"{ONE_LOADED} run_load(1) report_load(1, a) execute() update_from_output() " + (
    "update_connector_output()"
)
NEXT = f"begin_pass() extend(a) {STEP}"
DRAINED = "run_job(0) run_job(1) report(0, 0) report(1, 0) update_connector_output()"

PAIR = attrs.evolve(small("abcd"), groups=(full_attention(2, eagle=True), mamba(2)))
"""Its tail is at 3, and the proof of it at 4: chunks end at 2, 3 and 4."""

SHORTEST: dict[str, tuple[Scope, str, str]] = {
    "K01": (TAIL, f"{FIRST} abort(a)", "handoffs"),
    "K02": (TAIL, "submit(a) begin_pass() admit(a) end_pass() abort(a)", "handoffs"),
    "K03": (TAIL, f"{FIRST} begin_pass() extend(a) {STEP}", "handoffs"),
    "K04": (TAIL, f"{FIRST} begin_pass() extend(a) end_pass()", "jobs"),
    "K05": (TAIL, f"{FIRST} abort(a)", "jobs"),
    "K06": (STORED, "foreign_put(a) submit(a) look_up(a)", "requests"),
    "K07": (
        attrs.evolve(
            small("abcd", 1, RequestSpec("b", "abcd")), lookup=Lookup.SYNC, foreign=("b",)
        ),
        f"{FIRST} begin_pass() extend(a) {STEP} foreign_put(b) submit(b) begin_pass() admit(b)",
        "external",
    ),
    "K08": (
        small("abc"),
        "submit(a) begin_pass() admit(a) end_pass() execute() run_job(0, failed)",
        "ranks",
    ),
    "K19": (
        AHEAD,
        f"{TWO_STEPS} execute() update_from_output() begin_pass() preempt(a)",
        "pins",
    ),
    "K20": (
        AHEAD,
        f"{NEXT_LIFE} run_job(0) report(0, 0) update_connector_output()",
        "pins",
    ),
    "K23": (small("abc"), f"{FIRST} begin_pass() extend(a) {STEP}", "jobs"),
    "K24": (
        TWIN,
        f"submit(b) {FIRST} abort(a) begin_pass() admit(b) end_pass() execute() "
        "run_job(0) run_job(0)",
        "puts",
    ),
    "K25": (TAIL, f"{FIRST} begin_pass() extend(a) end_pass()", "pins"),
    "K26": (AHEAD, NEXT_LIFE, "pins"),
    "K27": (
        attrs.evolve(small("abcde"), lookup=Lookup.OFF),
        f"{FIRST} run_job(0) begin_pass() extend(a) {STEP} evict(0, 0, ab) run_job(0)",
        "puts",
    ),
    "K29": (STORED, f"{LOADING} abort(a)", "free"),
    "K30": (STORED, f"{ONE_LOADED} update_connector_output() abort(a)", "held"),
    "K31": (STORED, f"{ONE_LOADED} abort(a) update_connector_output()", "held"),
    "K36": (STORED, "foreign_put(a) submit(a) look_up(a) abort(a)", "requests"),
    "K38": (
        STORED,
        f"{LOADING} evict(0, 1, abc) run_load(0) report_load(0, a) update_connector_output()",
        "loads",
    ),
    "K43": (
        SENT,
        f"{FIRST} abort(a) begin_pass() end_pass() execute() finish_send(0, 1, a)",
        "send_inbox",
    ),
    "K44": (STORED, "foreign_put(a) submit(a) look_up(a) reset(False, True)", "requests"),
    "K45": (
        TAIL,
        f"{FIRST} abort(a) reset()",
        "reset",
    ),
    "K09": (
        STORED,
        f"{LOADED} begin_pass() admit(a)",
        "keys",
    ),
    "K10": (
        small("ab", 4),
        f"{FIRST} {NEXT} {NEXT} {NEXT} {DRAINED} reset(True) begin_pass() admit(a) end_pass()",
        "jobs",
    ),
    "K11": (small("abcd"), "submit(a) begin_pass() admit(a)", "chunk"),
    "K12": (
        small("abcd", 2, role=Role.NONE),
        f"{FIRST} {NEXT} {NEXT} begin_pass() preempt(a) {STEP} begin_pass() admit(a) end_pass() "
        "execute()",
        "memory",
    ),
    "K13": (
        PAIR,
        f"{FIRST} begin_pass() extend(a) {STEP} begin_pass() extend(a) end_pass()",
        "jobs",
    ),
    "K14": (PAIR, f"{FIRST} begin_pass() extend(a) {STEP} abort(a)", "jobs"),
    "K15": (
        attrs.evolve(
            small("abc", 3, role=Role.NONE, blocks=16),
            groups=(full_attention(1, eagle=True), full_attention(2, eagle=True)),
        ),
        f"{FIRST} {NEXT} begin_pass() preempt(a) {STEP} begin_pass() admit(a)",
        "hit",
    ),
    "K16": (
        attrs.evolve(
            small("ab"),
            groups=(full_attention(1, eagle=True),),
            lookup=Lookup.SYNC,
            foreign=("a",),
        ),
        "foreign_put(a) submit(a) begin_pass() admit(a) end_pass() run_load(0)",
        "memory",
    ),
    "K17": (
        attrs.evolve(
            small("abcd", role=Role.NONE),
            groups=(full_attention(3, eagle=True), mamba(3)),
            hash_unit=3,
        ),
        "submit(a) begin_pass() admit(a)",
        "chunk",
    ),
    "K18": (
        attrs.evolve(
            small("abcd", blocks=16),
            groups=(full_attention(4, eagle=True), full_attention(4), mamba(2)),
        ),
        f"{FIRST} begin_pass() extend(a) {STEP} begin_pass() extend(a) end_pass()",
        "jobs",
    ),
    "K21": (TAIL, f"{FIRST} {NEXT} run_job(0, check_failed)", "ranks"),
    "K22": (
        small("abcd", 2),
        f"{FIRST} {DRAINED} reset(True) begin_pass() admit(a) end_pass()",
        "jobs",
    ),
    "K28": (
        attrs.evolve(small("ab", 3), num_ranks=1),
        f"{FIRST} {NEXT} {NEXT} run_job(0) report(0, 0) update_connector_output()",
        "released",
    ),
    "K32": (SENT, f"{FIRST} abort(a) abort(a)", "free"),
    "K33": (TAIL, f"{FIRST} begin_pass() extend(a) end_pass()", "pins"),
    "K34": (
        STORED,
        f"{LOADING} evict(0, 1, abc) run_load(0) report_load(0, a) update_connector_output()",
        "loads",
    ),
    "K35": (
        attrs.evolve(small("abc", 1, RequestSpec("b", "abx")), lookup=Lookup.SYNC, foreign=("b",)),
        "foreign_put(b) evict(0, 1, ab) submit(a) begin_pass() admit(a)",
        "external",
    ),
    "K37": (
        attrs.evolve(
            small("wxyzv", 1, RequestSpec("b", "abcd"), blocks=16),
            lookup=Lookup.SYNC,
            foreign=("b",),
        ),
        "submit(a) submit(b) foreign_put(b) begin_pass() admit(a) admit(b) end_pass() "
        "run_load(0, failed) run_load(1) report_load(0, b) report_load(1, b) "
        "update_connector_output()",
        "requests",
    ),
    "K39": (small("ab", 3), f"{FIRST} {NEXT} {DRAINED}", "ref_counts"),
    "K40": (
        attrs.evolve(TAIL, defer_frees=True),
        "submit(a) begin_pass() admit(a) end_pass() abort(a)",
        "deferred",
    ),
    "K42": (STORED, f"{ONE_LOADED} update_connector_output()", "requests"),
    "keyed_before_loaded": (
        STORED,
        "foreign_put(a) submit(a) look_up(a) begin_pass() admit(a)",
        "keys",
    ),
    "loaded_after_first_rank": (STORED, f"{ONE_LOADED} update_connector_output()", "requests"),
    "failed_load_not_reported": (STORED, f"{LOADING} run_load(0, failed)", "ranks"),
    "held_without_blocks": (SENT, "submit(a) abort(a)", "held"),
    "tail_offered_to_first_connector": (
        attrs.evolve(TAIL, children=(BASE, STORE)),
        f"{FIRST} abort(a)",
        "handoffs",
    ),
    "tail_emitted_twice": (TAIL, "submit(a) begin_pass() admit(a) end_pass()", "handoffs"),
    "pin_never_released": (TAIL, f"{TAIL_STORED} update_connector_output()", "pins"),
    "pin_released_after_first_rank": (TAIL, f"{TAIL_STORED} update_connector_output()", "released"),
    "offloaded_past_boundary": (TAIL, f"{FIRST} abort(a)", "jobs"),
    "reference_forgotten_by_cow": (TAIL, f"{FIRST} begin_pass() extend(a)", "ref_counts"),
    "null_block_offloaded": (
        small("abcde"),
        "submit(a) begin_pass() admit(a) end_pass() execute() run_job(0)",
        "puts",
    ),
    "freed_head_first": (
        small("abcdef", role=Role.NONE),
        f"{FIRST} begin_pass() preempt(a)",
        "free",
    ),
    "moved_keys_lost": (TAIL, f"{FIRST} begin_pass() extend(a)", "keys"),
    "stale_output_counted": (
        AHEAD,
        f"{TWO_STEPS} execute() execute() update_from_output() begin_pass() preempt(a) end_pass() "
        "update_from_output()",
        "requests",
    ),
    "copy_after_forward": (TAIL, f"{FIRST} begin_pass() extend(a) end_pass() execute()", "memory"),
    "lookup_floored_to_blocks": (
        TWIN,
        f"{FIRST} abort(a) submit(b) begin_pass() admit(b)",
        "hit",
    ),
    "window_given_back_early": (
        attrs.evolve(small("abcdef"), groups=(sliding_window(2, 4), mamba(2))),
        f"{FIRST} begin_pass() extend(a)",
        "requests",
    ),
    "window_proof_not_kept": (
        attrs.evolve(
            small("abcdefghijklm", blocks=16),
            groups=(full_attention(8), sliding_window(2, 3, eagle=True)),
        ),
        "submit(a) begin_pass() admit(a)",
        "keys",
    ),
    "boundary_overrun": (TAIL, "submit(a) begin_pass() admit(a)", "chunk"),
    "resumed_table_appended": (
        small("ab", 2),
        f"{FIRST} begin_pass() preempt(a) {STEP} begin_pass() admit(a)",
        "requests",
    ),
    "accepted_drafts_forgotten": (
        attrs.evolve(small("ab", 6), speculative_tokens=1, groups=(full_attention(2), mamba(4))),
        f"{FIRST} begin_pass() extend(a) {STEP} begin_pass() extend(a) {STEP} "
        f"begin_pass() extend(a) {STEP} begin_pass() extend(a) end_pass() execute()",
        "memory",
    ),
    "withdrawn_keys_kept": (
        attrs.evolve(small("abcdef"), policy=Policy.PRIORITY),
        f"{FIRST} begin_pass() extend(a) preempt(a)",
        "keys",
    ),
    "blocks_not_zeroed": (
        small("ab", 1, RequestSpec("b", "wx"), RequestSpec("c", "yz"), blocks=5, role=Role.NONE),
        f"{FIRST} begin_pass() extend(a) {STEP} submit(b) begin_pass() admit(b) {STEP} abort(b) "
        "submit(c) begin_pass() admit(c) end_pass() execute()",
        "memory",
    ),
}


def differing(one: Observation, other: Observation) -> set[str]:
    """Return the fields of two observations, effects included, that are not equal."""
    return {
        field.name
        for value, against in ((one, other), (one.effects, other.effects))
        for field in attrs.fields(type(value))
        if getattr(value, field.name) != getattr(against, field.name)
    }


def observations_at_the_end(fault: str) -> tuple[Observation, Observation]:
    """Return what the good and the faulty engine show at the first difference."""
    scope, text, _ = SHORTEST[fault]
    good, faulty = TorchEngine(scope), TorchEngine(scope, faults=[fault])
    actions = parse_actions(text)
    for number, action in enumerate(actions, start=1):
        # The good engine refuses K32's last action, and changes nothing; no other is refused.
        refused = (EngineError,) if fault == "K32" and number == len(actions) else ()
        for engine in (good, faulty):
            with contextlib.suppress(*refused):
                engine.perform(action)
        if number < len(actions):
            assert good.observe() == faulty.observe(), f"differs at {action} already"
    return good.observe(), faulty.observe()


def test_every_fault_has_its_actions() -> None:
    assert set(SHORTEST) == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_in_what_it_is_about(fault: str) -> None:
    good, faulty = observations_at_the_end(fault)
    assert SHORTEST[fault][2] in differing(good, faulty)


def test_k04_stores_the_running_block_as_the_boundary_state() -> None:
    good, faulty = observations_at_the_end("K04")
    (durable,) = (put for put in good.effects.jobs[0].puts if put.group == 1 and put.boundary == 1)
    wrong = Put(1, good.requests[0].tables[1][0], 1)
    assert durable.block not in good.requests[0].tables[1]
    assert wrong in faulty.effects.jobs[0].puts


def test_k20_counts_a_report_of_one_life_for_the_next() -> None:
    good, faulty = observations_at_the_end("K20")
    assert [(pin.job, pin.ranks_owed) for pin in good.pins] == [(0, (1,)), (1, (0, 1))]
    assert [(pin.job, pin.ranks_owed) for pin in faulty.pins] == [(0, (0, 1)), (1, (1,))]


def test_k26_expects_reports_that_never_come() -> None:
    good, faulty = observations_at_the_end("K26")
    assert good.pins[0].ranks_owed == (0, 1)
    assert faulty.pins[0] == Pin(0, good.pins[0].blocks, (0, 0, 1, 1))


def test_k23_stores_a_slot_that_was_never_written() -> None:
    scope, text, _ = SHORTEST["K23"]
    engine = TorchEngine(scope, faults=["K23"])
    for action in parse_actions(f"{text} begin_pass() end_pass() execute() run_job(0) run_job(0)"):
        engine.perform(action)
    puts = engine.perform(parse_actions("run_job(0)")[0]).puts
    assert puts == (StoreEntry(0, 0, "abcz", ("abc", "")),)


def test_null_block_offloaded_stores_nothing_under_a_key() -> None:
    _, faulty = observations_at_the_end("null_block_offloaded")
    assert StoreEntry(0, 1, "ab", ("",)) in faulty.effects.puts


def test_k25_takes_two_references_for_one_job() -> None:
    good, faulty = observations_at_the_end("K25")
    (pin,), (twice,) = good.pins, faulty.pins
    (block,) = (b for b in pin.blocks if twice.blocks.count(b) == 2)
    assert faulty.ref_counts[block] == good.ref_counts[block] + 1


def test_faults_may_share_a_part() -> None:
    parts = parts_with(["K01", "tail_emitted_twice"])
    for name in ("K01", "tail_emitted_twice"):
        assert issubclass(parts.mamba, FAULTS[name].replacement)


def test_every_part_that_can_be_replaced_is_replaced_by_some_fault() -> None:
    parts = {field.name for field in attrs.fields(Parts)}
    assert parts == {fault.part for fault in FAULTS.values()}
