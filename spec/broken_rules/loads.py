"""Mistakes about lookups in the store, loads, leases, and requests that are held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from cowtail.models import block_pool, deferred_frees, loads, peers, requests, store_lookup
from cowtail.models.actions import LoadOutcome
from cowtail.models.block_pool import Pool
from cowtail.models.observations import Effects, Key
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import (
    DeviceStep,
    HeldRequest,
    PendingLoad,
    RankWorker,
    State,
    with_request,
)
from cowtail.models.transition import Transition
from cowtail.spec.broken_rules.rule import BrokenRule, broken

_ship_loads = loads.ship_loads
_fill = loads._fill
_keys_read = store_lookup.keys_read
_finish = requests.finish
_run_load = loads.run_load
_look_up = store_lookup.look_up


def _nobody_is_held(
    scope: Scope, state: State, index: int, was_loading: bool
) -> HeldRequest | None:
    return None


def _frees_at_once(
    scope: Scope, state: State, batches: Iterable[Sequence[int]], steps: int
) -> State:
    pool = state.pool
    for batch in batches:
        pool = block_pool.free(pool, batch)
    return attrs.evolve(state, pool=pool)


def _every_child_loads(state: State, begun: tuple[int, ...]) -> State:
    return _ship_loads(state, begun * 2)


def _failure_is_not_noticed(
    scope: Scope, state: State, rank: int, load: PendingLoad
) -> tuple[State, bool]:
    return _fill(scope, state, rank, load)[0], True


def _last_block_is_masked(
    scope: Scope, spec: RequestSpec, start: int, end: int, last_keys: tuple[int, ...]
) -> list[tuple[int, int, int]]:
    last = (end - 1) // scope.groups[0].block_size
    return [
        read for read in _keys_read(scope, spec, start, end, last_keys) if read[:2] != (0, last)
    ]


def _nothing_is_leased(scope: Scope, state: State) -> frozenset[tuple[int, str]]:
    return frozenset()


def _finish_keeps_the_lease(
    scope: Scope, state: State, index: int, *, hold: bool = True
) -> Transition:
    leased = state.requests[index].leased
    done = _finish(scope, state, index, hold=hold)
    request = attrs.evolve(done.state.requests[index], leased=leased)
    return attrs.evolve(done, state=with_request(done.state, index, request))


def _children_are_not_told(scope: Scope, state: State, step: DeviceStep) -> State:
    return state


def _one_child_is_enough(worker: RankWorker, index: int) -> bool:
    return False


def _one_sender_is_enough(scope: Scope, state: State) -> tuple[State, tuple[str, ...]]:
    inbox = state.send_inbox
    state = attrs.evolve(state, send_inbox=())
    for index, _ in inbox:
        if peers.held_request(state, index) is not None:
            state = peers.release(scope, state, index)
    return state, ()


def _one_rank_is_enough(
    state: State, index: int, rank: int, went_well: bool
) -> tuple[State, PendingLoad | None]:
    load = next((each for each in state.loads if each.request == index), None)
    if load is None:
        return state, None
    others = tuple(each for each in state.loads if each.request != index)
    return attrs.evolve(state, loads=others), attrs.evolve(load, failed=not went_well)


def _some_rank_has_it(scope: Scope, state: State) -> frozenset[Key]:
    return frozenset(Counter(Key(entry.group, entry.prefix) for entry in state.store))


def _failed_load_is_tried_again(
    scope: Scope, state: State, rank: int, outcome: LoadOutcome
) -> Transition:
    if outcome is LoadOutcome.FAILED:
        return Transition(state, Effects(), ("load failed on a rank",))
    return _run_load(scope, state, rank, outcome)


def _failed_lookup_is_asked_again(
    scope: Scope, state: State, index: int, failed: bool
) -> Transition:
    if failed:
        return Transition(state, Effects(), ("lookup failed",))
    return _look_up(scope, state, index, failed)


def _nothing_is_on_its_way_back(state: State) -> Pool:
    return state.pool


RULES: tuple[BrokenRule, ...] = (
    broken(
        "aborted_load_is_freed",
        "K29",
        "An abort during a load frees the blocks; the load writes into them later.",
        "consumer_load",
        "S16",
        (requests, "_hold", _nobody_is_held),
    ),
    broken(
        "frees_are_not_deferred",
        "K40",
        "Blocks are freed at once, though a step in flight still writes them; a load gets them.",
        "deferred_frees",
        "S16",
        (deferred_frees, "give_back", _frees_at_once),
    ),
    broken(
        "two_children_load",
        "K42",
        "Besides the child that was chosen, another one loads and reports.",
        "consumer_load",
        "S17",
        (loads, "ship_loads", _every_child_loads),
    ),
    broken(
        "load_failure_not_noticed",
        "K38",
        "A rank that found a key gone reports its load as done.",
        "leased_lookup",
        "S18",
        (loads, "_fill", _failure_is_not_noticed),
    ),
    broken(
        "loader_drops_the_last_block",
        "K16",
        "The loader works out its own mask and leaves out the last attention block.",
        "consumer_load",
        "S18",
        (store_lookup, "keys_read", _last_block_is_masked),
    ),
    broken(
        "leases_do_not_protect",
        "K34",
        "What a lookup found is evicted before it is loaded.",
        "leased_lookup",
        "S19",
        (store_lookup, "leased_keys", _nothing_is_leased),
    ),
    broken(
        "lease_outlives_its_request",
        "K36",
        "An abort before the admission never releases the lease.",
        "leased_lookup",
        "S19",
        (requests, "finish", _finish_keeps_the_lease),
    ),
    broken(
        "send_never_begun",
        "K31",
        "The children are not told of a finished request, which is held for them for ever.",
        "two_peers_retain",
        "S20",
        (peers, "queue_sends", _children_are_not_told),
    ),
    broken(
        "first_child_releases",
        "K43",
        "Two children save a finished request; the first one's completion frees its blocks.",
        "two_peers_retain",
        "S20",
        (peers, "_still_sends", _one_child_is_enough),
    ),
    broken(
        "first_rank_releases",
        "K33",
        "The first rank that has sent a finished request frees its blocks.",
        "two_peers_retain",
        "T5",
        (peers, "consume_sends", _one_sender_is_enough),
    ),
    broken(
        "store_hit_of_one_rank",
        "K35",
        "A key counts as stored once any rank has stored it.",
        "leased_lookup",
        "T4",
        (store_lookup, "keys_on_every_rank", _some_rank_has_it),
    ),
    broken(
        "loaded_by_the_first_rank",
        "K33",
        "The first rank's report of a load is taken for all of them.",
        "consumer_load",
        "T6",
        (loads, "strike_off", _one_rank_is_enough),
    ),
    broken(
        "failed_load_retried_for_ever",
        "",
        "A load that fails stays at the head of its queue until it succeeds.",
        "window_load",
        "L3",
        (loads, "run_load", _failed_load_is_tried_again),
    ),
    broken(
        "failed_lookup_asked_again",
        "",
        "A lookup that fails is asked again, as often as it fails.",
        "leased_lookup",
        "L4",
        (store_lookup, "look_up", _failed_lookup_is_asked_again),
    ),
    broken(
        "preempts_for_blocks_on_their_way",
        "K41",
        "Requests are preempted for want of blocks that are freed, and only deferred.",
        "deferred_frees",
        "T7",
        (deferred_frees, "with_all_returned", _nothing_is_on_its_way_back),
    ),
)
"""Every broken rule of this theme."""
