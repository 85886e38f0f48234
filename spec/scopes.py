"""Named scopes: bounded instances that are explored completely.

Each is as small as it can be while still doing what its name says. Two Mamba or attention
blocks of two tokens with a hash unit of one are enough for a tail inside a block; sizes that
differ (2 and 4) make the LCM differ from both.

Left out on purpose: prompts of three and more blocks with two ranks, failures and preemption at
once. Each job multiplies the interleavings of queues, outboxes and reports; two requests with
one job each, or one request with two, already show every order that we know to matter.
"""

from __future__ import annotations

from cowtail.models.actions import (
    ACTIONS,
    Abort,
    Action,
    Evict,
    ExpireLease,
    FinishSend,
    ForeignPut,
    LookUp,
    Preempt,
    Report,
    ReportLoad,
    Reset,
    RunJob,
    RunLoad,
    SchedulePass,
    UpdateConnectorOutput,
)
from cowtail.models.scope import (
    ChildKind,
    Lookup,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
)
from cowtail.spec.names import unknown

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

SCOPES: dict[str, Scope] = {
    scope.name: scope
    for scope in (
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
    )
}
"""Every named scope, quick ones first."""


def scope_named(name: str) -> Scope:
    """Return a named scope. Raises ValueError with the nearest known name."""
    if name in SCOPES:
        return SCOPES[name]
    raise ValueError(unknown(name, "scope", SCOPES))


_UNDER_PRESSURE = ("preempt_under_pressure",)
"""Scopes whose pool is so small that requests are preempted for want of blocks."""


def required_actions(scope: Scope) -> tuple[str, ...]:
    """Return the names of the actions that exploring a named scope must take; none for others."""
    if SCOPES.get(scope.name) != scope:
        return ()
    possible = _possible_actions(scope)
    return tuple(action.name for action in ACTIONS if possible.get(action, True))


def _possible_actions(scope: Scope) -> dict[type[Action], bool]:
    """Return whether a scope's constants allow for an action, where that depends on them."""
    has_store = scope.role is not Role.NONE and any(
        child.kind is ChildKind.STORE for child in scope.children
    )
    saves = has_store and scope.role is not Role.CONSUMER
    sends = scope.role is not Role.NONE and any(child.retains for child in scope.children)
    return {
        SchedulePass: False,
        Abort: scope.may_abort != (),
        Preempt: bool(scope.max_preemptions) or scope.name in _UNDER_PRESSURE,
        RunJob: saves,
        Report: saves,
        UpdateConnectorOutput: saves or sends or scope.loads,
        LookUp: scope.loads and has_store and scope.lookup is Lookup.ASYNC,
        ExpireLease: bool(scope.max_expired_leases),
        RunLoad: scope.loads,
        ReportLoad: scope.loads,
        FinishSend: sends,
        ForeignPut: bool(scope.foreign),
        Evict: bool(scope.max_evictions),
        Reset: bool(scope.max_resets),
    }
