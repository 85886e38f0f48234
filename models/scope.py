"""A scope: the constants of one bounded instance of the system.

A scope says how big the world is (blocks, groups, requests, ranks) and what its
environment may do (abort, preempt, fail, repeat a report). The rules never look
beyond it, so what is true is kept apart from how far we look.

>>> scope = Scope(name="tiny", groups=(full_attention(2), mamba(2)), hash_unit=1,
...               num_blocks=8, requests=(RequestSpec("a", "abcd"),))
>>> scope.slots_per_block, scope.requests[0].tokens
(2, 'abcdz')
"""

from __future__ import annotations

import enum
import math
from functools import lru_cache
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import attrs

from cowtail.models.actions import JobOutcome
from cowtail.models.behaviours import PAGE, Behaviours


class GroupKind(enum.StrEnum):
    """The kinds of KV cache group: KV per token (all, or a window), or one state a block."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    MAMBA = "mamba"


class Role(enum.StrEnum):
    """The connector's role; ``NONE`` is an engine without a connector (R17)."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    BOTH = "both"
    NONE = "none"


class Policy(enum.StrEnum):
    """Who is preempted when blocks run out. ``ANY`` leaves the choice to the environment."""

    ANY = "any"
    FCFS = "fcfs"
    PRIORITY = "priority"


class Lookup(enum.StrEnum):
    """How the store is looked up at admission: not at all, at once, or with a later answer."""

    OFF = "off"
    SYNC = "sync"
    ASYNC = "async"


class LoadPolicy(enum.StrEnum):
    """What becomes of a request whose load failed: it computes everything, or it ends."""

    RECOMPUTE = "recompute"
    FAIL = "fail"


class ChildKind(enum.StrEnum):
    """A connector: the store, another engine's memory, or the base class that does nothing."""

    STORE = "store"
    PEER = "peer"
    BASE = "base"


@attrs.frozen
class Child:
    """One connector of an engine; several of them form a multi-connector.

    ``serves`` (peers only): it answers lookups and loads. ``retains`` (peers only): it saves
    a finished request asynchronously, and its blocks stay until every rank has sent them.
    """

    kind: ChildKind
    serves: bool = False
    retains: bool = False


STORE = Child(ChildKind.STORE)
"""The external block store, as Mooncake's connector drives it."""

BASE = Child(ChildKind.BASE)
"""The connector base class: every hook is a no-op, no handoff is accepted (R5)."""


def peer(*, serves: bool = False, retains: bool = False) -> Child:
    """Return a connector to another engine's memory."""
    return Child(ChildKind.PEER, serves, retains)


@attrs.frozen
class Group:
    """One KV cache group.

    ``block_size`` and ``window`` are in tokens; ``window`` counts the token itself and is 0 but
    for sliding windows. ``eagle``: the group holds layers of an EAGLE or MTP drafter, whose
    lookups drop the last unit that they matched.
    """

    kind: GroupKind
    block_size: int
    window: int = 0
    eagle: bool = False

    @property
    def is_mamba(self) -> bool:
        """Whether a block holds one recurrent state, valid at its exact token."""
        return self.kind is GroupKind.MAMBA


def full_attention(block_size: int, *, eagle: bool = False) -> Group:
    """Return a full-attention group with ``block_size`` tokens a block."""
    return Group(GroupKind.FULL_ATTENTION, block_size, eagle=eagle)


def sliding_window(block_size: int, window: int, *, eagle: bool = False) -> Group:
    """Return a group whose tokens attend to themselves and the ``window - 1`` before them."""
    return Group(GroupKind.SLIDING_WINDOW, block_size, window, eagle)


def mamba(block_size: int) -> Group:
    """Return a recurrent group in align mode with ``block_size`` tokens a block."""
    return Group(GroupKind.MAMBA, block_size)


@attrs.frozen
class RequestSpec:
    """A request that the environment may submit, once.

    Tokens are characters, so that a prefix is a readable string. ``output`` is what the
    device samples, one token after another: scripted, because *which* token comes out
    never matters to a block's life, only that two requests can agree on it. ``accepts``
    scripts the verdict on drafts: its digit at index ``outputs % len(accepts)`` is how many
    drafts are accepted by a step scheduled with that many outputs; empty accepts all.
    ``priority``: the smaller number is served first.
    """

    name: str
    prompt: str
    max_tokens: int = 1
    output: str = ""
    accepts: str = ""
    priority: int = 0

    @property
    def tokens(self) -> str:
        """The prompt and everything that will ever be sampled after it."""
        script = self.output or "z" * self.max_tokens
        return self.prompt + script[: self.max_tokens]


@attrs.frozen(cache_hash=True)
class Scope:
    """The constants of a bounded instance.

    ``num_blocks`` counts the null block (id 0). ``token_budget`` is the largest number of
    tokens that one pass schedules. ``max_steps_in_flight`` is 1 for a
    synchronous scheduler, 2 for one that runs ahead of the device. ``may_abort`` names the
    requests that may be aborted (all, if None).

    ``speculative_tokens`` are drafted in each decode step. ``retention_interval`` says which
    boundary states and window blocks get keys: all (None), the replay boundary's (0), or one
    an interval. ``shared_prefix_checkpoints``: chunks also end where a sibling's hit ended.
    ``internal_checkpoints``: the device can export the state at the replay boundary from
    within a chunk. ``defer_frees``: freed blocks wait for the steps in flight.
    ``children`` are the connectors, in order. ``foreign`` names requests whose prefix another
    engine with the same store may have put there.

    What begins with ``max_`` bounds the environment: preemptions that no lack of blocks
    forces, jobs whose puts fail (in the ways of ``put_failures``), reports that come twice,
    loads and lookups that fail, store entries that are evicted, leases that expire, resets.
    ``behaviours`` are where the engine differs from the page.

    Raises ValueError, naming the value, the rule and the fix, when the sizes do not fit.
    """

    name: str
    groups: tuple[Group, ...]
    hash_unit: int
    num_blocks: int
    requests: tuple[RequestSpec, ...]
    role: Role = Role.BOTH
    num_ranks: int = 2
    token_budget: int = 64
    max_steps_in_flight: int = 1
    may_abort: tuple[str, ...] | None = None
    max_preemptions: int = 0
    max_failed_jobs: int = 0
    max_repeated_reports: int = 0
    speculative_tokens: int = 0
    retention_interval: int | None = None
    shared_prefix_checkpoints: bool = False
    internal_checkpoints: bool = False
    policy: Policy = Policy.ANY
    defer_frees: bool = False
    lookup: Lookup = Lookup.OFF
    load_policy: LoadPolicy = LoadPolicy.RECOMPUTE
    children: tuple[Child, ...] = (STORE,)
    foreign: tuple[str, ...] = ()
    put_failures: tuple[JobOutcome, ...] = (JobOutcome.FAILED,)
    max_failed_loads: int = 0
    max_failed_lookups: int = 0
    max_evictions: int = 0
    max_expired_leases: int = 0
    max_resets: int = 0
    behaviours: Behaviours = PAGE

    def __attrs_post_init__(self) -> None:
        """Refuse constants that contradict one another (domain.md b, A22)."""
        self._require_types()
        self._require_sizes()
        self._require_requests()
        self._require_connectors()

    def _require_types(self) -> None:
        """Refuse values of another type: rules ask what a constant is, not what it equals."""
        self._require_types_of(self)
        parts: tuple[Group | RequestSpec | Child, ...]
        parts = (*self.groups, *self.requests, *self.children)
        for part in parts:
            self._require_types_of(part)

    @staticmethod
    def _require_types_of(part: Scope | Group | RequestSpec | Child) -> None:
        kind: type = type(part)
        for name, types in _types_of(kind):
            value = getattr(part, name)
            if type(value) not in types:
                raise ValueError(
                    f"{name}={value!r}: must be {_article(types[0].__name__)}, not "
                    f"{_article(type(value).__name__)}; convert it"
                )

    def _require_sizes(self) -> None:
        if not self.groups:
            raise ValueError("groups is empty: a cache has at least one group; add one")
        for name in ("hash_unit", "num_ranks", "token_budget", "max_steps_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be 1 or more; raise it")
        for group in self.groups:
            if group.block_size < 1 or group.block_size % self.hash_unit:
                raise ValueError(
                    f"block_size={group.block_size}: must be a multiple of hash_unit="
                    f"{self.hash_unit}; change one of them"
                )
            if (group.window > 1) != (group.kind is GroupKind.SLIDING_WINDOW):
                raise ValueError(
                    f"window={group.window} of a {group.kind.value} group: a window of 2 or more "
                    "tokens belongs to sliding windows and to them only; change the kind or it"
                )
            if group.eagle and group.is_mamba:
                raise ValueError("eagle of a mamba group: drafters have attention only; drop it")
        bounds = [f.name for f in attrs.fields(Scope) if f.name.startswith("max_")]
        for name in ("speculative_tokens", "retention_interval", *bounds):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must not be negative; raise it")
        if JobOutcome.OK in self.put_failures:
            raise ValueError("put_failures has ok: it lists how a put can fail; leave it out")

        smallest = min((group.block_size for group in self.groups if group.is_mamba), default=None)
        if smallest is not None and self.speculative_tokens >= smallest:
            raise ValueError(
                f"speculative_tokens={self.speculative_tokens}: must be below the mamba block size "
                f"{smallest}, or a step could pass two boundaries and keep one state; lower it"
            )

    def _require_requests(self) -> None:
        names = [request.name for request in self.requests]
        if len(set(names)) != len(names):
            raise ValueError(f"request names {names}: must differ; rename one")
        for request in self.requests:
            if not request.prompt or request.max_tokens < 1:
                raise ValueError(
                    f"request {request.name!r}: needs a prompt and max_tokens >= 1; add them"
                )
            if request.output and len(request.output) < request.max_tokens:
                raise ValueError(
                    f"request {request.name!r}: output {request.output!r} is shorter than "
                    f"max_tokens={request.max_tokens}; lengthen it"
                )
            if request.accepts.strip("0123456789"):
                raise ValueError(
                    f"request {request.name!r}: accepts {request.accepts!r} must be digits; "
                    "write one for each decode step"
                )
            if self.num_blocks - 1 < self.blocks_for(request):
                raise ValueError(
                    f"num_blocks={self.num_blocks}: request {request.name!r} alone can need "
                    f"{self.blocks_for(request)} and the null block; raise it"
                )
        for field in ("may_abort", "foreign"):
            unknown = sorted(set(getattr(self, field) or ()) - set(names))
            if unknown:
                raise ValueError(f"{field} names {unknown}: no such request; use one of {names}")

    def _require_connectors(self) -> None:
        stores = [child for child in self.children if child.kind is ChildKind.STORE]
        if len(stores) > 1:
            raise ValueError(f"children has {len(stores)} stores: one at most; drop the others")
        for child in self.children:
            if child.kind is not ChildKind.PEER and (child.serves or child.retains):
                raise ValueError(
                    f"child {child.kind.value!r} serves or retains: only a peer does; use peer()"
                )
        races = self.loads and self.max_steps_in_flight > 1 and not self.defer_frees
        if races and self.behaviours.every_role_defers:
            raise ValueError(
                f"max_steps_in_flight={self.max_steps_in_flight} with loads: a load may land in a "
                "block that a step in flight still writes; set defer_frees"
            )
        if self.foreign and not stores:
            raise ValueError("foreign needs a store that is shared; add STORE to children")

    @property
    def loads(self) -> bool:
        """Whether a request may get its prefix from a connector."""
        return (
            self.role is not Role.NONE
            and self.lookup is not Lookup.OFF
            and any(child.kind is ChildKind.STORE or child.serves for child in self.children)
        )

    def blocks_for(self, request: RequestSpec) -> int:
        """Return the most blocks that ``request`` holds at once, running alone.

        The last sampled token is never computed. An attention group needs its whole table
        and one block for a consumer's copy; a Mamba group the running state, the state that
        it is copied from, one block for a copy-on-write, its scratch blocks, and one for a
        checkpoint that is exported from within a chunk.
        """
        total = 0
        for group in self.groups:
            table = math.ceil((len(request.tokens) - 1) / group.block_size)
            if group.is_mamba:
                total += min(table, 2) + 1 + self.speculative_tokens + self.internal_checkpoints
            else:
                total += table + 1
        return total

    @property
    def slots_per_block(self) -> int:
        """Slots of one page: as many as the widest attention block has tokens, at least 1."""
        return max((g.block_size for g in self.groups if not g.is_mamba), default=1)

    def index(self, request_name: str) -> int:
        """Return the position of a request by name. Raises ValueError with the known names."""
        for position, request in enumerate(self.requests):
            if request.name == request_name:
                return position
        known = ", ".join(request.name for request in self.requests)
        raise ValueError(
            f"request {request_name!r}: not in scope {self.name!r}; use one of {known}"
        )


@lru_cache
def _types_of(kind: type) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """Return the fields of a class, each with the types that its values may have."""
    hints = get_type_hints(kind)
    alternatives = {n: get_args(h) if isinstance(h, UnionType) else (h,) for n, h in hints.items()}
    return tuple((n, tuple(get_origin(t) or t for t in types)) for n, types in alternatives.items())


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
