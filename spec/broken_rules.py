"""Deliberately broken rules of the model: what each property is there to catch.

A broken rule replaces one function of the model while a ``with`` block lasts. Exploring the
scope that it names must find the violation that it names; a property that no broken rule and
no fault of an engine violates is not yet earned.

>>> with broken_rule("pin_released_after_first_rank"):
...     from cowtail.models import connector
...     connector.strike_off.__name__
'_forget_every_rank'
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

import attrs

from cowtail.models import (
    block_pool,
    boundaries,
    connector,
    lookup,
    requests,
    scheduler,
    tables,
    workers,
)
from cowtail.models.actions import JobOutcome
from cowtail.models.block_pool import Pool
from cowtail.models.observations import Effects, Handoff, Put, StoreEntry
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import (
    BlockTable,
    CopyDue,
    DeviceStep,
    JobMeta,
    OpenPass,
    PinnedJob,
    RankWorker,
    State,
    Tracker,
)
from cowtail.models.tables import Allocation
from cowtail.models.transition import Transition
from cowtail.models.workers import Wanted
from cowtail.spec.names import unknown


@attrs.frozen
class BrokenRule:
    """A rule of the model, replaced by a mistake that a developer could make.

    ``case`` names the public report it abstracts, if any; ``violates`` the property that must
    catch it in ``scope``.
    """

    name: str
    case: str
    sentence: str
    scope: str
    violates: str
    module: ModuleType
    function: str
    replacement: Callable[..., Any]


def _forget_every_rank(pin: PinnedJob, rank: int) -> tuple[int, ...]:
    return ()


def _forget_no_rank(pin: PinnedJob, rank: int) -> tuple[int, ...]:
    return pin.ranks_owed


_emit_job = connector.emit_job
_producer_copy = tables._producer_copy
_consumer_copy = tables._consumer_copy
_find_hit = lookup.find_hit
_attention_tail_puts = connector.attention_tail_puts
_consider_save = connector.consider_save
_considered_saves = connector._considered_saves
_finalize_tails = requests.finalize_tails
_allocate_blocks = block_pool.allocate
_attach_offers = connector.attach_offers
_build_metadata = connector.build_metadata
_run_job = workers.run_job


def _emit_without_pin(
    scope: Scope, state: State, save: connector.SaveRequest
) -> tuple[State, JobMeta | None]:
    emitted, job = _emit_job(scope, state, save)
    return attrs.evolve(emitted, pool=state.pool, pins=state.pins), job


def _emit_pinning_only_the_state(
    scope: Scope, state: State, save: connector.SaveRequest
) -> tuple[State, JobMeta | None]:
    emitted, job = _emit_job(scope, state, save)
    if job is None or job.save_to:
        return emitted, job
    pin = emitted.pins[-1]
    kept = tuple(put.block for put in save.mamba_puts)
    pool = block_pool.free(emitted.pool, [b for b in pin.blocks if b not in kept])
    partial = attrs.evolve(pin, blocks=kept)
    return attrs.evolve(emitted, pool=pool, pins=(*emitted.pins[:-1], partial)), job


def _emit_counting_blocks_twice(
    scope: Scope, state: State, save: connector.SaveRequest
) -> tuple[State, JobMeta | None]:
    emitted, job = _emit_job(scope, state, save)
    if job is None:
        return emitted, job
    pin = emitted.pins[-1]
    twice = attrs.evolve(pin, blocks=pin.blocks + pin.blocks[:1])
    pool = block_pool.touch(emitted.pool, pin.blocks[:1])
    return attrs.evolve(emitted, pool=pool, pins=(*emitted.pins[:-1], twice)), job


def _emit_by_table_position(
    scope: Scope, state: State, save: connector.SaveRequest
) -> tuple[State, JobMeta | None]:
    table_of = state.requests[save.request].tables
    puts = []
    for put in save.mamba_puts:
        column = math.ceil(put.boundary / scope.groups[put.group].block_size) - 1
        puts.append(attrs.evolve(put, block=table_of[put.group].blocks[column]))
    return _emit_job(scope, state, attrs.evolve(save, mamba_puts=tuple(puts)))


def _copy_keeps_the_marker(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    result, copied = _producer_copy(result, name, group, table, due, destination)
    return result, attrs.evolve(copied, marker=table.marker)


def _copy_forgets_the_source(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _producer_copy(result, name, group, table, due, destination)
    counts = list(done.pool.ref_counts)
    counts[due.source] -= 1
    return attrs.evolve(done, pool=attrs.evolve(done.pool, ref_counts=tuple(counts))), table


def _copy_offers_in_the_first_column(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _producer_copy(result, name, group, table, due, destination)
    return (done if due.index == 0 else attrs.evolve(done, offers=result.offers)), table


def _copy_offers_twice(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _producer_copy(result, name, group, table, due, destination)
    return attrs.evolve(done, offers=done.offers + done.offers[-1:]), table


def _copy_leaves_the_keys(
    result: Allocation, name: str, group: int, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _producer_copy(result, name, group, table, due, destination)
    return attrs.evolve(done, pool=block_pool.move_keys(done.pool, destination, due.source)), table


def _copy_zeroes_its_source(
    result: Allocation, table: BlockTable, due: CopyDue, destination: int
) -> tuple[Allocation, BlockTable]:
    done, table = _consumer_copy(result, table, due, destination)
    return attrs.evolve(done, new_blocks=(*done.new_blocks, due.source)), table


def _finish_drops_the_tail(
    scope: Scope, state: State, index: int
) -> tuple[State, tuple[Handoff, ...], tuple[str, ...]]:
    state, _, events = _finalize_tails(scope, state, index)
    return state, (), events


def _finish_ignores_tokens_in_flight(
    scope: Scope, state: State, index: int
) -> tuple[State, tuple[Handoff, ...], tuple[str, ...]]:
    tails = tuple(
        Handoff(scope.requests[index].name, group, table.marker.block, table.marker.boundary)
        for group, table in enumerate(state.requests[index].tables)
        if table.marker is not None
    )
    state, _, events = _finalize_tails(scope, state, index)
    return state, tails, events


def _offers_past_the_boundary(
    scope: Scope, state: State, saves: list[connector.SaveRequest], offers: tuple[Handoff, ...]
) -> tuple[list[connector.SaveRequest], tuple[str, ...]]:
    unbounded = tuple(
        None if tracker is None else attrs.evolve(tracker, prefill_end=10**6)
        for tracker in state.trackers
    )
    return _attach_offers(scope, attrs.evolve(state, trackers=unbounded), saves, offers)


def _null_block_offered(
    scope: Scope, state: State, saves: list[connector.SaveRequest], offers: tuple[Handoff, ...]
) -> tuple[list[connector.SaveRequest], tuple[str, ...]]:
    attached, events = _attach_offers(scope, state, saves, offers)
    nulled = [
        attrs.evolve(save, mamba_puts=tuple(attrs.evolve(put, block=0) for put in save.mamba_puts))
        for save in attached
    ]
    return nulled, events


def _offers_at_the_prompt_end(
    scope: Scope, state: State, saves: list[connector.SaveRequest], offers: tuple[Handoff, ...]
) -> tuple[list[connector.SaveRequest], tuple[str, ...]]:
    moved = tuple(
        attrs.evolve(offer, boundary=len(scope.requests[scope.index(offer.request)].prompt))
        if offer.boundary % scope.groups[offer.group].block_size
        else offer
        for offer in offers
    )
    return _attach_offers(scope, state, saves, moved)


def _full_chunks_only(
    scope: Scope,
    spec: RequestSpec,
    tables: tuple[tuple[int, ...], ...],
    save: connector.SaveRequest,
) -> tuple[Put, ...]:
    puts = _attention_tail_puts(scope, spec, tables, save)
    return tuple(put for put in puts if put.boundary % scope.groups[put.group].block_size == 0)


def _save_rounds_up(
    scope: Scope, spec: RequestSpec, index: int, tracker: Tracker
) -> tuple[Tracker, connector.SaveRequest | None]:
    tracker, save = _consider_save(scope, spec, index, tracker)
    if save is not None and save.completed % boundaries.lcm_block_size(scope):
        save = attrs.evolve(save, save_to=save.save_to + boundaries.lcm_block_size(scope))
    return tracker, save


def _save_lags_one_lcm(
    scope: Scope, spec: RequestSpec, index: int, tracker: Tracker
) -> tuple[Tracker, connector.SaveRequest | None]:
    tracker, save = _consider_save(scope, spec, index, tracker)
    if save is not None:
        lagging = max(save.save_to - boundaries.lcm_block_size(scope), 0)
        save = attrs.evolve(save, save_to=lagging)
    return tracker, save


def _decode_is_saved_too(
    scope: Scope, state: State, opened: OpenPass, trackers: list[Tracker | None]
) -> list[connector.SaveRequest]:
    unbounded = [None if t is None else attrs.evolve(t, prefill_end=10**6) for t in trackers]
    saves = _considered_saves(scope, state, opened, unbounded)
    for index, tracker in enumerate(unbounded):
        old = trackers[index]
        if tracker is not None and old is not None and index not in opened.admitted:
            tracker = attrs.evolve(tracker, prefill_end=old.prefill_end)
        trackers[index] = tracker
    return saves


def _hit_blocks_are_shared(
    scope: Scope, adopted: tuple[BlockTable, ...], hit: lookup.Hit
) -> tuple[BlockTable, ...]:
    return tuple(
        attrs.evolve(table, blocks=blocks, num_cached=len(blocks))
        for table, blocks in zip(adopted, hit.blocks, strict=True)
    )


def _copies_are_never_checked(
    scope: Scope, opened: OpenPass, adopted: tuple[BlockTable, ...]
) -> bool:
    return False


def _hit_takes_the_longest(scope: Scope, pool: Pool, tokens: str) -> lookup.Hit:
    hit = _find_hit(scope, pool, tokens)
    lengths = [
        lookup._attention_hit(scope, pool, tokens, group, len(tokens) - 1)
        for group in range(len(scope.groups))
        if not scope.groups[group].is_mamba
    ]
    blocks, length = lengths[0]
    return lookup.Hit(length, (blocks, *hit.blocks[1:])) if length > hit.length else hit


def _allocation_keeps_keys(pool: Pool, count: int) -> tuple[Pool, tuple[int, ...]]:
    allocated, taken = _allocate_blocks(pool, count)
    for block in taken:
        for key in pool.keys[block]:
            allocated = block_pool.add_key(allocated, block, key)
    return allocated, taken


def _drop_keys_but_not_from_the_index(pool: Pool, block: int) -> Pool:
    keys = (*pool.keys[:block], (), *pool.keys[block + 1 :])
    return attrs.evolve(pool, keys=keys)


def _failed_put_moves_the_offset(
    scope: Scope, state: State, rank: int, job: JobMeta, wanted: list[Wanted]
) -> list[StoreEntry]:
    return []


def _freeing_skips_the_last_block(pool: Pool, freed: tuple[BlockTable, ...]) -> Pool:
    for table in freed:
        pool = block_pool.free(pool, reversed(table.blocks[:-1]))
    return pool


def _retired_jobs_are_forgotten(rank: RankWorker, step: DeviceStep) -> RankWorker:
    queue = tuple(job for job in rank.queue if job.request not in step.preempted)
    return attrs.evolve(rank, queue=queue + step.jobs)


def _metadata_without_tails(
    scope: Scope, state: State, opened: OpenPass
) -> connector.BuiltMetadata:
    built = _build_metadata(scope, attrs.evolve(state, queued_tails=()), opened)
    kept = attrs.evolve(built.state, queued_tails=state.queued_tails)
    return attrs.evolve(built, state=kept)


def _failed_job_stays_queued(
    scope: Scope, state: State, rank: int, outcome: JobOutcome
) -> Transition:
    if outcome is JobOutcome.FAILED:
        return Transition(state, Effects(), ("put failed",))
    return _run_job(scope, state, rank, outcome)


def _rule(
    name: str,
    case: str,
    sentence: str,
    scope: str,
    violates: str,
    target: tuple[ModuleType, str, Callable[..., Any]],
) -> BrokenRule:
    return BrokenRule(name, case, sentence, scope, violates, *target)


BROKEN_RULES: dict[str, BrokenRule] = {
    rule.name: rule
    for rule in (
        _rule(
            "tail_dropped_at_finish",
            "K01",
            "The finish path consumes the marker and hands nothing over.",
            "lone_producer",
            "T1",
            (requests, "finalize_tails", _finish_drops_the_tail),
        ),
        _rule(
            "tail_emitted_with_tokens_in_flight",
            "K02",
            "The finish path hands the tail over although a step is in flight.",
            "lone_producer",
            "T1",
            (requests, "finalize_tails", _finish_ignores_tokens_in_flight),
        ),
        _rule(
            "marker_survives_its_copy",
            "K03",
            "Copy-on-write hands the tail off and leaves the marker for the finish path.",
            "lone_producer",
            "S10",
            (tables, "_producer_copy", _copy_keeps_the_marker),
        ),
        _rule(
            "state_found_by_position",
            "K04",
            "The job stores whatever block now stands in the state's column.",
            "lone_producer",
            "S5",
            (connector, "emit_job", _emit_by_table_position),
        ),
        _rule(
            "handoff_at_the_prompt_end",
            "K12",
            "The state at the boundary is stored under the whole prompt.",
            "unequal_blocks",
            "S7",
            (connector, "attach_offers", _offers_at_the_prompt_end),
        ),
        _rule(
            "null_block_offloaded",
            "K04",
            "A handoff names the null block.",
            "lone_producer",
            "S1",
            (connector, "attach_offers", _null_block_offered),
        ),
        _rule(
            "full_chunks_only",
            "K05",
            "The tail's attention chunks are counted by floor division: the last one is left out.",
            "lone_producer",
            "S12",
            (connector, "attention_tail_puts", _full_chunks_only),
        ),
        _rule(
            "offset_moves_without_put",
            "K08",
            "A put that did not happen still moves the durable offset.",
            "lone_producer",
            "S11",
            (workers, "put_entries", _failed_put_moves_the_offset),
        ),
        _rule(
            "job_not_pinned",
            "K19",
            "A job is queued without a reference on its blocks.",
            "lone_producer",
            "S9",
            (connector, "emit_job", _emit_without_pin),
        ),
        _rule(
            "only_the_state_pinned",
            "K19",
            "A handoff-only job pins its state, and not the attention blocks beside it.",
            "lone_producer",
            "S9",
            (connector, "emit_job", _emit_pinning_only_the_state),
        ),
        _rule(
            "tail_lost_in_later_columns",
            "K01",
            "Copy-on-write offers a tail only where it is in the first block.",
            "unequal_blocks",
            "T3",
            (tables, "_producer_copy", _copy_offers_in_the_first_column),
        ),
        _rule(
            "save_one_lcm_late",
            "",
            "Normal saves stop one LCM short of what is computed.",
            "unequal_blocks",
            "L6",
            (connector, "consider_save", _save_lags_one_lcm),
        ),
        _rule(
            "decode_saved",
            "",
            "Normal saves go on past the end of prefill.",
            "cow_decode",
            "S8",
            (connector, "_considered_saves", _decode_is_saved_too),
        ),
        _rule(
            "retired_jobs_forgotten",
            "K21",
            "A preempted request's queued jobs vanish from the ranks and are never reported.",
            "async_two_steps",
            "S15",
            (workers, "receive_metadata", _retired_jobs_are_forgotten),
        ),
        _rule(
            "save_rounds_up",
            "K23",
            "The prefix save covers a block whose last slots were never computed.",
            "async_two_steps",
            "S8",
            (connector, "consider_save", _save_rounds_up),
        ),
        _rule(
            "tail_offered_twice",
            "K24",
            "One copy-on-write offers its block twice.",
            "lone_producer",
            "T3",
            (tables, "_producer_copy", _copy_offers_twice),
        ),
        _rule(
            "block_pinned_twice",
            "K25",
            "A job lists a block twice and takes two references for it.",
            "lone_producer",
            "S1",
            (connector, "emit_job", _emit_counting_blocks_twice),
        ),
        _rule(
            "pin_released_after_first_rank",
            "K33",
            "The first rank's report releases the job's blocks.",
            "lone_producer",
            "T2",
            (connector, "strike_off", _forget_every_rank),
        ),
        _rule(
            "pin_never_released",
            "",
            "Reports are consumed and no rank is struck off.",
            "lone_producer",
            "S15",
            (connector, "strike_off", _forget_no_rank),
        ),
        _rule(
            "offloaded_past_the_boundary",
            "",
            "A decode state beyond the end of prefill is handed off.",
            "cow_decode",
            "S8",
            (connector, "attach_offers", _offers_past_the_boundary),
        ),
        _rule(
            "reference_forgotten_by_copy",
            "",
            "The producer's copy takes no reference on its source.",
            "lone_producer",
            "S1",
            (tables, "_producer_copy", _copy_forgets_the_source),
        ),
        _rule(
            "keys_left_on_the_source",
            "",
            "After copy-on-write the cache still finds the block that is being overwritten.",
            "unequal_blocks",
            "S3",
            (tables, "_producer_copy", _copy_leaves_the_keys),
        ),
        _rule(
            "copy_source_zeroed",
            "",
            "The source of a consumer's copy is listed among the blocks to zero.",
            "shared_prefix",
            "S6",
            (tables, "_consumer_copy", _copy_zeroes_its_source),
        ),
        _rule(
            "copy_chained_in_one_step",
            "",
            "A hit is copied from a block that another copy or chunk of the same step fills.",
            "same_pass",
            "S6",
            (scheduler, "copies_what_this_pass_writes", _copies_are_never_checked),
        ),
        _rule(
            "partial_hit_shared",
            "",
            "Who hits inside a block writes into it instead of a copy.",
            "shared_prefix",
            "S5",
            (tables, "adopt_hit", _hit_blocks_are_shared),
        ),
        _rule(
            "longest_group_wins",
            "K35",
            "Where the groups' hits differ, the longer one is committed.",
            "continuation",
            "S4",
            (lookup, "find_hit", _hit_takes_the_longest),
        ),
        _rule(
            "recycled_block_keeps_its_keys",
            "",
            "An allocated block can still be hit under its old prefix.",
            "preempt_under_pressure",
            "S0",
            (block_pool, "allocate", _allocation_keeps_keys),
        ),
        _rule(
            "index_keeps_dropped_keys",
            "",
            "Keys are taken off the block and stay in the index.",
            "lone_producer",
            "S2",
            (block_pool, "drop_keys", _drop_keys_but_not_from_the_index),
        ),
        _rule(
            "tails_never_flushed",
            "K28",
            "Tails registered at finish wait for a flush that no pass performs.",
            "lone_producer",
            "L1",
            (connector, "build_metadata", _metadata_without_tails),
        ),
        _rule(
            "failed_job_retried_for_ever",
            "",
            "A job whose put fails stays at the head of its queue until it succeeds.",
            "lone_producer",
            "L2",
            (workers, "run_job", _failed_job_stays_queued),
        ),
        _rule(
            "last_block_not_freed",
            "",
            "Freeing a request forgets the last block of each table.",
            "lone_producer",
            "S1",
            (tables, "free_tables", _freeing_skips_the_last_block),
        ),
    )
}
"""Every broken rule by name."""


def broken_rule_named(name: str) -> BrokenRule:
    """Return a broken rule. Raises ValueError with the nearest known name."""
    if name in BROKEN_RULES:
        return BROKEN_RULES[name]
    raise ValueError(unknown(name, "broken rule", BROKEN_RULES))


def broken_rules_named(names: Sequence[str]) -> tuple[BrokenRule, ...]:
    """Return broken rules that can be in force together.

    Raises ValueError for an unknown name, and for two rules that replace one function.
    """
    rules = tuple(broken_rule_named(name) for name in names)
    replaced: dict[tuple[str, str], str] = {}
    for rule in rules:
        place = (rule.module.__name__, rule.function)
        other = replaced.setdefault(place, rule.name)
        if other != rule.name:
            raise ValueError(
                f"broken rules {other!r} and {rule.name!r}: both replace {rule.function}, so only "
                "one would be in force; choose one"
            )
    return rules


@contextlib.contextmanager
def broken_rule(name: str) -> Iterator[BrokenRule]:
    """Break one rule of the model for as long as the block lasts. Not safe for threads."""
    rule = broken_rule_named(name)
    with mock.patch.object(rule.module, rule.function, rule.replacement):
        yield rule
