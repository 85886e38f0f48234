"""Mistakes about partial tails: found, handed off, and stored with what a lookup needs."""

from __future__ import annotations

import math

import attrs

from cowtail.models import boundaries, connector, requests, tables
from cowtail.models.observations import Handoff, Put
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import (
    BlockTable,
    CopyDue,
    JobMeta,
    OpenPass,
    State,
)
from cowtail.models.tables import Allocation
from cowtail.spec.broken_rules.rule import BrokenRule, broken

_emit_job = connector.emit_job
_producer_copy = tables._producer_copy
_attention_tail_puts = connector.attention_tail_puts
_finalize_tails = requests.finalize_tails
_attach_offers = connector.attach_offers
_build_metadata = connector.build_metadata


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


def _takes_no_state_of_a_whole_block_at_the_boundary(
    scope: Scope, state: State, saves: list[connector.SaveRequest], offers: tuple[Handoff, ...]
) -> tuple[list[connector.SaveRequest], tuple[str, ...]]:
    def is_taken(offer: Handoff) -> bool:
        spec = scope.requests[scope.index(offer.request)]
        at_boundary = offer.boundary == boundaries.replay_boundary(scope, spec)
        return not at_boundary or offer.boundary % scope.groups[offer.group].block_size != 0

    return _attach_offers(scope, state, saves, tuple(filter(is_taken, offers)))


def _offers_are_not_drained(
    scope: Scope, state: State, opened: OpenPass
) -> connector.BuiltMetadata:
    built = _build_metadata(scope, state, opened)
    return attrs.evolve(built, state=attrs.evolve(built.state, early_offers=opened.offers))


def _tails_wait_for_another_job(
    scope: Scope, state: State, opened: OpenPass
) -> connector.BuiltMetadata:
    others = _build_metadata(scope, attrs.evolve(state, queued_tails=()), opened)
    if others.jobs or not opened.scheduled:
        return _build_metadata(scope, state, opened)
    return attrs.evolve(others, state=attrs.evolve(others.state, queued_tails=state.queued_tails))


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


RULES: tuple[BrokenRule, ...] = (
    broken(
        "boundary_of_a_block_not_offered",
        "",
        "Of what is offered at the replay boundary, only tails inside a block are taken.",
        "eagle_boundary_of_a_block",
        "L6",
        (connector, "attach_offers", _takes_no_state_of_a_whole_block_at_the_boundary),
    ),
    broken(
        "tail_dropped_at_finish",
        "K01",
        "The finish path consumes the marker and hands nothing over.",
        "lone_producer",
        "T1",
        (requests, "finalize_tails", _finish_drops_the_tail),
    ),
    broken(
        "tail_emitted_with_tokens_in_flight",
        "K02",
        "The finish path hands the tail over although a step is in flight.",
        "lone_producer",
        "T1",
        (requests, "finalize_tails", _finish_ignores_tokens_in_flight),
    ),
    broken(
        "marker_survives_its_copy",
        "K03",
        "Copy-on-write hands the tail off and leaves the marker for the finish path.",
        "lone_producer",
        "S10",
        (tables, "_producer_copy", _copy_keeps_the_marker),
    ),
    broken(
        "tail_lost_in_later_columns",
        "K01",
        "Copy-on-write offers a tail only where it is in the first block.",
        "unequal_blocks",
        "T3",
        (tables, "_producer_copy", _copy_offers_in_the_first_column),
    ),
    broken(
        "tail_offered_twice",
        "K24",
        "One copy-on-write offers its block twice.",
        "lone_producer",
        "T3",
        (tables, "_producer_copy", _copy_offers_twice),
    ),
    broken(
        "offers_not_drained",
        "",
        "A pass hands its offers over and leaves them there for the next pass.",
        "cow_decode",
        "S10",
        (connector, "build_metadata", _offers_are_not_drained),
    ),
    broken(
        "tail_waits_for_another_job",
        "",
        "A tail queued at finish leaves with a pass that has jobs or schedules nothing.",
        "continuation",
        "T9",
        (connector, "build_metadata", _tails_wait_for_another_job),
    ),
    broken(
        "state_found_by_position",
        "K04",
        "The job stores whatever block now stands in the state's column.",
        "lone_producer",
        "S5",
        (connector, "emit_job", _emit_by_table_position),
    ),
    broken(
        "handoff_at_the_prompt_end",
        "K12",
        "The state at the boundary is stored under the whole prompt.",
        "unequal_blocks",
        "S7",
        (connector, "attach_offers", _offers_at_the_prompt_end),
    ),
    broken(
        "null_block_offloaded",
        "K04",
        "A handoff names the null block.",
        "lone_producer",
        "S1",
        (connector, "attach_offers", _null_block_offered),
    ),
    broken(
        "full_chunks_only",
        "K05",
        "The tail's attention chunks are counted by floor division: the last one is left out.",
        "lone_producer",
        "S12",
        (connector, "attention_tail_puts", _full_chunks_only),
    ),
    broken(
        "offloaded_past_the_boundary",
        "",
        "A decode state beyond the end of prefill is handed off.",
        "cow_decode",
        "S8",
        (connector, "attach_offers", _offers_past_the_boundary),
    ),
)
"""Every broken rule of this theme."""
