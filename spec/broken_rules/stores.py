"""Mistakes about what the store holds: margins, offsets after evictions, pressure, resets."""

from __future__ import annotations

import attrs

from cowtail.models import block_pool, boundaries, chunking, connector, reset, workers
from cowtail.models.block_pool import Pool
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import DeviceStep, JobMeta, RankWorker, State
from cowtail.models.transition import Transition
from cowtail.spec.broken_rules.rule import BrokenRule, broken

_receive_metadata = workers.receive_metadata
_reset = reset.reset
_margins = boundaries.margins
_tail_end = connector.tail_end
_block_stops = chunking._block_stops


def _companion_before_it_is_computed(
    scope: Scope, group: int, boundary: int, completed: int
) -> int:
    return boundary + _margins(scope)[group]


def _no_companion(scope: Scope, group: int, boundary: int, completed: int) -> int:
    return boundary


def _nothing_where_some_block_ends(scope: Scope, group: int, boundary: int, completed: int) -> int:
    end = _tail_end(scope, group, boundary, completed)
    chunks = boundaries.chunk_block_size(scope) or 1
    return 0 if end == boundary and boundary % chunks == 0 else end


def _companion_for_everyone(scope: Scope, group: int, boundary: int, completed: int) -> int:
    return min(boundary + scope.hash_unit, completed)


def _boundary_at_the_prompt_end(scope: Scope, tokens: int, unit: int) -> int:
    return tokens // unit * unit - (unit if boundaries.drops(scope) else 0)


def _no_stop_at_the_tail(
    scope: Scope, spec: RequestSpec, known: int, start: int, block: int
) -> list[int]:
    stops = _block_stops(scope, spec, known, start, block)
    return [stop for stop in stops if stop % block == 0]


def _offset_never_falls(scope: Scope, state: State, rank: int, job: JobMeta) -> int:
    return state.ranks[rank].saved[job.request]


def _skipping_for_ever(rank: RankWorker, step: DeviceStep) -> RankWorker:
    return attrs.evolve(_receive_metadata(rank, step), skipping=rank.skipping)


def _reset_in_any_case(scope: Scope, state: State, running: bool, store: bool) -> Transition:
    done = _reset(scope, state, running, store)
    return attrs.evolve(
        done, state=attrs.evolve(done.state, pool=block_pool.forget_all_keys(done.state.pool))
    )


def _no_key_is_forgotten(pool: Pool) -> Pool:
    return pool


def _store_stays(state: State) -> State:
    return state


RULES: tuple[BrokenRule, ...] = (
    broken(
        "boundary_at_the_prompt_end",
        "K11",
        "The state is kept where a prompt of whole units ends; a lookup never asks for it there.",
        "many_groups",
        "L6",
        (boundaries, "checkpoint", _boundary_at_the_prompt_end),
    ),
    broken(
        "no_stop_at_the_tail",
        "",
        "Prefill stops at the boundaries of blocks only, and no state is kept within one.",
        "many_groups",
        "L6",
        (chunking, "_block_stops", _no_stop_at_the_tail),
    ),
    broken(
        "companion_before_it_is_computed",
        "K14",
        "Attention is stored through the boundary and its margin, computed or not.",
        "eagle_pair",
        "S7",
        (connector, "tail_end", _companion_before_it_is_computed),
    ),
    broken(
        "no_companion",
        "K13",
        "Attention is stored through the boundary only; lookups drop a unit and miss.",
        "eagle_orphan",
        "L6",
        (connector, "tail_end", _no_companion),
    ),
    broken(
        "nothing_where_some_block_ends",
        "",
        "A state is stored without attention where another group's block ends, companion pending.",
        "eagle_two_sizes",
        "S12",
        (connector, "tail_end", _nothing_where_some_block_ends),
    ),
    broken(
        "companion_for_everyone",
        "",
        "Attention is stored one unit past the boundary, though no lookup drops any.",
        "lone_producer",
        "S8",
        (connector, "tail_end", _companion_for_everyone),
    ),
    broken(
        "offset_ignores_evictions",
        "K27",
        "What was stored once counts as stored; a later save leaves a hole.",
        "evicted_prefix",
        "S11",
        (workers, "durable_offset", _offset_never_falls),
    ),
    broken(
        "skipping_for_ever",
        "",
        "A finished or preempted request's jobs are skipped after the pressure has gone.",
        "store_pressure",
        "L5",
        (workers, "receive_metadata", _skipping_for_ever),
    ),
    broken(
        "reset_under_references",
        "K45",
        "A reset drops the keys of blocks that requests and jobs still hold.",
        "resets",
        "S13",
        (reset, "reset", _reset_in_any_case),
    ),
    broken(
        "reset_forgets_nothing",
        "",
        "A reset reports success and leaves the keys where they are.",
        "resets",
        "S13",
        (block_pool, "forget_all_keys", _no_key_is_forgotten),
    ),
    broken(
        "store_survives_its_reset",
        "K44",
        "Only the local cache is reset; the store still answers.",
        "resets",
        "S14",
        (reset, "_without_store", _store_stays),
    ),
)
"""Every broken rule of this theme."""
