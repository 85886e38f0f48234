"""Scopes and paces for fuzzing: larger than any that is explored, and each life another.

Swarm testing: a scope has a few of the features that a scope can have, and is without the
others, because features that are always on hide one another. How many is drawn first. What a
feature needs (a store to be looked up, a Mamba group for a junction) comes with it, so every
scope fits together by construction.

The sizes of the small profile stay near what makes blocks interesting (two to eight tokens a
block, prompts of a few blocks) because a tail, a copy and a preemption need few tokens and
blocks, but many orders. The large one looks for what only shows when much is going on.

One number is drawn for a scope, and the rest comes from a generator of its own: Hypothesis
bounds how much an example may draw, and nothing here is shrunk by it.
"""

from __future__ import annotations

import enum
import math
import random
import string
from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
from hypothesis import strategies as st

from cowtail.models.actions import (
    Abort,
    Action,
    BeginPass,
    Evict,
    Execute,
    ExpireLease,
    FinishSend,
    ForeignPut,
    JobOutcome,
    LookUp,
    Preempt,
    Report,
    ReportLoad,
    Reset,
    RunJob,
    RunLoad,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import (
    BASE,
    STORE,
    Child,
    Group,
    LoadPolicy,
    Lookup,
    Policy,
    RequestSpec,
    Role,
    Scope,
    full_attention,
    mamba,
    peer,
    sliding_window,
)

_T = TypeVar("_T")

NAMES = "abcd"
"""Names of requests, in order."""


@attrs.frozen
class Profile:
    """How large scopes get.

    ``hash_units`` are drawn from, in tokens; block sizes are ``block_units`` hash units, within
    ``block_sizes`` (the smallest and the largest, in tokens). ``longest_prompt`` is in tokens,
    without an ending of its own. ``max_blocks`` bounds a pool, ``token_budgets`` a pass.
    ``steps`` is how many actions are drawn in one example before it is drained.
    """

    name: str
    hash_units: tuple[int, ...]
    block_units: tuple[int, ...]
    block_sizes: tuple[int, int]
    prompt_blocks: tuple[int, ...]
    longest_prompt: int
    requests: tuple[int, ...]
    ranks: tuple[int, ...]
    token_budgets: tuple[int, ...]
    max_blocks: int
    steps: int


SMALL = Profile(
    name="small",
    hash_units=(1, 1, 2, 3, 4),
    block_units=(1, 2, 3, 4, 8),
    block_sizes=(1, 8),
    prompt_blocks=(1, 2, 3, 4),
    longest_prompt=32,
    requests=(1, 2, 3, 4),
    ranks=(1, 2, 3),
    token_budgets=(64, 64, 8, 3),
    max_blocks=150,
    steps=100,
)
"""What tests and short runs use."""

LARGE = Profile(
    name="large",
    hash_units=(1, 2, 4, 4, 8),
    block_units=(1, 2, 3, 4, 8),
    block_sizes=(4, 16),
    prompt_blocks=(2, 5, 12, 50),
    longest_prompt=200,
    requests=(4,),
    ranks=(3,),
    token_budgets=(512, 512, 64, 20),
    max_blocks=200,
    steps=400,
)
"""What a soak uses: large pools, long prompts, four requests and three ranks in every scope."""

PROFILES = {profile.name: profile for profile in (SMALL, LARGE)}
"""Every profile by name."""


class Feature(enum.StrEnum):
    """What a scope may have, or be without."""

    WINDOW = "sliding windows"
    EAGLE = "EAGLE groups"
    MORE_GROUPS = "more groups"
    SPECULATION = "speculative tokens"
    RETENTION = "retention interval"
    JUNCTIONS = "shared-prefix checkpoints"
    INTERNAL = "internal checkpoints"
    POLICY = "a preemption policy"
    DEFERRED_FREES = "deferred frees"
    LOOKUP = "lookup in the store"
    FAILED_LOADS = "loads and lookups that fail"
    EVICTION = "eviction and leases that expire"
    FOREIGN = "foreign puts"
    CHILDREN = "several connectors"
    PUT_FAILURES = "puts that fail in several ways"
    RESETS = "resets"


_NEEDED = {
    Feature.FAILED_LOADS: Feature.LOOKUP,
    Feature.EVICTION: Feature.LOOKUP,
    Feature.FOREIGN: Feature.LOOKUP,
}
"""What a feature is nothing without."""

_DENSITIES = (0.1, 0.3, 0.6)
"""How likely each feature is to be on; one is drawn for each scope."""

LOOKUPS = 0.4
"""How likely the store is looked up in any case: a third of all features are about that.

Every other time it evicts as well, or loads would seldom find a key gone.
"""

_FAMILIES: tuple[tuple[Child, ...], ...] = (
    (STORE, peer(retains=True)),
    (peer(serves=True), STORE),
    (STORE, peer(serves=True, retains=True)),
    (peer(retains=True), STORE, peer(retains=True)),
    (BASE, STORE, peer(serves=True)),
    (STORE, BASE),
    (peer(serves=True), peer(retains=True)),
    (BASE,),
)
"""The connectors that an engine may have, beyond the store alone."""


Paces = dict[type[Action], int]
"""For some kinds of action, at which moments they are offered: every n-th, or never (0).

This is what swarm testing does with features, as a matter of degree. When nothing
that is possible is due, the kinds that are due most often are offered.
"""


def scopes(profile: Profile = SMALL) -> st.SearchStrategy[Scope]:
    """Return the strategy of scopes of a profile; each fits together."""
    return _seeds().map(lambda seed: draw_scope(random.Random(seed), profile))


def paces() -> st.SearchStrategy[Paces]:
    """Return the strategy of how eager environment, scheduler, device and ranks are."""
    return _seeds().map(lambda seed: draw_paces(random.Random(seed)))


def _seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)


def draw_scope(
    rng: random.Random, profile: Profile = SMALL, always: frozenset[Feature] = frozenset()
) -> Scope:
    """Return a scope of a profile, drawn from ``rng``, with the features of ``always``."""
    return _Drawing(rng, profile, always).scope()


class _Drawing:
    """One scope, as it is drawn."""

    def __init__(self, rng: random.Random, profile: Profile, always: frozenset[Feature]) -> None:
        self._rng = rng
        self._profile = profile
        density = self._pick(_DENSITIES)
        self._features = {feature for feature in Feature if rng.random() < density}
        if rng.random() < LOOKUPS:
            self._features |= {Feature.LOOKUP, self._pick((Feature.LOOKUP, Feature.EVICTION))}
        self._features |= always
        self._features |= {_NEEDED[f] for f in list(self._features) if f in _NEEDED}

    def scope(self) -> Scope:
        """Draw groups, then requests of a length that suits them, then all else."""
        unit = self._pick(self._profile.hash_units)
        groups = self._groups(unit)
        speculative = self._speculative_tokens(groups)
        requests = self._requests(max(group.block_size for group in groups), speculative)
        changes: dict[str, Any] = {
            "speculative_tokens": speculative,
            "num_ranks": self._pick(self._profile.ranks),
            "token_budget": self._pick((*self._profile.token_budgets, groups[-1].block_size)),
            "max_steps_in_flight": self._pick((1, 2)),
            "max_preemptions": self._pick((0, 1, 2)),
            "max_repeated_reports": self._pick((0, 1, 2)),
            "may_abort": () if self._chance(0.1) else None,
            **self._scheduling(groups),
            **self._connectors(requests),
        }
        if changes.get("lookup") and changes["max_steps_in_flight"] > 1:
            changes["defer_frees"] = True
        return self._with_pool(groups, unit, requests, changes)

    def _speculative_tokens(self, groups: tuple[Group, ...]) -> int:
        """Draw how many tokens a step drafts: fewer than the smallest state block has."""
        if Feature.SPECULATION not in self._features:
            return 0
        smallest = min((group.block_size for group in groups if group.is_mamba), default=4)
        return min(self._pick((1, 2, 3)), smallest - 1)

    def _groups(self, unit: int) -> tuple[Group, ...]:
        """Draw groups; the Mamba groups, if several, share a block size."""
        smallest, largest = self._profile.block_sizes
        units = self._profile.block_units
        sizes = [unit * n for n in units if smallest <= unit * n <= largest] or [largest]
        kinds = "am" if self._chance(0.9) else "a"
        if Feature.MORE_GROUPS in self._features:
            kinds = self._pick(("aam", "amm", "aam", "ama", "aa"))
        if Feature.WINDOW in self._features:
            kinds = self._pick(("aw", "aw", "wa", "w", "ww")) + kinds.replace("a", "")
        state_size = self._pick(sizes)
        groups = []
        for kind in kinds:
            size = self._pick(sizes)
            eagle = Feature.EAGLE in self._features and self._chance(0.7)
            if kind == "w":
                if unit >= smallest and self._chance(0.5):
                    size = unit  # or else there are no partial hits
                window = max(2, self._pick((2, size, size + 1, 2 * size + 1, 3 * size)))
                groups.append(sliding_window(size, window, eagle=eagle))
            elif kind == "a":
                alike = [group for group in groups if not group.is_mamba and not group.window]
                if alike and self._chance(0.3):
                    size = alike[0].block_size
                groups.append(full_attention(size, eagle=eagle))
            else:
                groups.append(mamba(state_size))
        return tuple(groups)

    def _requests(self, largest_block: int, speculative: int) -> tuple[RequestSpec, ...]:
        """Draw requests whose prompts begin alike: prefixes of one text, some with an own end."""
        text = string.ascii_lowercase * (self._profile.longest_prompt // 26 + 1)
        blocks = self._pick(self._profile.prompt_blocks)
        longest = min(self._profile.longest_prompt, blocks * largest_block + 2)
        requests: list[RequestSpec] = []
        for index in range(self._pick(self._profile.requests)):
            shared = text[: self._rng.randint(1, longest)]
            if requests and self._chance(0.5):
                shared = self._pick(requests).prompt
            own = string.ascii_uppercase[index] * self._pick((0, 0, 0, 1, 2))
            max_tokens = self._pick((1, 1, 2, 3, largest_block + 1))
            output = ""
            if speculative:
                max_tokens += self._pick((1, 2, speculative + 2))
            if self._chance(0.5):  # samples what others' prompts go on with, where there is no end
                onwards = "" if own else text[len(shared) : len(shared) + max_tokens]
                output = (onwards + "z" * max_tokens)[:max_tokens]
            requests.append(
                RequestSpec(
                    NAMES[index],
                    shared + own,
                    max_tokens,
                    output,
                    accepts=self._accepts(speculative),
                    priority=self._pick((0, 0, 1, 2)),
                )
            )
        return tuple(requests)

    def _accepts(self, speculative: int) -> str:
        """Draw how many drafts are accepted, decode step by decode step; "" is all of them."""
        if not speculative:
            return ""
        count = self._pick((0, 1, 2, 3))
        return "".join(str(self._rng.randint(0, speculative)) for _ in range(count))

    def _scheduling(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Draw what concerns boundaries, victims and frees."""
        changes: dict[str, Any] = {}
        if Feature.RETENTION in self._features:
            lcm = math.lcm(*(group.block_size for group in groups))
            changes["retention_interval"] = lcm * self._pick((0, 0, 1, 2, 3))
        if Feature.JUNCTIONS in self._features:
            changes["shared_prefix_checkpoints"] = True
        if Feature.INTERNAL in self._features:
            changes["internal_checkpoints"] = True
        if Feature.POLICY in self._features:
            changes["policy"] = self._pick((Policy.FCFS, Policy.PRIORITY, Policy.PRIORITY))
        if Feature.DEFERRED_FREES in self._features:
            changes["defer_frees"] = True
        if Feature.RESETS in self._features:
            changes["max_resets"] = self._pick((1, 2, 3))
        return changes

    def _connectors(self, requests: Sequence[RequestSpec]) -> dict[str, Any]:
        """Draw role, connectors, and what the store does to them."""
        saving = (Role.PRODUCER, Role.PRODUCER, Role.BOTH, Role.BOTH)
        changes: dict[str, Any] = {
            "role": self._pick((*saving, Role.CONSUMER, Role.NONE)),
            "max_failed_jobs": self._pick((0, 1, 2)),
        }
        if Feature.CHILDREN in self._features:
            changes["children"] = self._pick(_FAMILIES)
            if STORE not in changes["children"]:
                changes["role"] = self._pick(saving)  # whose tails nobody takes
        if Feature.PUT_FAILURES in self._features:
            kinds = [outcome for outcome in JobOutcome if outcome is not JobOutcome.OK]
            chosen = self._rng.sample(kinds, self._rng.randint(1, len(kinds)))
            changes["put_failures"] = tuple(kind for kind in kinds if kind in chosen)
            changes["max_failed_jobs"] = self._pick((1, 2, 4, 8))
        if Feature.LOOKUP in self._features:
            changes["role"] = self._pick((Role.BOTH, Role.BOTH, Role.BOTH, Role.CONSUMER))
            changes["lookup"] = self._pick((Lookup.SYNC, Lookup.ASYNC))
            changes["load_policy"] = self._pick((LoadPolicy.RECOMPUTE, LoadPolicy.FAIL))
        if Feature.FAILED_LOADS in self._features:
            changes["max_failed_loads"] = self._pick((0, 1, 2))
            changes["max_failed_lookups"] = self._pick((0, 1, 2))
        if Feature.EVICTION in self._features:
            changes["max_evictions"] = self._pick((1, 2, 4, 8))
            changes["max_expired_leases"] = self._pick((1, 2, 4))
        if Feature.FOREIGN in self._features and STORE in changes.get("children", (STORE,)):
            names = [spec.name for spec in requests]
            known = self._rng.sample(names, self._rng.randint(1, len(names)))
            changes["foreign"] = tuple(sorted(known))
        return changes

    def _with_pool(
        self,
        groups: tuple[Group, ...],
        unit: int,
        requests: tuple[RequestSpec, ...],
        changes: dict[str, Any],
    ) -> Scope:
        """Draw a pool between just enough for the largest request and enough for all at once."""
        scope = Scope("fuzzed", groups, unit, 10_000, requests, **changes)
        needs = [scope.blocks_for(spec) for spec in requests]
        ample = sum(needs) - max(needs)
        spare = self._pick((0, 0, 1, 2, ample // 2, ample, sum(needs)))
        most = max(self._profile.max_blocks - 1 - max(needs), 0)
        return attrs.evolve(scope, num_blocks=1 + max(needs) + min(spare, most))

    def _pick(self, options: Sequence[_T]) -> _T:
        return self._rng.choice(options)

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability


_PERIODS: dict[type[Action], tuple[int, ...]] = {
    Abort: (0, 5, 11, 29),
    Submit: (1, 2, 7, 23),
    Preempt: (1, 2, 5),
    BeginPass: (1, 1, 1, 4),
    **dict.fromkeys((Execute, UpdateFromOutput), (1, 1, 1, 2, 5, 17)),
    **dict.fromkeys((RunJob, Report, UpdateConnectorOutput), (1, 1, 1, 2, 5, 17)),
    **dict.fromkeys((RunLoad, ReportLoad, FinishSend), (1, 1, 1, 2, 5, 17)),
    LookUp: (1, 1, 2, 5),
    ExpireLease: (1, 3, 11),
    ForeignPut: (2, 7, 23),
    Evict: (3, 7, 19, 43),
    Reset: (11, 29, 61),
}
"""The periods that each kind's is drawn from.

What the environment may do a few times only is offered seldom: at once, it would be used up
before there is anything to do it to.
"""


def draw_paces(rng: random.Random) -> Paces:
    """Return how eager everybody is, drawn from ``rng``."""
    return {kind: rng.choice(periods) for kind, periods in _PERIODS.items()}
