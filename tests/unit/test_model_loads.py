"""Loads in the model: admission, filling, failing, and what becomes of who waits for them."""

from __future__ import annotations

import attrs
import pytest

from cowtail.models import lifecycle
from cowtail.models.actions import (
    Abort,
    Admit,
    BeginPass,
    EndPass,
    Evict,
    Extend,
    ForeignPut,
    LoadOutcome,
    LookUp,
    Preempt,
    ReportLoad,
    RunLoad,
    Submit,
    UpdateConnectorOutput,
)
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import (
    GARBAGE,
    Copy,
    Handoff,
    Held,
    Key,
    Load,
    LoadView,
    Status,
)
from cowtail.models.scope import (
    STORE,
    LoadPolicy,
    Lookup,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    peer,
)

SHARED = Scope(
    name="shared",
    groups=(full_attention(4), mamba(4)),
    hash_unit=2,
    num_blocks=16,
    requests=(RequestSpec("a", "abcdefghijk", max_tokens=2), RequestSpec("b", "abcdefghijk")),
    role=Role.BOTH,
    lookup=Lookup.SYNC,
    foreign=("a",),
    max_failed_loads=2,
    max_preemptions=1,
    max_evictions=1,
)
"""Eleven tokens of which another engine has stored ten: two whole blocks, and a tail of two."""


def loading(start, scope=SHARED):
    """Return a run in which 'a' has begun to load ten tokens."""
    run = start(scope).do(Submit("a"), ForeignPut("a"), BeginPass(), Admit("a"))
    return run


def loaded(start, scope=SHARED):
    return loading(start, scope).do(EndPass()).device().run_loads()


def test_a_request_gets_its_blocks_and_waits_until_they_are_filled(start) -> None:
    run = loading(start)
    assert (run.effects.hit, run.effects.external, run.effects.chunk) == (0, 10, None)
    request = run.request()
    assert request.status is Status.LOADING
    assert request.computed == 10
    assert [table.blocks for table in request.tables] == [(1, 2, 3), (0, 0, 4)]
    assert not any(run.state.pool.keys)
    assert run.observe().loads == (LoadView("a", (0, 1), False),)


def test_a_load_is_shipped_with_the_pass_and_does_not_wait_for_the_device(start) -> None:
    run = loading(start).do(EndPass())
    assert run.effects.loads == (Load("a", 0, 0, 10),)
    assert [rank.loads for rank in run.observe().ranks] == [("a",), ("a",)]
    run.do(RunLoad(0), RunLoad(1))
    assert run.state.memory[3] == ("abcdefghi", "abcdefghij", "", "")
    assert run.state.memory[4][0] == "abcdefghij"


def test_no_key_is_registered_before_the_bytes_are_there(start) -> None:
    run = loading(start).do(EndPass(), RunLoad(0), ReportLoad(0, "a"), UpdateConnectorOutput())
    assert run.request().status is Status.LOADING
    assert run.observe().loads == (LoadView("a", (1,), False),)
    run.device().do(RunLoad(1), ReportLoad(1, "a"), UpdateConnectorOutput())
    assert run.request().status is Status.LOADED
    assert not any(run.state.pool.keys)
    run.do(BeginPass(), Admit("a"))
    assert run.state.pool.keys[1] == (Key(0, "abcd"),)
    assert run.state.pool.keys[3] == (Key(0, "abcdefghij"),)


def test_r9_and_r15_a_loaded_tail_is_registered_copied_and_handed_off_like_any_other(start) -> None:
    run = loaded(start).do(BeginPass(), Admit("a"))
    assert run.effects.chunk is not None
    assert (run.effects.chunk.start, run.effects.chunk.end) == (10, 11)
    assert "tail registered" in run.events
    assert "producer copy-on-write" in run.events
    run.do(EndPass())
    (copy,) = run.effects.copies
    assert copy == Copy(1, 4, copy.destination)
    assert run.effects.handoffs == (Handoff("a", 1, copy.destination, 10),)
    assert all(copy.destination not in table.blocks for table in run.request().tables)
    assert run.state.pool.ref_counts[copy.destination] == 1


def test_a_loaded_full_state_is_offered_and_a_tail_waits_for_its_copy(start) -> None:
    scope = attrs.evolve(SHARED, requests=(RequestSpec("a", "abcdefghi"),))
    run = loaded(start, scope).do(BeginPass(), Admit("a"))
    assert run.effects.chunk is not None
    assert run.effects.chunk.start == 8
    assert [o.boundary for o in run.state.open_pass.offers] == [8]
    assert run.request().tables[1].marker is None


def test_what_is_computed_after_a_load_is_right(start) -> None:
    run = loaded(start).one_pass(Admit("a")).device()
    assert run.request().outputs == 1
    assert run.state.memory[3] == ("abcdefghi", "abcdefghij", "abcdefghijk", "")
    run.one_pass(Extend("a")).device()
    assert run.request().status is Status.FINISHED
    assert GARBAGE not in {slot for page in run.state.memory for slot in page}


def test_r13_a_local_hit_that_is_as_long_starts_no_load(start) -> None:
    run = loaded(start).one_pass(Admit("a")).device().do(Submit("b"), BeginPass(), Admit("b"))
    assert (run.effects.hit, run.effects.external) == (10, None)
    assert run.request("b").status is Status.RUNNING


def test_a_shorter_local_hit_is_cut_to_whole_lcms_and_the_rest_is_loaded(start) -> None:
    short = RequestSpec("b", "abcdefg")
    run = start(attrs.evolve(SHARED, requests=(SHARED.requests[0], short)))
    run.do(Submit("b"))
    run.one_pass(Admit("b")).device().one_pass(Extend("b")).device().one_pass(Extend("b")).device()
    assert run.request("b").status is Status.FINISHED
    run.do(ForeignPut("a"), Submit("a")).one_pass(Admit("a"))
    assert (run.effects.loads[0].start, run.effects.loads[0].end) == (4, 10)
    assert run.request().tables[0].num_cached == 1
    assert run.state.pool.ref_counts[run.request().tables[0].blocks[0]] > 0
    assert run.request().tables[1].blocks[:2] == (0, 0)


def test_a_load_leaves_room_for_all_who_load_to_go_on(start) -> None:
    scope = attrs.evolve(
        SHARED,
        requests=(RequestSpec("a", "abcdef"), RequestSpec("b", "qrstuv")),
        foreign=("a", "b"),
        num_blocks=9,
    )
    run = start(scope).do(Submit("a"), Submit("b"), ForeignPut("a"), ForeignPut("b"))
    run.do(BeginPass(), Admit("a"))
    assert run.request().computed == 4
    assert len(run.state.pool.free) == 6
    with pytest.raises(NotEnabled, match="2 blocks and 6 in reserve are needed, 6 free"):
        run.do(Admit("b"))


def test_nothing_is_preempted_after_a_load_was_begun_in_the_pass(start) -> None:
    run = start(
        attrs.evolve(
            SHARED,
            foreign=("b",),
            requests=(RequestSpec("a", "xy", max_tokens=3), RequestSpec("b", "abcdefghijk")),
        )
    )
    run.do(Submit("a")).one_pass(Admit("a")).device().do(Submit("b"), ForeignPut("b"))
    run.do(BeginPass(), Admit("b"))
    assert run.request("b").status is Status.LOADING
    with pytest.raises(NotEnabled, match="was admitted in this pass"):
        run.do(Preempt("a"))


def test_r18_a_failed_load_is_computed_instead_and_never_looked_up_again(start) -> None:
    run = loading(start).do(EndPass()).device()
    run.do(RunLoad(0), RunLoad(1, LoadOutcome.FAILED))
    assert run.state.memory[3] == ("abcdefghi", "abcdefghij", "", "")
    assert run.observe().memory[3] == (GARBAGE, GARBAGE, "", "")
    run.do(ReportLoad(1, "a"), ReportLoad(0, "a"), UpdateConnectorOutput())
    request = run.request()
    assert (request.status, request.computed) == (Status.WAITING, 0)
    assert not any(run.state.pool.ref_counts)
    assert run.state.pool.free[:4] == (4, 3, 2, 1)
    run.do(BeginPass(), Admit("a"))
    assert (run.effects.hit, run.effects.external) == (0, None)
    run.do(EndPass()).device().one_pass(Preempt("a")).device().do(BeginPass(), Admit("a"))
    assert run.effects.external is None


def test_r18_a_key_that_is_gone_on_one_rank_fails_the_load(start) -> None:
    run = loading(start).do(EndPass(), Evict(1, 0, "abcd"))
    run.do(RunLoad(1))
    assert run.events == ("load found a key gone",)
    assert run.state.ranks[1].loaded == ((0, False),)
    run.run_loads()
    assert run.request().status is Status.WAITING


def test_a_failed_load_ends_the_request_under_the_other_policy(start) -> None:
    run = loading(start, attrs.evolve(SHARED, load_policy=LoadPolicy.FAIL)).do(EndPass()).device()
    run.do(RunLoad(0, LoadOutcome.FAILED)).run_loads()
    assert run.request().status is Status.FINISHED
    assert run.effects.handoffs == ()
    assert not any(run.state.pool.ref_counts)
    assert run.observe().untold == ("a",)


def test_s15_who_is_aborted_while_loading_keeps_its_blocks_until_the_last_rank(start) -> None:
    run = loading(start).do(EndPass(), RunLoad(0), Abort("a"))
    assert run.request().status is Status.FINISHED
    assert run.observe().held == (Held("a", (0, 1)),)
    assert run.observe().requests[0].tables == ((1, 2, 3), (0, 0, 4))
    run.do(ReportLoad(0, "a"), UpdateConnectorOutput())
    assert run.observe().held == (Held("a", (1,)),)
    assert run.state.pool.ref_counts[1] == 1
    run.do(RunLoad(1), ReportLoad(1, "a"), UpdateConnectorOutput())
    assert run.observe().held == ()
    assert not any(run.state.pool.ref_counts)
    run.device().one_pass().device()
    assert lifecycle.is_quiescent(run.scope, run.state)


def test_who_is_aborted_when_loaded_is_freed_at_once(start) -> None:
    run = loaded(start).do(Abort("a"))
    assert run.observe().held == ()
    assert not any(run.state.pool.ref_counts)


def test_the_first_child_that_supplies_more_loads_even_if_another_has_more(start) -> None:
    run = start(attrs.evolve(SHARED, children=(STORE, peer(serves=True))))
    run.do(Submit("a"), ForeignPut("a"), Evict(0, 1, "abcdefghij"), BeginPass(), Admit("a"))
    assert (run.state.loads[0].child, run.effects.external) == (0, 8)
    run = start(attrs.evolve(SHARED, children=(peer(serves=True), STORE)))
    run.do(Submit("a"), ForeignPut("a"), BeginPass(), Admit("a"))
    assert (run.state.loads[0].child, run.effects.external) == (0, 10)
    run = start(attrs.evolve(SHARED, children=(STORE, peer(serves=True))))
    run.do(Submit("a"), BeginPass(), Admit("a"))
    assert (run.state.loads[0].child, run.effects.external) == (1, 10)


def test_a_peer_fills_blocks_truly_and_misses_nothing(start) -> None:
    run = start(attrs.evolve(SHARED, children=(peer(serves=True),), foreign=()))
    run.do(Submit("a")).one_pass(Admit("a")).device().run_loads()
    assert run.request().status is Status.LOADED
    assert run.state.memory[3] == ("abcdefghi", "abcdefghij", "", "")


def test_the_answer_of_a_lookup_is_used_up_by_the_admission(start) -> None:
    run = start(attrs.evolve(SHARED, lookup=Lookup.ASYNC)).do(Submit("a"), LookUp("a"))
    assert run.observe().requests[0].found == 0
    run.do(ForeignPut("a"), BeginPass(), Admit("a"))
    assert run.effects.external is None
    assert run.observe().requests[0].found is None
