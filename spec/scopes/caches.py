"""Scopes of the cache: windows, EAGLE, several groups, drafts, junctions, exports, policies."""

from __future__ import annotations

from cowtail.models.scope import (
    Policy,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    sliding_window,
)

WINDOW = Scope(
    name="window",
    groups=(full_attention(2), sliding_window(2, 3)),
    hash_unit=2,
    num_blocks=13,
    requests=(RequestSpec("a", "abcdefg", max_tokens=2), RequestSpec("b", "abcdx")),
    role=Role.PRODUCER,
    num_ranks=1,
    token_budget=5,
    may_abort=(),
)
"""A window leaves blocks behind; a hit needs what is inside it, and nothing before."""

WINDOW_IN_UNITS = Scope(
    name="window_in_units",
    groups=(full_attention(2), sliding_window(1, 2), mamba(2)),
    hash_unit=1,
    num_blocks=16,
    requests=(RequestSpec("a", "abcd"), RequestSpec("b", "abcd")),
    role=Role.NONE,
    may_abort=(),
)
"""A window whose blocks are hash units, so that hits may end inside the others' blocks."""

EAGLE_WINDOW = Scope(
    name="eagle_window",
    groups=(full_attention(2), sliding_window(2, 3, eagle=True)),
    hash_unit=2,
    num_blocks=14,
    requests=(RequestSpec("a", "abcdefgh", max_tokens=2), RequestSpec("b", "abcdefgh")),
    role=Role.PRODUCER,
    num_ranks=1,
    may_abort=(),
)
"""A drafter with a window: its lookups need one block more, and drop it."""

EAGLE_PAIR = Scope(
    name="eagle_pair",
    groups=(full_attention(2, eagle=True), mamba(2)),
    hash_unit=1,
    num_blocks=10,
    requests=(RequestSpec("a", "abcd"),),
    role=Role.PRODUCER,
)
"""The state at B, attention through B plus its margin, once that is computed (R23, R25)."""

EAGLE_ORPHAN = Scope(
    name="eagle_orphan",
    groups=(full_attention(2, eagle=True), mamba(2)),
    hash_unit=1,
    num_blocks=10,
    requests=(RequestSpec("a", "abc"),),
    role=Role.PRODUCER,
)
"""A boundary between blocks: no companion before it is computed, so an abort leaves an orphan."""

EAGLE_COARSE = Scope(
    name="eagle_coarse",
    groups=(full_attention(2, eagle=True), sliding_window(2, 3), mamba(2)),
    hash_unit=1,
    num_blocks=16,
    requests=(RequestSpec("a", "abcdefg"),),
    role=Role.PRODUCER,
    num_ranks=1,
)
"""A window of whole blocks forbids hits inside them: EAGLE's margin is a block, not a unit."""

MANY_GROUPS = Scope(
    name="many_groups",
    groups=(full_attention(1), full_attention(2), mamba(2), mamba(4)),
    hash_unit=1,
    num_blocks=24,
    requests=(RequestSpec("a", "abcdef"),),
    role=Role.PRODUCER,
    num_ranks=1,
)
"""Two attention and two recurrent groups, all of different sizes: the LCM is one group's only."""

DRAFTS = Scope(
    name="drafts",
    groups=(full_attention(2), mamba(4)),
    hash_unit=1,
    num_blocks=12,
    requests=(RequestSpec("a", "ab", max_tokens=6, accepts="201"),),
    role=Role.BOTH,
    num_ranks=1,
    speculative_tokens=2,
    max_preemptions=1,
)
"""Drafts are accepted, in part or not at all; scratch blocks are relocated."""

SCRATCH_BLOCKS = Scope(
    name="scratch_blocks",
    groups=(full_attention(2), mamba(2)),
    hash_unit=2,
    num_blocks=14,
    requests=(RequestSpec("a", "abcdefghi"),),
    role=Role.PRODUCER,
    num_ranks=1,
    token_budget=4,
    speculative_tokens=1,
)
"""A long chunk passes the scratch blocks of the one before it: they move to the end."""

JUNCTION = Scope(
    name="junction",
    groups=(full_attention(2), mamba(4)),
    hash_unit=1,
    num_blocks=14,
    requests=(RequestSpec("a", "abcde"), RequestSpec("b", "abxyz")),
    role=Role.PRODUCER,
    num_ranks=1,
    retention_interval=0,
    shared_prefix_checkpoints=True,
    may_abort=(),
)
"""A sibling's attention hit is longer than its state's: it stops there and keeps the state."""

JUNCTION_IN_BLOCKS = Scope(
    name="junction_in_blocks",
    groups=(full_attention(2), mamba(2)),
    hash_unit=2,
    num_blocks=24,
    requests=(
        RequestSpec("a", "abcdefg"),
        RequestSpec("b", "abcdxyz"),
        RequestSpec("c", "abcdpq"),
    ),
    role=Role.NONE,
    retention_interval=0,
    may_abort=(),
)
"""The same with whole blocks, and without checkpoints inside them."""

RETENTION = Scope(
    name="retention",
    groups=(full_attention(2), sliding_window(2, 4), mamba(2)),
    hash_unit=2,
    num_blocks=20,
    requests=(RequestSpec("a", "abcdefghi"), RequestSpec("b", "abcdefghi")),
    role=Role.NONE,
    retention_interval=4,
    may_abort=(),
)
"""One boundary state an interval is kept, and the window blocks before it."""

INTERNAL_CHECKPOINT = Scope(
    name="internal_checkpoint",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=12,
    requests=(RequestSpec("a", "abcdef", max_tokens=3),),
    role=Role.PRODUCER,
    num_ranks=1,
    internal_checkpoints=True,
    max_preemptions=1,
    may_abort=(),
)
"""The device exports the state at the replay boundary from within one long chunk."""

FIRST_COME = Scope(
    name="first_come",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abc", max_tokens=2), RequestSpec("b", "xyz", max_tokens=2)),
    role=Role.NONE,
    policy=Policy.FCFS,
    token_budget=3,
    may_abort=(),
)
"""First come, first served: the last admitted goes when blocks run out; passes of three tokens."""

PRIORITY = Scope(
    name="priority",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(
        RequestSpec("a", "abc", max_tokens=2, priority=1),
        RequestSpec("b", "xyz", max_tokens=2),
    ),
    role=Role.NONE,
    policy=Policy.PRIORITY,
    may_abort=(),
)
"""The least urgent goes, even if this very pass has scheduled it: its chunk is withdrawn."""

WITHDRAWN_OFFERS = Scope(
    name="withdrawn_offers",
    groups=(full_attention(1), mamba(1)),
    hash_unit=1,
    num_blocks=8,
    requests=(
        RequestSpec("a", "abc", priority=1),
        RequestSpec("b", "x", max_tokens=2),
    ),
    role=Role.PRODUCER,
    num_ranks=1,
    policy=Policy.PRIORITY,
    may_abort=(),
)
"""A withdrawn chunk had states to offer: nothing of them reaches the store."""

EAGLE_SIBLINGS = Scope(
    name="eagle_siblings",
    groups=(full_attention(2, eagle=True), full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=20,
    requests=(RequestSpec("a", "abcd"), RequestSpec("b", "abcde")),
    role=Role.NONE,
    may_abort=(),
)
"""One of two equal groups drafts: both are looked up, and drop, as one."""

SCOPES: tuple[Scope, ...] = (
    WINDOW,
    WINDOW_IN_UNITS,
    EAGLE_WINDOW,
    EAGLE_PAIR,
    EAGLE_ORPHAN,
    EAGLE_COARSE,
    EAGLE_SIBLINGS,
    MANY_GROUPS,
    DRAFTS,
    SCRATCH_BLOCKS,
    JUNCTION,
    JUNCTION_IN_BLOCKS,
    RETENTION,
    INTERNAL_CHECKPOINT,
    FIRST_COME,
    PRIORITY,
    WITHDRAWN_OFFERS,
)
"""In the order of the docs."""
