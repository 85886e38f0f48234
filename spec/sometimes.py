"""Things that the scopes must be able to do, so that "holds" never means "nothing happened"."""

from __future__ import annotations

import attrs


@attrs.frozen
class SometimesProperty:
    """An event that must happen in the named scope; ``event`` is the model's own name for it."""

    event: str
    scope: str
    source: str


SOMETIMES: tuple[SometimesProperty, ...] = (
    SometimesProperty("tail registered", "lone_producer", "domain d"),
    SometimesProperty("tail handed off at finish", "lone_producer", "R1"),
    SometimesProperty("tail handed off by copy-on-write", "lone_producer", "R9"),
    SometimesProperty("tail dropped: tokens in flight", "lone_producer", "R2"),
    SometimesProperty("tail dropped: preempted", "lone_producer", "R9"),
    SometimesProperty("pin outlives its request", "lone_producer", "R6"),
    SometimesProperty("put failed", "lone_producer", "R18"),
    SometimesProperty("repeated report ignored", "lone_producer", "counted once"),
    SometimesProperty("aborted while waiting", "lone_producer", "domain e"),
    SometimesProperty("aborted while running", "lone_producer", "domain e"),
    SometimesProperty("aborted while preempted", "lone_producer", "domain e"),
    SometimesProperty("handoff refused", "cow_decode", "R7"),
    SometimesProperty("producer copy-on-write", "cow_decode", "R9"),
    SometimesProperty("consumer copy-on-write", "shared_prefix", "domain c"),
    SometimesProperty(
        "consumer copy-on-write from a registered tail", "shared_prefix", "domain c, R9"
    ),
    SometimesProperty("everything exists already", "shared_prefix", "first write wins"),
    SometimesProperty("full state handed off", "unequal_blocks", "R30"),
    SometimesProperty("reported out of order", "unequal_blocks", "R6"),
    SometimesProperty("prefix hit", "shared_prefix", "domain c"),
    SometimesProperty("consumer copy-on-write", "same_pass", "R17"),
    SometimesProperty("preempted with a step in flight", "async_two_steps", "domain d"),
    SometimesProperty("preempted with a job in flight", "async_two_steps", "K19, K26"),
    SometimesProperty("stale output ignored", "async_two_steps", "domain d"),
    SometimesProperty("retired job skipped", "async_two_steps", "domain f"),
    SometimesProperty("prefix save failed", "faulty_store", "R19"),
    SometimesProperty("preempted with a job in flight", "two_generations", "K19, K26"),
    SometimesProperty("retired job skipped", "two_generations", "domain f"),
    SometimesProperty("resumed after preemption", "two_generations", "domain d"),
    SometimesProperty("resumed after preemption", "preempt_under_pressure", "domain d"),
    SometimesProperty("preempted with a job in flight", "preempt_under_pressure", "K19, K26"),
    SometimesProperty("preempted", "lone_producer", "domain d"),
    SometimesProperty("finished", "lone_producer", "domain e"),
    SometimesProperty("put succeeded", "lone_producer", "domain f"),
    SometimesProperty("pin released", "lone_producer", "R6"),
    SometimesProperty("tail refused by the connector", "base_connector", "R5, R7"),
    SometimesProperty("drafts scheduled", "drafts", "domain d"),
    SometimesProperty("drafts accepted", "drafts", "domain d"),
    SometimesProperty("drafts rejected", "drafts", "domain d"),
    SometimesProperty("scratch block relocated", "scratch_blocks", "domain d, A6"),
    SometimesProperty("junction registered", "junction", "domain d"),
    SometimesProperty("state exported from within a chunk", "internal_checkpoint", "domain d, R26"),
    SometimesProperty("chunk withdrawn", "priority", "domain d"),
    SometimesProperty("put failed: store is full", "store_pressure", "domain f, R18"),
    SometimesProperty("job skipped: store is full", "store_pressure", "domain f"),
    SometimesProperty("store has space again", "store_pressure", "domain L5"),
    SometimesProperty("put failed in part", "store_pressure", "R18"),
    SometimesProperty("existence check failed", "store_pressure", "K21"),
    SometimesProperty("evicted", "evicted_prefix", "K27"),
    SometimesProperty("durable offset fell", "evicted_prefix", "K27"),
    SometimesProperty("prefix cache reset", "resets", "domain S13"),
    SometimesProperty("prefix cache reset refused", "resets", "domain S13, K45"),
    SometimesProperty("store reset", "resets", "domain S14, K44"),
    SometimesProperty("held: to be sent", "two_peers_retain", "domain g, R5"),
    SometimesProperty("sent for one child of several", "two_peers_retain", "K43"),
    SometimesProperty("released after its last send", "two_peers_retain", "domain S15"),
    SometimesProperty("load begun from the store", "consumer_load", "domain f"),
    SometimesProperty("load complete", "consumer_load", "domain L3"),
    SometimesProperty("continued after a load", "consumer_load", "domain c"),
    SometimesProperty("load failed on a rank", "consumer_load", "R18"),
    SometimesProperty("load failed: recompute", "consumer_load", "R18, K38"),
    SometimesProperty("lookup failed", "consumer_load", "R18"),
    SometimesProperty("aborted while loading", "consumer_load", "K29"),
    SometimesProperty("aborted while loaded", "consumer_load", "K30"),
    SometimesProperty("held: its load is under way", "consumer_load", "K29"),
    SometimesProperty("released after its load", "consumer_load", "K29, K31"),
    SometimesProperty("found in the store", "leased_lookup", "domain f"),
    SometimesProperty("load found a key gone", "leased_lookup", "K34"),
    SometimesProperty("load failed: finished", "failed_load_ends", "R18"),
    SometimesProperty("load begun from a peer", "load_or_retain", "domain g"),
    SometimesProperty("load begun after a local hit", "after_a_local_hit", "domain c, R13"),
    SometimesProperty("load reported out of order", "two_loads", "domain f"),
)
"""Every sometimes-property, by scope."""

NEVER: dict[str, str] = {
    "tail dropped: boundary passed": (
        "every allocation past a registered tail, drafts included, copies it first, and the copy "
        "consumes the marker: R2's guard on the boundary is a second line of defence. "
        "A unit test takes the guard by itself."
    ),
}
"""Events that no scope reaches, each with the reason; a test holds the explorer to it."""
