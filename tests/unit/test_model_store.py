"""The store in the model: what is put, what fails, what is looked up, and what is evicted."""

from __future__ import annotations

import attrs
import pytest

from cowtail.models import connector, store_lookup
from cowtail.models.actions import (
    Abort,
    Admit,
    BeginPass,
    Evict,
    ExpireLease,
    Extend,
    ForeignPut,
    JobOutcome,
    LookUp,
    Preempt,
    RunJob,
    Submit,
)
from cowtail.models.connector import SaveRequest, attention_tail_puts
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Put, StoreEntry
from cowtail.models.scope import (
    Lookup,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    sliding_window,
)

PAIR = Scope(
    name="pair",
    groups=(full_attention(2), mamba(4)),
    hash_unit=1,
    num_blocks=24,
    requests=(RequestSpec("a", "abcdefg"), RequestSpec("b", "abcdefg")),
    role=Role.PRODUCER,
    num_ranks=1,
    max_failed_jobs=9,
    put_failures=tuple(outcome for outcome in JobOutcome if outcome is not JobOutcome.OK),
    max_evictions=9,
    max_preemptions=1,
)
"""An LCM of four, and a boundary at six: one attention block that normal saves leave out."""

SMALL = attrs.evolve(
    PAIR, groups=(full_attention(2), mamba(2)), requests=(RequestSpec("a", "abcd"),)
)


def computed(start, scope, steps=8):
    """Return a run in which 'a' is computed as far as it goes, and nothing is stored yet."""
    run = start(scope).do(Submit("a")).one_pass(Admit("a")).device()
    while any(action == BeginPass() for action in run.enabled()) and steps:
        run.do(BeginPass())
        extend = [Extend("a")] if Extend("a") in run.enabled() else []
        run.do(*extend).do(*[action for action in run.enabled() if action.name == "end_pass"])
        run.device()
        steps -= 1
    return run


def test_r16_full_blocks_that_lcm_saves_leave_out_are_stored_up_to_the_boundary(start) -> None:
    run = computed(start, PAIR).run_jobs()
    assert run.stored() == {(0, "ab"), (0, "abcd"), (0, "abcdef"), (1, "abcd"), (1, "abcdef")}


@pytest.mark.parametrize("length", [3, 5, 6, 7, 9])
def test_r20_chunks_are_counted_by_ceiling_and_keyed_at_their_own_end(start, length) -> None:
    scope = attrs.evolve(
        PAIR,
        groups=(full_attention(4), mamba(4)),
        requests=(RequestSpec("a", "abcdefghi"[:length]),),
    )
    boundary = length - 1
    run = computed(start, scope).run_jobs()
    whole = {(0, scope.requests[0].prompt[:end]) for end in range(4, length + 1, 4)}
    tail = scope.requests[0].prompt[:boundary]
    assert {entry for entry in run.stored() if entry[0] == 0} == whole | {(0, tail)}
    assert (1, tail) in run.stored()


EAGLE = Scope(
    name="eagle",
    groups=(full_attention(8, eagle=True), mamba(8)),
    hash_unit=2,
    num_blocks=24,
    requests=(RequestSpec("a", "abcdefghijklmnopqrstuvwxyz"[:18]),),
    role=Role.PRODUCER,
    num_ranks=1,
)
TABLES = ((1, 2, 3), (4, 5, 6))


def puts_of(prompt: int, save: SaveRequest) -> tuple[Put, ...]:
    spec = RequestSpec("a", "abcdefghijklmnopqrstuvwxyz"[:prompt])
    return attention_tail_puts(attrs.evolve(EAGLE, requests=(spec,)), spec, TABLES, save)


def test_r26_a_boundary_inside_a_block_takes_its_companion_when_completed_that_far() -> None:
    tail = (Put(1, 5, 10),)  # ck(13) = 10, margin 2
    assert puts_of(13, SaveRequest(0, 8, 13, True, tail)) == (Put(0, 2, 12),)
    assert puts_of(13, SaveRequest(0, 8, 12, False, tail)) == (Put(0, 2, 12),)
    assert puts_of(13, SaveRequest(0, 8, 11, False, tail)) == (Put(0, 2, 10),)
    assert puts_of(13, SaveRequest(0, 8, 9, False, tail)) == ()


def test_r26_a_boundary_between_blocks_takes_its_companion_or_none() -> None:
    state = (Put(1, 5, 16),)  # ck(18) = 16, margin 2
    assert puts_of(18, SaveRequest(0, 16, 16, False, state)) == ()
    assert puts_of(18, SaveRequest(0, 16, 18, True)) == (Put(0, 3, 18),)
    assert puts_of(18, SaveRequest(0, 16, 17, True)) == ()


def test_r26_an_internal_checkpoint_between_blocks_has_no_companion() -> None:
    assert puts_of(18, SaveRequest(0, 16, 18, False, (Put(1, 4, 8),))) == ()


def test_r25_nothing_is_published_for_a_prompt_without_a_boundary() -> None:
    assert puts_of(3, SaveRequest(0, 0, 3, True)) == ()  # ck(3) = 0


def test_r26_a_window_ends_at_its_own_margin_and_leaves_its_nulls_out() -> None:
    groups = (full_attention(4), sliding_window(1, 3, eagle=True), mamba(4))
    spec = RequestSpec("a", "abcdefg")  # drop: ck(7) = 6, window margin 1
    scope = attrs.evolve(PAIR, groups=groups, requests=(spec,))
    tables = ((1, 2), (0, 0, 0, 0, 5, 6, 7), (0, 9))
    puts = attention_tail_puts(scope, spec, tables, SaveRequest(0, 4, 7, True))
    assert puts == (Put(0, 2, 6), Put(1, 5, 5), Put(1, 6, 6), Put(1, 7, 7))


def test_r27_overlapping_keys_are_written_once(start) -> None:
    spec = RequestSpec("a", "abcdefghijklmnopq")  # ck(17) = 14: offered, then published
    run = computed(start, attrs.evolve(EAGLE, requests=(spec,)))
    jobs = run.state.ranks[0].queue
    wanted = [(0, put.boundary) for job in jobs for put in job.puts if put.group == 0]
    assert wanted.count((0, 16)) == 2
    written = []
    for _ in jobs:
        run.do(RunJob(0))
        written += [(entry.group, entry.prefix) for entry in run.effects.puts]
    assert len(written) == len(set(written))
    assert set(written) == run.stored()


def test_r18_a_partial_failure_writes_the_first_put_and_ends_the_job(start) -> None:
    run = computed(start, PAIR)
    tail = next(i for i, job in enumerate(run.state.ranks[0].queue) if len(job.puts) > 1)
    run.do(*[RunJob(0)] * tail)
    before = run.stored()
    put = run.state.ranks[0].queue[0].puts[0]
    run.do(RunJob(0, JobOutcome.PARTIAL))
    assert [(entry.group, len(entry.prefix)) for entry in run.effects.puts] == [
        (put.group, put.boundary)
    ]
    assert len(run.stored()) == len(before) + 1


def test_a_single_put_cannot_fail_in_part(start) -> None:
    run = start(SMALL).do(Submit("a")).one_pass(Admit("a")).device()
    assert [len(job.puts) for job in run.state.ranks[0].queue] == [1]
    with pytest.raises(NotEnabled, match="cannot fail in part"):
        run.do(RunJob(0, JobOutcome.PARTIAL))


@pytest.mark.parametrize("outcome", PAIR.put_failures[::2])
def test_r19_a_failed_tail_moves_no_offset_and_skips_the_save_of_its_job(start, outcome) -> None:
    run = start(SMALL).do(Submit("a")).one_pass(Admit("a")).device()
    assert run.state.ranks[0].queue[0].save_to == 2
    run.do(RunJob(0, outcome))
    assert run.stored() == set()
    assert run.state.ranks[0].saved == (0,)
    assert run.state.ranks[0].outbox == (0,)


def test_r18_while_the_store_is_full_a_requests_jobs_do_nothing(start) -> None:
    requests = (RequestSpec("a", "abcd", max_tokens=9), RequestSpec("b", "xyz"))
    run = computed(start, attrs.evolve(SMALL, requests=requests), steps=3)
    first, *later = run.state.ranks[0].queue
    run.do(RunJob(0, JobOutcome.NO_SPACE))
    assert run.observe().ranks[0].skipping == ("a",)
    for _ in later:
        with pytest.raises(NotEnabled, match="skipped"):
            run.do(RunJob(0, JobOutcome.FAILED))
        run.do(RunJob(0))
        assert run.events == ("job skipped: store is full",)
    assert run.stored() == set()
    assert run.state.ranks[0].outbox == (first.job, *(job.job for job in later))
    run.do(Submit("b")).one_pass(Admit("b")).device()
    while run.state.ranks[0].skipping:
        if not run.state.ranks[0].queue:
            run.one_pass(Extend("b")).device()
        run.do(RunJob(0))
    assert run.state.ranks[0].saved[1] == 2


def test_a_forgotten_offset_ends_the_skipping(start) -> None:
    run = start(SMALL).do(Submit("a")).one_pass(Admit("a")).device()
    run.do(RunJob(0, JobOutcome.NO_SPACE))
    run.one_pass(Preempt("a")).device()
    assert run.state.ranks[0].skipping == ()


def test_s11_a_durable_offset_falls_to_what_is_really_there(start) -> None:
    run = start(SMALL).do(Submit("a")).one_pass(Admit("a")).device().run_jobs()
    assert run.state.ranks[0].saved == (2,)
    run.do(Evict(0, 0, "ab"))
    run.one_pass(Extend("a")).device().one_pass(Extend("a")).device()
    assert (0, "ab") not in run.stored()
    run.run_jobs()
    assert {(0, "ab"), (0, "abcd")} <= run.stored()
    assert run.state.ranks[0].saved == (4,)


def test_s11_the_offset_has_fallen_even_if_the_put_then_fails(start) -> None:
    scope = attrs.evolve(SMALL, groups=(full_attention(2),), hash_unit=2, token_budget=2)
    run = start(scope).do(Submit("a")).one_pass(Admit("a")).device().run_jobs()
    run.do(Evict(0, 0, "ab")).one_pass(Extend("a")).device()
    before = run.state
    assert before.ranks[0].queue[0].puts == ()
    run.do(RunJob(0, JobOutcome.FAILED))
    assert run.events == ("put failed", "prefix save failed")
    assert run.state.ranks[0].saved == (0,)
    run.state = before
    run.do(RunJob(0, JobOutcome.CHECK_FAILED))
    assert run.state.ranks[0].saved == (2,)


SHARED = Scope(
    name="shared",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=10,
    requests=(RequestSpec("a", "abcd"),),
    role=Role.CONSUMER,
    num_ranks=2,
    lookup=Lookup.ASYNC,
    foreign=("a",),
    max_evictions=9,
    max_expired_leases=1,
    max_failed_lookups=1,
)


def test_a_foreign_put_is_what_a_producer_puts_with_true_content(start) -> None:
    run = start(SHARED).do(ForeignPut("a"))
    assert run.stored(0) == run.stored(1)
    assert run.stored() == {(0, "ab"), (0, "abcd"), (0, "abc"), (1, "ab"), (1, "abc")}
    assert StoreEntry(1, 0, "abcd", ("abc", "abcd")) in run.state.store
    assert StoreEntry(1, 1, "abc", ("abc",)) in run.state.store
    with pytest.raises(NotEnabled, match="was put already"):
        run.do(ForeignPut("a"))


def test_a_foreign_put_stores_what_this_engine_would_have_stored(start) -> None:
    for groups in ((full_attention(2), mamba(4)), (full_attention(4), mamba(4))):
        scope = attrs.evolve(PAIR, groups=groups, foreign=("a",))
        own = computed(start, scope).run_jobs()
        assert start(scope).do(ForeignPut("a")).stored() == own.stored()


def test_a_key_counts_if_every_rank_has_it(start) -> None:
    run = start(SHARED).do(Submit("a"), ForeignPut("a"))
    assert store_lookup.ask(run.scope, run.state, 0).length == 3
    run.do(Evict(1, 1, "abc"))
    assert store_lookup.ask(run.scope, run.state, 0).length == 2
    run.do(Evict(0, 0, "ab"))
    assert store_lookup.ask(run.scope, run.state, 0).length == 0


def test_a_request_waits_for_its_answer_and_then_is_admitted_by_it(start) -> None:
    run = start(SHARED).do(Submit("a"), ForeignPut("a"))
    with pytest.raises(NotEnabled, match="nothing to schedule"):
        run.do(BeginPass())
    run.do(LookUp("a"))
    assert (run.observe().requests[0].found, run.observe().requests[0].leased) == (3, True)
    run.do(BeginPass(), Admit("a"))
    assert (run.effects.external, run.observe().requests[0].found) == (3, None)
    assert run.request().leased


def test_r18_a_failed_lookup_is_a_miss(start) -> None:
    run = start(SHARED).do(Submit("a"), ForeignPut("a"), LookUp("a", failed=True))
    assert (run.observe().requests[0].found, run.request().leased) == (0, False)
    run.do(BeginPass(), Admit("a"))
    assert (run.effects.hit, run.effects.external) == (0, None)
    sync = attrs.evolve(SHARED, lookup=Lookup.SYNC)
    run = start(sync).do(Submit("a"), ForeignPut("a"), BeginPass())
    assert Admit("a", lookup_failed=True) in run.enabled()
    run.do(Admit("a", lookup_failed=True))
    assert (run.effects.hit, run.effects.external) == (0, None)


def test_a_lookup_that_would_find_nothing_cannot_fail_at_admission(start) -> None:
    run = start(attrs.evolve(SHARED, lookup=Lookup.SYNC)).do(Submit("a"), BeginPass())
    assert Admit("a") in run.enabled()
    assert Admit("a", lookup_failed=True) not in run.enabled()


def test_what_is_leased_is_not_evicted(start) -> None:
    run = start(SHARED).do(Submit("a"), ForeignPut("a"), LookUp("a"))
    evictions = {action.prefix for action in run.enabled() if isinstance(action, Evict)}
    assert evictions == {"ab", "abcd"}
    assert Evict(0, 1, "ab") in run.enabled()
    assert Evict(0, 0, "ab") not in run.enabled()
    run.do(ExpireLease("a"))
    assert Evict(0, 0, "ab") in run.enabled()
    assert run.observe().requests[0].found == 3


def test_a_lease_ends_with_its_request_and_with_its_load(start) -> None:
    run = start(SHARED).do(Submit("a"), ForeignPut("a"), LookUp("a")).one_pass(Admit("a"))
    assert run.request().leased
    run.device().run_loads()
    assert not run.request().leased
    aborted = start(SHARED).do(Submit("a"), ForeignPut("a"), LookUp("a"), Abort("a"))
    assert not aborted.request().leased
    assert aborted.observe().requests[0].found is None


@pytest.mark.parametrize(
    "groups",
    [
        (full_attention(2), mamba(2)),
        (full_attention(2), mamba(4)),
        (full_attention(4, eagle=True), mamba(4)),
        (full_attention(4, eagle=True), full_attention(2), mamba(2)),
        (full_attention(2), sliding_window(1, 3, eagle=True), mamba(2)),
    ],
)
@pytest.mark.parametrize("length", range(3, 12))
def test_s12_every_rank_has_what_a_load_reads_when_the_lookup_answers(
    start, groups, length
) -> None:
    spec = RequestSpec("a", "abcdefghijkl"[:length])
    scope = attrs.evolve(SHARED, groups=groups, requests=(spec,), num_blocks=64)
    run = start(scope).do(Submit("a"), ForeignPut("a"), LookUp("a"))
    answer = run.request().answer
    read = {
        (group, spec.tokens[:keyed])
        for group, _, keyed in store_lookup.keys_read(
            scope, spec, 0, answer.length, answer.last_keys
        )
    }
    assert read <= run.stored(0) & run.stored(1)
    assert answer.length == 0 or any(group == len(groups) - 1 for group, _ in read)


def test_what_eagle_drops_is_loaded_by_the_key_beyond_the_hit(start) -> None:
    scope = attrs.evolve(
        SHARED,
        groups=(full_attention(4, eagle=True), mamba(4)),
        requests=(RequestSpec("a", "abcdefg"),),
    )
    run = start(scope).do(Submit("a"), ForeignPut("a"), LookUp("a"))
    assert run.request().answer.length == 6  # floor(7) - 1
    assert run.request().answer.last_keys == (7, 6)


def test_without_a_store_among_the_children_nothing_is_saved(start) -> None:
    run = computed(start, attrs.evolve(PAIR, children=()))
    assert run.state.pins == ()
    assert connector.store_child(run.scope) is None
    assert run.state.ranks[0].queue == ()
