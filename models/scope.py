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

import attrs


class GroupKind(enum.StrEnum):
    """The kinds of KV cache group: KV per token, or one recurrent state a block."""

    FULL_ATTENTION = "full_attention"
    MAMBA = "mamba"


class Role(enum.StrEnum):
    """The connector's role; ``NONE`` is an engine without a connector (R17)."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    BOTH = "both"
    NONE = "none"


@attrs.frozen
class Group:
    """One KV cache group. ``block_size`` is in tokens."""

    kind: GroupKind
    block_size: int

    @property
    def is_mamba(self) -> bool:
        """Whether a block holds one recurrent state, valid at its exact token."""
        return self.kind is GroupKind.MAMBA


def full_attention(block_size: int) -> Group:
    """Return a full-attention group with ``block_size`` tokens a block."""
    return Group(GroupKind.FULL_ATTENTION, block_size)


def mamba(block_size: int) -> Group:
    """Return a recurrent group in align mode with ``block_size`` tokens a block."""
    return Group(GroupKind.MAMBA, block_size)


@attrs.frozen
class RequestSpec:
    """A request that the environment may submit, once.

    Tokens are characters, so that a prefix is a readable string. ``output`` is what the
    device samples, one token after another: scripted, because *which* token comes out
    never matters to a block's life, only that two requests can agree on it.
    """

    name: str
    prompt: str
    max_tokens: int = 1
    output: str = ""

    @property
    def tokens(self) -> str:
        """The prompt and everything that will ever be sampled after it."""
        script = self.output or "z" * self.max_tokens
        return self.prompt + script[: self.max_tokens]


@attrs.frozen
class Scope:
    """The constants of a bounded instance.

    ``num_blocks`` counts the null block (id 0). ``token_budget`` is the largest number of
    tokens that one request is scheduled for in one pass. ``max_steps_in_flight`` is 1 for a
    synchronous scheduler, 2 for one that runs ahead of the device. ``may_abort`` names the
    requests that may be aborted (all, if None). The last three bound the environment:
    preemptions that no lack of blocks forces, puts that fail, reports that come twice.

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

    def __attrs_post_init__(self) -> None:
        """Refuse sizes for which the cache could not be laid out (domain.md b, A22)."""
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
            if self.num_blocks - 1 < self.blocks_for(request):
                raise ValueError(
                    f"num_blocks={self.num_blocks}: request {request.name!r} alone can need "
                    f"{self.blocks_for(request)} and the null block; raise it"
                )
        unknown = sorted(set(self.may_abort or ()) - set(names))
        if unknown:
            raise ValueError(f"may_abort names {unknown}: no such request; use one of {names}")

    def blocks_for(self, request: RequestSpec) -> int:
        """Return the most blocks that ``request`` holds at once, running alone.

        The last sampled token is never computed. A full-attention group needs its whole table
        and one block for a consumer's copy; a Mamba group the running state, the state that
        it is copied from, and one block for a copy-on-write.
        """
        total = 0
        for group in self.groups:
            table = math.ceil((len(request.tokens) - 1) / group.block_size)
            total += min(table, 2) + 1 if group.is_mamba else table + 1
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
