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
    groups=(full_attention(2), sliding_window(2, 2), mamba(2)),
    hash_unit=2,
    num_blocks=24,
    requests=(RequestSpec("a", "abcdefghijk"), RequestSpec("b", "abcdefghijk")),
    role=Role.NONE,
    retention_interval=4,
    token_budget=8,
    may_abort=(),
)
"""One boundary state an interval is kept, and the window blocks before it."""

EAGLE_RETENTION = Scope(
    name="eagle_retention",
    groups=(full_attention(2, eagle=True), sliding_window(1, 2), mamba(2)),
    hash_unit=1,
    num_blocks=16,
    requests=(RequestSpec("a", "abc"), RequestSpec("b", "abc")),
    role=Role.NONE,
    retention_interval=0,
    may_abort=(),
)
"""Only what a resend reaches is kept, and that is a unit earlier where a drafter drops one."""

COARSE_WINDOW = Scope(
    name="coarse_window",
    groups=(full_attention(4), sliding_window(2, 3), mamba(2)),
    hash_unit=2,
    num_blocks=20,
    requests=(RequestSpec("a", "abcdefg"), RequestSpec("b", "abcdefxy")),
    role=Role.NONE,
    token_budget=6,
    may_abort=(),
)
"""Hits are multiples of four tokens, and a window's blocks and states end between them."""

WINDOWS_ONLY = Scope(
    name="windows_only",
    groups=(sliding_window(2, 7, eagle=True), sliding_window(4, 5)),
    hash_unit=2,
    num_blocks=20,
    requests=(RequestSpec("a", "abcdefghi", max_tokens=2), RequestSpec("b", "abcdefghi")),
    role=Role.NONE,
    may_abort=(),
)
"""Two windows of different blocks: what one supplies is cut to what both can end on."""

WINDOW_TAIL = Scope(
    name="window_tail",
    groups=(full_attention(2), sliding_window(1, 2), mamba(4)),
    hash_unit=1,
    num_blocks=16,
    requests=(RequestSpec("a", "abcd"),),
    role=Role.PRODUCER,
    num_ranks=1,
)
"""A tail is stored with what its window has not left behind yet."""

SAVES_APART = Scope(
    name="saves_apart",
    groups=(full_attention(4), mamba(2)),
    hash_unit=2,
    num_blocks=12,
    requests=(RequestSpec("a", "abcde"), RequestSpec("b", "xyz")),
    role=Role.PRODUCER,
    num_ranks=1,
    may_abort=(),
)
"""In one pass, one request saves a whole LCM, and another has only a state to hand over."""

DRAFT_ENDS_A_BLOCK = Scope(
    name="draft_ends_a_block",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=10,
    requests=(RequestSpec("a", "ab", max_tokens=5, accepts="1101"),),
    role=Role.NONE,
    speculative_tokens=1,
)
"""An accepted draft ends a block: its state belongs into the running column."""

EXPORT_AFTER_RESET = Scope(
    name="export_after_reset",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=12,
    requests=(RequestSpec("a", "abcdef", max_tokens=4),),
    role=Role.NONE,
    retention_interval=0,
    internal_checkpoints=True,
    max_resets=1,
    may_abort=(),
)
"""Computed again after a reset, with outputs: a state is exported that nothing looks up."""

EXPORT_OF_A_BLOCK = Scope(
    name="export_of_a_block",
    groups=(full_attention(2), mamba(2)),
    hash_unit=2,
    num_blocks=12,
    requests=(RequestSpec("a", "abcdefg", max_tokens=2), RequestSpec("b", "abcdefg")),
    role=Role.PRODUCER,
    num_ranks=1,
    internal_checkpoints=True,
    may_abort=(),
)
"""The exported state is that at the end of a block, keyed and offered as such."""

SAME_PASS_EXPORT = Scope(
    name="same_pass_export",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=24,
    requests=(
        RequestSpec("a", "ab"),
        RequestSpec("b", "wxyz", max_tokens=3),
        RequestSpec("c", "ab"),
    ),
    role=Role.NONE,
    internal_checkpoints=True,
    speculative_tokens=1,
    may_abort=(),
)
"""A hit is copied in the pass of another chunk that exports a state, or ends a block by drafts."""


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
    max_failed_jobs=1,
    may_abort=(),
)
"""The device exports the state at the replay boundary from within one long chunk."""

FIRST_COME = Scope(
    name="first_come",
    groups=(full_attention(2), mamba(4)),
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
    num_blocks=10,
    requests=(
        RequestSpec("a", "abc", max_tokens=2, priority=1),
        RequestSpec("b", "xyz", max_tokens=2),
        RequestSpec("c", "p", max_tokens=2),
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

EAGLE_TWO_SIZES = Scope(
    name="eagle_two_sizes",
    groups=(full_attention(2, eagle=True), mamba(2), mamba(4)),
    hash_unit=1,
    num_blocks=20,
    requests=(RequestSpec("a", "abcdefg"),),
    role=Role.PRODUCER,
    num_ranks=1,
)
"""The boundary ends a block of one group of states and is inside a block of another (R26)."""

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
    EAGLE_TWO_SIZES,
    EAGLE_SIBLINGS,
    MANY_GROUPS,
    DRAFTS,
    SCRATCH_BLOCKS,
    JUNCTION,
    JUNCTION_IN_BLOCKS,
    RETENTION,
    EAGLE_RETENTION,
    COARSE_WINDOW,
    WINDOWS_ONLY,
    WINDOW_TAIL,
    SAVES_APART,
    DRAFT_ENDS_A_BLOCK,
    EXPORT_AFTER_RESET,
    EXPORT_OF_A_BLOCK,
    SAME_PASS_EXPORT,
    INTERNAL_CHECKPOINT,
    FIRST_COME,
    PRIORITY,
    WITHDRAWN_OFFERS,
)
"""In the order of the docs."""
