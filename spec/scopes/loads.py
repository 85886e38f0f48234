"""Scopes of loads: from the store, at once or with a later answer, and from a peer."""

from __future__ import annotations

from cowtail.models.scope import (
    BASE,
    LoadPolicy,
    Lookup,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    peer,
    sliding_window,
)

CONSUMER_LOAD = Scope(
    name="consumer_load",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abcd", max_tokens=2),),
    role=Role.CONSUMER,
    lookup=Lookup.SYNC,
    foreign=("a",),
    max_failed_loads=1,
    max_failed_lookups=1,
)
"""A consumer loads what another engine stored: late, failing on one rank, aborted meanwhile."""

LEASED_LOOKUP = Scope(
    name="leased_lookup",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abc"),),
    role=Role.CONSUMER,
    num_ranks=2,
    lookup=Lookup.ASYNC,
    foreign=("a",),
    max_evictions=1,
    max_expired_leases=1,
    max_failed_lookups=1,
)
"""An answer that comes later, its lease, and an eviction between lookup and load."""

FAILED_LOAD_ENDS = Scope(
    name="failed_load_ends",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abc"),),
    role=Role.CONSUMER,
    lookup=Lookup.SYNC,
    load_policy=LoadPolicy.FAIL,
    foreign=("a",),
    max_failed_loads=1,
)
"""A load that fails on one rank ends its request."""

LOAD_OR_RETAIN = Scope(
    name="load_or_retain",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abc", max_tokens=2),),
    role=Role.BOTH,
    num_ranks=1,
    lookup=Lookup.SYNC,
    children=(BASE, peer(serves=True), peer(retains=True)),
)
"""One child loads, another retains: an aborted load is held, and is not sent."""

AFTER_A_LOCAL_HIT = Scope(
    name="after_a_local_hit",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=9,
    requests=(RequestSpec("a", "abcd"), RequestSpec("b", "abcde")),
    role=Role.CONSUMER,
    num_ranks=1,
    lookup=Lookup.SYNC,
    foreign=("a", "b"),
    max_failed_lookups=1,
    may_abort=(),
)
"""The pool has some of what the store has: a load begins after it, or is not worth it (R13)."""

TWO_LOADS = Scope(
    name="two_loads",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=13,
    requests=(RequestSpec("a", "abc"), RequestSpec("b", "xyz")),
    role=Role.CONSUMER,
    lookup=Lookup.SYNC,
    foreign=("a", "b"),
    may_abort=(),
)
"""Two loads at once, reported in any order, on two ranks."""

DEFERRED_FREES = Scope(
    name="deferred_frees",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "ab", max_tokens=2), RequestSpec("b", "xyz")),
    role=Role.CONSUMER,
    num_ranks=1,
    max_steps_in_flight=2,
    defer_frees=True,
    lookup=Lookup.SYNC,
    foreign=("b",),
    may_abort=("a",),
)
"""Blocks are freed while two steps are in flight, and a load wants them."""

WINDOW_LOAD = Scope(
    name="window_load",
    groups=(full_attention(2), sliding_window(2, 3)),
    hash_unit=2,
    num_blocks=12,
    requests=(RequestSpec("a", "abcdefg", max_tokens=2),),
    role=Role.CONSUMER,
    lookup=Lookup.ASYNC,
    foreign=("a",),
    max_failed_loads=1,
)
"""Whole blocks are loaded, and of a window only what the next token attends to."""

SCOPES: tuple[Scope, ...] = (
    CONSUMER_LOAD,
    LEASED_LOOKUP,
    FAILED_LOAD_ENDS,
    LOAD_OR_RETAIN,
    AFTER_A_LOCAL_HIT,
    TWO_LOADS,
    WINDOW_LOAD,
    DEFERRED_FREES,
)
"""In the order of the docs."""
