"""Smaller scopes for a given run: what a reader need not look at is taken out of the scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from cowtail.models.actions import Action
from cowtail.models.scope import Child, Group, RequestSpec, Scope, full_attention
from cowtail.spec.traces import Refused

SUFFIX = "_reduced"
"""What the name of a scope ends in once it is no longer the scope of that name."""


_BOUNDS = {
    "max_steps_in_flight": 1,
    "max_preemptions": 0,
    "max_failed_jobs": 0,
    "max_repeated_reports": 0,
    "max_failed_loads": 0,
    "max_failed_lookups": 0,
    "max_evictions": 0,
    "max_expired_leases": 0,
    "max_resets": 0,
    "speculative_tokens": 0,
}
"""What counts up, with the least that it can be."""

_FEATURES = (
    "token_budget",
    "policy",
    "lookup",
    "foreign",
    "load_policy",
    "put_failures",
    "defer_frees",
    "retention_interval",
    "shared_prefix_checkpoints",
    "internal_checkpoints",
)
"""What a scope may have beyond its default, and can perhaps do without."""


def simpler_scopes(scope: Scope, actions: tuple[Action, ...]) -> Iterator[Scope]:
    """Yield scopes that are strictly smaller, the boldest changes first.

    Whether the run still makes sense in one, and still diverges, is for the caller to try.
    """
    for changes in _changes(scope, actions):
        name = scope.name if scope.name.endswith(SUFFIX) else scope.name + SUFFIX
        try:
            yield attrs.evolve(scope, name=name, **changes)
        except ValueError:  # a change may leave sizes that do not fit: it is no scope
            continue


def _changes(scope: Scope, actions: tuple[Action, ...]) -> Iterator[dict[str, Any]]:
    plain = (action.action if isinstance(action, Refused) else action for action in actions)
    used = {getattr(action, "request", None) for action in plain}
    requests = tuple(spec for spec in scope.requests if spec.name in used)
    if 0 < len(requests) < len(scope.requests):
        abortable = scope.may_abort and tuple(n for n in scope.may_abort if n in used)
        foreign = tuple(name for name in scope.foreign if name in used)
        yield {"requests": requests, "may_abort": abortable, "foreign": foreign}
    for num_ranks in range(1, scope.num_ranks):
        yield {"num_ranks": num_ranks}
    for name in _FEATURES:
        default = attrs.fields_dict(Scope)[name].default
        if getattr(scope, name) != default:
            yield {name: default}
    for index, child in enumerate(scope.children):
        for fewer in ((), *((each,) for each in _simpler_children(child))):
            yield {"children": scope.children[:index] + fewer + scope.children[index + 1 :]}
    for name, least in _BOUNDS.items():
        for value in range(least, getattr(scope, name)):
            yield {name: value}
    if scope.hash_unit > 1:
        yield {"hash_unit": 1}
    for index in range(len(scope.groups)):
        if len(scope.groups) > 1:
            yield {"groups": scope.groups[:index] + scope.groups[index + 1 :]}
    for index, group in enumerate(scope.groups):
        for simpler in _simpler_groups(group, scope.hash_unit):
            yield {"groups": (*scope.groups[:index], simpler, *scope.groups[index + 1 :])}
    for index, spec in enumerate(scope.requests):
        for shorter in _shorter(spec):
            yield {"requests": (*scope.requests[:index], shorter, *scope.requests[index + 1 :])}
    fewest = 1 + max(scope.blocks_for(spec) for spec in scope.requests)
    for num_blocks in dict.fromkeys((fewest, (fewest + scope.num_blocks) // 2)):
        if num_blocks < scope.num_blocks:
            yield {"num_blocks": num_blocks}
    longest = max(len(spec.prompt) for spec in scope.requests)
    for cut in (longest // 2, 1):
        if 0 < cut < min(len(spec.prompt) for spec in scope.requests):
            shortened = [attrs.evolve(spec, prompt=spec.prompt[cut:]) for spec in scope.requests]
            yield {"requests": tuple(shortened)}


def _simpler_children(child: Child) -> Iterator[Child]:
    """Yield a peer that does less."""
    if child.serves:
        yield attrs.evolve(child, serves=False)
    if child.retains:
        yield attrs.evolve(child, retains=False)


def _simpler_groups(group: Group, hash_unit: int) -> Iterator[Group]:
    """Yield the group without its window or drafter, then with smaller blocks."""
    if group.window:
        yield full_attention(group.block_size, eagle=group.eagle)
    if group.eagle:
        yield attrs.evolve(group, eagle=False)
    for size in range(hash_unit, group.block_size, hash_unit):
        yield attrs.evolve(group, block_size=size)


def _shorter(spec: RequestSpec) -> Iterator[RequestSpec]:
    """Yield the request with fewer tokens to sample, or with a shorter prompt."""
    for max_tokens in dict.fromkeys((1, spec.max_tokens // 2, spec.max_tokens - 1)):
        if 0 < max_tokens < spec.max_tokens:
            yield attrs.evolve(spec, max_tokens=max_tokens, output=spec.output[:max_tokens])
    for name in ("output", "accepts", "priority"):
        default: Any = attrs.fields_dict(RequestSpec)[name].default
        if getattr(spec, name) != default:
            yield attrs.evolve(spec, **{name: default})
    for length in dict.fromkeys((len(spec.prompt) // 2, len(spec.prompt) - 1)):
        if length:
            yield attrs.evolve(spec, prompt=spec.prompt[:length])
