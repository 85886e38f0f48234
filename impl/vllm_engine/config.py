"""What one run of the real engine is built from: sizes, role, ranks, requests.

The tokens of a request are the characters of its prompt, so a prefix is a readable string.

>>> config = EngineConfig(requests=(RequestSpec("a", "abcde"),))
>>> config.lcm_block_size, config.num_ranks
(16, 2)
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import attrs

from cowtail.models.actions import (
    ACTIONS,
    Action,
    Execute,
    SchedulePass,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import GroupKind, Policy, RequestSpec, Role, Scope

TRANSFER_FAILED = -800
"""Mooncake's return code for a transfer that failed."""
NO_AVAILABLE_HANDLE = -200
"""Mooncake's return code for a store that has no room: the sender backs off (pressure)."""


@attrs.frozen(repr=False)
class RunLoad(Action):
    """A rank carries out the load at the head of its receive queue.

    An action of this engine only: the model's slice leaves loads out. A load is submitted when
    its step is dispatched and is *not* ordered with the device's stream, so it may run before
    steps that were scheduled earlier have been executed.
    """

    name: ClassVar[str] = "run_load"
    rank: int
    failed: bool = False


@attrs.frozen(repr=False)
class OfPeer(Action):
    """The second engine does ``what``: a pass, its execution, or the processing of its output.

    Raises ValueError for anything else.
    """

    name: ClassVar[str] = "peer"
    what: str

    def __attrs_post_init__(self) -> None:
        """Refuse what is no pass, nor what comes of one."""
        if self.what not in _OF_PASSES:
            raise ValueError(f"what={self.what!r}: use one of {', '.join(_OF_PASSES)}")


_OF_PASSES = tuple(
    kind.name for kind in (SchedulePass, Execute, UpdateFromOutput, UpdateConnectorOutput)
)

ENGINE_ACTIONS: tuple[type[Action], ...] = (*ACTIONS, RunLoad, OfPeer)
"""Every kind of action that a list of actions for this engine may hold."""


@attrs.frozen
class EngineConfig:
    """Sizes in tokens or blocks; ``num_blocks`` counts the null block.

    ``stored`` are requests that an earlier producer ran to completion: what the store holds when
    the run begins. ``failure_code`` is what the store answers to a put that fails. ``eagle`` turns
    EAGLE's block drop on (no drafts are proposed). ``retention_interval`` says which Mamba states
    stay cached: 0 (the release's default) those that a resend can reach, None one at every block
    boundary. ``priority``: the scheduler serves the request with the smallest
    ``RequestSpec.priority`` first and preempts the one with the greatest, instead of first come,
    first served. ``model_runner`` is whose conventions the scheduler speaks: to "v2" a resumed
    request is announced as a new one, to "v1" as a cached one. ``lookup_async``: lookups in the
    store are answered later. ``shared_prefix_checkpoints``: chunks also end inside a block, where a
    sibling's hit ended. ``window``: beside the other groups there is one of sliding-window
    attention, whose tokens attend to themselves and the ``window - 1`` before them, in blocks of
    ``window_block_size``; 0: there is none. ``max_evictions`` and ``max_resets`` say how many store
    entries are evicted, and how often caches are reset. ``peer_requests``: a second live engine of
    the same sizes, in role ``peer_role``, shares the store and serves these. ``connectors``: 2
    for vLLM's MultiConnector of two store connectors, each with its own store.

    Raises ValueError, naming the value, the rule and the fix, when the sizes do not fit.
    """

    requests: tuple[RequestSpec, ...]
    attention_block_size: int = 16
    mamba_block_size: int = 16
    hash_unit: int = 4
    num_blocks: int = 64
    token_budget: int = 64
    role: Role = Role.BOTH
    num_ranks: int = 2
    max_steps_in_flight: int = 1
    eagle: bool = False
    retention_interval: int | None = 0
    recompute_failed_loads: bool = False
    priority: bool = False
    failure_code: int = TRANSFER_FAILED
    stored: tuple[RequestSpec, ...] = ()
    model_runner: str = "v1"
    lookup_async: bool = False
    shared_prefix_checkpoints: bool = False
    window: int = 0
    window_block_size: int = 4
    max_evictions: int = 0
    max_resets: int = 0
    peer_requests: tuple[RequestSpec, ...] = ()
    peer_role: Role = Role.BOTH
    connectors: int = 1

    def __attrs_post_init__(self) -> None:
        """Refuse what vLLM would refuse later and less clearly."""
        sizes = ("attention_block_size", "mamba_block_size", "window_block_size")
        for name in sizes if self.window else sizes[:2]:
            size = getattr(self, name)
            if size < 1 or size % self.hash_unit:
                raise ValueError(
                    f"{name}={size}: must be a multiple of hash_unit={self.hash_unit}; "
                    "change one of them"
                )
        if self.max_steps_in_flight not in (1, 2):
            raise ValueError(
                f"max_steps_in_flight={self.max_steps_in_flight}: vLLM keeps one step in "
                "flight, or two with asynchronous scheduling; use 1 or 2"
            )
        if self.eagle and self.max_steps_in_flight > 1:
            raise ValueError(
                "eagle=True with max_steps_in_flight=2: the asynchronous scheduler schedules "
                "drafts unasked, which the symbolic device does not compute; turn one of them off"
            )
        if self.model_runner not in ("v1", "v2"):
            raise ValueError(f"model_runner={self.model_runner!r}: vLLM has two; use 'v1' or 'v2'")
        if (self.retention_interval or 0) % self.lcm_block_size:
            raise ValueError(
                f"retention_interval={self.retention_interval}: must be a multiple of the LCM of "
                f"the block sizes, {self.lcm_block_size}; change it"
            )
        if self.window < 0 or self.window == 1:
            raise ValueError(
                f"window={self.window}: a window is 2 tokens or more, or 0 for none; change it"
            )
        for name in ("max_evictions", "max_resets"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more; raise it")
        if self.connectors not in (1, 2):
            raise ValueError(f"connectors={self.connectors}: this engine builds 1 or 2; use one")
        if self.connectors > 1 and (self.peer_requests or self.lookup_async):
            raise ValueError(
                f"connectors={self.connectors} with peer_requests or lookup_async: not driven "
                "together; leave one of them out"
            )
        if Role.NONE in (self.role, self.peer_role):
            raise ValueError("role=none: this engine drives a connector; use producer or both")
        names = [request.name for request in (*self.requests, *self.peer_requests)]
        if len(set(names)) != len(names):
            raise ValueError(f"request names {names}: must differ; rename one")
        for request in (*self.requests, *self.peer_requests):
            needed = self.blocks_for(request)
            if self.num_blocks - 1 < needed:
                raise ValueError(
                    f"num_blocks={self.num_blocks}: request {request.name!r} alone can need "
                    f"{needed} and the null block; raise it"
                )

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the requests, in order."""
        return tuple(request.name for request in self.requests)

    @property
    def lcm_block_size(self) -> int:
        """The unit of normal saves, in tokens."""
        return math.lcm(*self.block_sizes)

    @functools.cached_property
    def block_sizes(self) -> tuple[int, ...]:
        """Tokens of a block, for each group: attention, Mamba, and the window if there is one."""
        sizes = (self.attention_block_size, self.mamba_block_size)
        return (*sizes, self.window_block_size) if self.window else sizes

    @property
    def longest(self) -> int:
        """Tokens of the longest request, output included."""
        requests = (*self.requests, *self.stored, *self.peer_requests)
        return max((len(request.tokens) for request in requests), default=1)

    @property
    def peer(self) -> EngineConfig | None:
        """The configuration of the second engine; None if there is none.

        Evictions and resets are left to the first.
        """
        if not self.peer_requests:
            return None
        return attrs.evolve(
            self,
            requests=self.peer_requests,
            role=self.peer_role,
            stored=(),
            peer_requests=(),
            max_evictions=0,
            max_resets=0,
        )

    @property
    def num_numbered_ranks(self) -> int:
        """How many ranks actions can name, those of a second engine or connector included."""
        return self.num_ranks * (2 if self.peer_requests else self.connectors)

    def blocks_for(self, request: RequestSpec) -> int:
        """Return the most blocks that ``request`` holds at once, running alone.

        The attention tables, each with a consumer's copy; the Mamba state that runs, the one it
        is copied from, and a copy-on-write.
        """
        tables = (math.ceil(len(request.tokens) / size) + 1 for size in self.attention_sizes)
        return sum(tables) + 3

    @property
    def attention_sizes(self) -> tuple[int, ...]:
        """Tokens of a block, for each group of attention."""
        return (self.attention_block_size, *self.block_sizes[2:])

    def request(self, name: str) -> RequestSpec:
        """Return a request by name. Raises ValueError with the known names."""
        requests = (*self.requests, *self.peer_requests)
        for request in requests:
            if request.name == name:
                return request
        known = ", ".join(request.name for request in requests)
        raise ValueError(f"request {name!r}: not in this configuration; use one of {known}")


def config_from_scope(scope: Scope) -> EngineConfig:
    """Return the configuration of the real engine that matches a scope of the model.

    Raises ValueError if the scope has other groups than one of full attention followed by one
    Mamba group, which is what this engine builds.
    """
    kinds = tuple(group.kind for group in scope.groups)
    if kinds != (GroupKind.FULL_ATTENTION, GroupKind.MAMBA):
        raise ValueError(
            f"groups {[kind.value for kind in kinds]} of scope {scope.name!r}: the vLLM engine "
            "builds full_attention, then mamba; choose a scope with these two"
        )
    attention, mamba = scope.groups
    return EngineConfig(
        requests=scope.requests,
        attention_block_size=attention.block_size,
        mamba_block_size=mamba.block_size,
        hash_unit=scope.hash_unit,
        num_blocks=scope.num_blocks,
        token_budget=scope.token_budget,
        role=scope.role,
        num_ranks=scope.num_ranks,
        max_steps_in_flight=scope.max_steps_in_flight,
        priority=scope.policy is Policy.PRIORITY,
    )
