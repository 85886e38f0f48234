"""Scopes of one or two producers: tails, jobs, pins, preemption."""

from __future__ import annotations

from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba

LONE_PRODUCER = Scope(
    name="lone_producer",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=6,
    requests=(RequestSpec("a", "ab", max_tokens=1),),
    role=Role.PRODUCER,
    max_failed_jobs=1,
    max_repeated_reports=1,
    max_preemptions=1,
)
"""One producer, one tail: by copy-on-write, at finish by an abort, or lost to a preemption."""

COW_DECODE = Scope(
    name="cow_decode",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abcd", max_tokens=3),),
    role=Role.BOTH,
)
"""A request that decodes past its tail: the durable copy outlives what the request writes."""

SHARED_PREFIX = Scope(
    name="shared_prefix",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "ab"), RequestSpec("b", "ab")),
    role=Role.BOTH,
    num_ranks=1,
)
"""Two requests with one prompt: hits inside a block, and copies by consumer and producer."""

UNEQUAL_BLOCKS = Scope(
    name="unequal_blocks",
    groups=(full_attention(2), mamba(4)),
    hash_unit=1,
    num_blocks=9,
    requests=(RequestSpec("a", "abcdef", max_tokens=1),),
    role=Role.PRODUCER,
    max_repeated_reports=1,
)
"""Block sizes 2 and 4: normal saves go by the LCM, the tail's attention blocks fill the gap."""

CONTINUATION = Scope(
    name="continuation",
    groups=(full_attention(2), mamba(4)),
    hash_unit=1,
    num_blocks=9,
    requests=(RequestSpec("a", "a", max_tokens=2), RequestSpec("b", "azz")),
    role=Role.BOTH,
)
"""A prompt that continues another's output: the groups' hits differ, the shorter one counts."""

SAME_PASS = Scope(
    name="same_pass",
    groups=(full_attention(2), mamba(4)),
    hash_unit=1,
    num_blocks=16,
    requests=(RequestSpec("a", "ax"), RequestSpec("b", "abcd"), RequestSpec("c", "abe")),
    role=Role.NONE,
    may_abort=(),
)
"""Three requests admitted together, without a connector: who may copy from whom in one pass."""

ASYNC_TWO_STEPS = Scope(
    name="async_two_steps",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=7,
    requests=(RequestSpec("a", "ab", max_tokens=2),),
    role=Role.PRODUCER,
    num_ranks=1,
    max_steps_in_flight=2,
    max_preemptions=1,
)
"""The scheduler runs up to two steps ahead: tails dropped for tokens in flight, stale output."""

FAULTY_STORE = Scope(
    name="faulty_store",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abcde", max_tokens=1),),
    role=Role.PRODUCER,
    max_failed_jobs=2,
    may_abort=(),
)
"""Puts fail: nothing leaks, no failed tail moves the durable offset, a later job retries."""

THREE_RANKS = Scope(
    name="three_ranks",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=7,
    requests=(RequestSpec("a", "abcd", max_tokens=1),),
    role=Role.PRODUCER,
    num_ranks=3,
)
"""Three ranks report two jobs late and in any order: pins wait for the last one."""

TWO_GENERATIONS = Scope(
    name="two_generations",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=7,
    requests=(RequestSpec("a", "abc", max_tokens=1),),
    role=Role.PRODUCER,
    max_preemptions=1,
    may_abort=(),
)
"""Preempted with a job on two ranks, and admitted again before they have reported it."""

PREEMPT_UNDER_PRESSURE = Scope(
    name="preempt_under_pressure",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=7,
    requests=(RequestSpec("a", "abc", max_tokens=1), RequestSpec("b", "xy", max_tokens=2)),
    role=Role.PRODUCER,
    num_ranks=1,
    may_abort=(),
)
"""Two requests in a pool for little more than one: preemption by need, jobs in flight."""

EAGLE_BOUNDARY_OF_A_BLOCK = Scope(
    name="eagle_boundary_of_a_block",
    groups=(full_attention(2, eagle=True), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abc"),),
    role=Role.PRODUCER,
    num_ranks=1,
    retention_interval=0,
)
"""The replay boundary is a block boundary that retention alone would not keep: it is offered."""

SCOPES: tuple[Scope, ...] = (
    LONE_PRODUCER,
    COW_DECODE,
    SHARED_PREFIX,
    UNEQUAL_BLOCKS,
    CONTINUATION,
    SAME_PASS,
    ASYNC_TWO_STEPS,
    FAULTY_STORE,
    THREE_RANKS,
    TWO_GENERATIONS,
    PREEMPT_UNDER_PRESSURE,
    EAGLE_BOUNDARY_OF_A_BLOCK,
)
"""In the order of the docs."""
