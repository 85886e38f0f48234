"""What happens to the store from outside: another engine puts, and the store evicts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs

from cowtail.models import boundaries, store_lookup, workers
from cowtail.models.errors import NotEnabled
from cowtail.models.memories import true_content
from cowtail.models.observations import Effects, StoreEntry
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import State
from cowtail.models.transition import Transition


def foreign_put_guard(scope: Scope, state: State, index: int) -> str:
    """Return why no other engine can put a request's prefix, or an empty string."""
    name = scope.requests[index].name
    if state.open_pass is not None:
        return "a pass is open"
    if name not in scope.foreign:
        return f"{name!r} is not among foreign={scope.foreign}"
    return f"{name!r} was put already" if index in state.foreign_done else ""


def foreign_put(scope: Scope, state: State, index: int) -> Transition:
    """Let another engine put what a producer puts for a request's prompt, on every rank."""
    guard = foreign_put_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    spec = scope.requests[index]
    present = {(entry.rank, entry.group, entry.prefix) for entry in state.store}
    entries = {
        StoreEntry(rank, group, prefix, true_content(scope.groups[group], prefix))
        for group, length in foreign_keys(scope, spec)
        for prefix in (spec.tokens[:length],)
        for rank in range(scope.num_ranks)
        if (rank, group, prefix) not in present
    }
    state = attrs.evolve(
        state,
        store=workers.merged(state.store, sorted(entries)),
        foreign_done=tuple(sorted((*state.foreign_done, index))),
    )
    return Transition(state)


def foreign_keys(scope: Scope, spec: RequestSpec) -> Iterator[tuple[int, int]]:
    """Yield group and number of tokens of everything that a producer stores for a prompt."""
    boundary = boundaries.replay_boundary(scope, spec)
    lcm = boundaries.lcm_block_size(scope)
    whole = len(spec.prompt) // lcm * lcm
    for index, group in enumerate(scope.groups):
        size = group.block_size
        limit = min(whole, boundary) if group.is_mamba else whole
        yield from ((index, end) for end in range(size, limit + 1, size))
        if not boundaries.partial_hits(scope) or boundary == 0:
            continue
        if group.is_mamba:
            yield index, boundary
            continue
        end = boundary + boundaries.margins(scope)[index]
        for column in range(boundary // lcm * lcm // size, math.ceil(end / size)):
            yield index, min((column + 1) * size, end)


def evict_guard(scope: Scope, state: State, rank: int, group: int, prefix: str) -> str:
    """Return why the store cannot evict an entry, or an empty string."""
    if state.open_pass is not None:
        return "a pass is open"
    if state.spent.evictions >= scope.max_evictions:
        return f"max_evictions={scope.max_evictions} are spent"
    if not any((e.rank, e.group, e.prefix) == (rank, group, prefix) for e in state.store):
        return f"rank {rank} has stored nothing under {prefix!r} in group {group}"
    if (group, prefix) in store_lookup.leased_keys(scope, state):
        return f"{prefix!r} of group {group} is leased"
    return ""


def evict(scope: Scope, state: State, rank: int, group: int, prefix: str) -> Transition:
    """Let the store forget one entry of one rank."""
    guard = evict_guard(scope, state, rank, group, prefix)
    if guard:
        raise NotEnabled(guard)
    kept = tuple(e for e in state.store if (e.rank, e.group, e.prefix) != (rank, group, prefix))
    spent = attrs.evolve(state.spent, evictions=state.spent.evictions + 1)
    return Transition(attrs.evolve(state, store=kept, spent=spent), Effects(), ("evicted",))


def evictable(scope: Scope, state: State) -> tuple[StoreEntry, ...]:
    """Return the entries that the store can evict now, in its order."""
    if state.open_pass is not None or state.spent.evictions >= scope.max_evictions:
        return ()
    leased = store_lookup.leased_keys(scope, state)
    return tuple(e for e in state.store if (e.group, e.prefix) not in leased)
