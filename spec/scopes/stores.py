"""Scopes of the store and of connectors that save: pressure, eviction, resets, peers."""

from __future__ import annotations

from cowtail.models.actions import JobOutcome
from cowtail.models.scope import (
    BASE,
    STORE,
    Lookup,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    peer,
)

STORE_PRESSURE = Scope(
    name="store_pressure",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=9,
    requests=(RequestSpec("a", "abc"), RequestSpec("b", "xy")),
    role=Role.PRODUCER,
    num_ranks=1,
    max_failed_jobs=1,
    put_failures=(JobOutcome.NO_SPACE, JobOutcome.PARTIAL, JobOutcome.CHECK_FAILED),
    may_abort=(),
)
"""The store is full, fails in part, or cannot be asked: jobs are skipped until it has space."""

EVICTED_PREFIX = Scope(
    name="evicted_prefix",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=10,
    requests=(RequestSpec("a", "abcdefg"),),
    role=Role.PRODUCER,
    num_ranks=1,
    token_budget=4,
    max_evictions=1,
    may_abort=(),
)
"""The store forgets a block in the middle of a prefix that is still growing."""

RESETS = Scope(
    name="resets",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abc"),),
    role=Role.BOTH,
    num_ranks=1,
    lookup=Lookup.ASYNC,
    foreign=("a",),
    max_resets=1,
    may_abort=(),
)
"""Cache and store are reset at any moment: with jobs and steps in flight, answers, leases."""

TWO_PEERS_RETAIN = Scope(
    name="two_peers_retain",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "ab"),),
    role=Role.PRODUCER,
    children=(peer(retains=True), STORE, peer(retains=True)),
)
"""Two children save a finished request asynchronously beside the store: held until both have."""

BASE_CONNECTOR = Scope(
    name="base_connector",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "ab", max_tokens=2),),
    role=Role.PRODUCER,
    children=(BASE,),
)
"""A connector that overrides nothing: no tail is taken, nothing is saved, nothing leaks."""

TWO_HELD = Scope(
    name="two_held",
    groups=(full_attention(1), mamba(1)),
    hash_unit=1,
    num_blocks=9,
    requests=(RequestSpec("a", "a", max_tokens=2), RequestSpec("b", "b")),
    role=Role.PRODUCER,
    children=(peer(retains=True),),
    may_abort=(),
)
"""Two finished requests are held at once, and sent in any order."""

SCOPES: tuple[Scope, ...] = (
    STORE_PRESSURE,
    EVICTED_PREFIX,
    RESETS,
    TWO_PEERS_RETAIN,
    TWO_HELD,
    BASE_CONNECTOR,
)
"""In the order of the docs."""
