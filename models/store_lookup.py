"""Looking a request up in the external store: at once, or by an answer that comes later.

The store is asked for the same joint hit as the local cache (R21); a key counts if every rank
has it. An answer that comes later is held by the request until an admission uses it, and leases
what it found: leased entries are not evicted. A lookup that fails finds nothing (R18).
"""

from __future__ import annotations

import math
from collections import Counter

import attrs

from cowtail.models import boundaries, connector, lookup
from cowtail.models.errors import LifecycleError, NotEnabled
from cowtail.models.observations import Effects, Key, Status
from cowtail.models.scope import GroupKind, Lookup, RequestSpec, Role, Scope
from cowtail.models.state import Answer, Request, State, known_tokens, with_request
from cowtail.models.transition import Transition

NOTHING = Answer()

EntryKey = tuple[int, str]
"""Group and prefix: what every rank has an entry of its own for."""


def is_given_up(scope: Scope, request: Request) -> bool:
    """Whether a request loads nothing any more, because a load of it has failed."""
    return request.load_failed and scope.behaviours.failed_loads_final


def looks_up(scope: Scope, state: State, index: int) -> bool:
    """Whether the store is asked for a request: there is one, and a hit would be long enough."""
    request = state.requests[index]
    return (
        scope.lookup is not Lookup.OFF
        and scope.role is not Role.NONE
        and connector.store_child(scope) is not None
        and not is_given_up(scope, request)
        and known_tokens(scope.requests[index], request) >= boundaries.hit_alignment(scope)
    )


def awaits_answer(scope: Scope, state: State, index: int) -> bool:
    """Whether a request cannot be admitted before the answer of a lookup has arrived."""
    return (
        scope.lookup is Lookup.ASYNC
        and state.requests[index].answer is None
        and looks_up(scope, state, index)
    )


def ask(scope: Scope, state: State, index: int) -> Answer:
    """Return what the store supplies for a request at this moment."""
    if not state.store or not looks_up(scope, state, index):
        return NOTHING
    spec = scope.requests[index]
    tokens = spec.tokens[: known_tokens(spec, state.requests[index])]
    present = keys_on_every_rank(scope, state)
    length = _found_among(scope, present, tokens, len(tokens))
    if length == len(tokens):
        length = _found_among(scope, present, tokens, len(tokens) - 1)
    return Answer(length, _last_keys(scope, present, tokens, length)) if length else NOTHING


def _found_among(scope: Scope, present: frozenset[Key], tokens: str, limit: int) -> int:
    """Return the length of the joint hit among keys, within ``limit`` tokens."""
    align = boundaries.hit_alignment(scope)

    def source(key: Key) -> int | None:
        return 0 if key in present else None

    return lookup.joint_hit(scope, source, tokens, limit // align * align).length


def keys_on_every_rank(scope: Scope, state: State) -> frozenset[Key]:
    """Return the keys that a lookup in the store finds."""
    count = Counter(Key(entry.group, entry.prefix) for entry in state.store)
    return frozenset(key for key, ranks in count.items() if ranks == scope.num_ranks)


def _last_keys(scope: Scope, present: frozenset[Key], tokens: str, length: int) -> tuple[int, ...]:
    """Return per group how the block of the last token is keyed: at ``length``, or further on."""
    ends = []
    for index, group in enumerate(scope.groups):
        limit = length
        if not group.is_mamba:
            limit = min(math.ceil(length / group.block_size) * group.block_size, len(tokens))
        found = (
            end
            for end in range(length, limit + 1, scope.hash_unit)
            if Key(index, tokens[:end]) in present
        )
        end = next(found, None)
        if end is None:
            raise LifecycleError(f"group {index} has no key where a hit of {length} ends")
        ends.append(end)
    return tuple(ends)


def keys_read(
    scope: Scope, spec: RequestSpec, start: int, end: int, last_keys: tuple[int, ...]
) -> list[tuple[int, int, int]]:
    """Return what a load of tokens [start, end) reads: group, column, and tokens in the key."""
    wanted = []
    for index, group in enumerate(scope.groups):
        size = group.block_size
        first = max(start, skipped_tokens(scope, index, end)) // size
        for column in range(first, math.ceil(end / size)):
            full = (column + 1) * size
            whole = full <= end and not group.is_mamba
            wanted.append((index, column, full if whole else last_keys[index]))
    return wanted


def skipped_tokens(scope: Scope, group: int, end: int) -> int:
    """Return how many leading tokens need no block once ``end`` tokens are computed."""
    spec = scope.groups[group]
    if spec.is_mamba:
        return end - 1
    return max(0, end - spec.window + 1) if spec.kind is GroupKind.SLIDING_WINDOW else 0


def look_up_guard(scope: Scope, state: State, index: int, failed: bool) -> str:
    """Return why no answer can arrive for a request, or an empty string."""
    spec, request = scope.requests[index], state.requests[index]
    if scope.lookup is not Lookup.ASYNC:
        return "lookups are not asynchronous"
    if state.open_pass is not None:
        return "a pass is open"
    if request.status not in (Status.WAITING, Status.PREEMPTED):
        return f"{spec.name!r} is {request.status.value}, not waiting"
    if request.answer is not None:
        return f"{spec.name!r} has its answer"
    if not looks_up(scope, state, index):
        return f"{spec.name!r} is not looked up"
    if failed and state.spent.failed_lookups >= scope.max_failed_lookups:
        return f"max_failed_lookups={scope.max_failed_lookups} are spent"
    return ""


def look_up(scope: Scope, state: State, index: int, failed: bool) -> Transition:
    """Let the answer of a lookup arrive; one that found something leases it."""
    guard = look_up_guard(scope, state, index, failed)
    if guard:
        raise NotEnabled(guard)
    answer = NOTHING if failed else ask(scope, state, index)
    if failed:
        state = with_failed_lookup(state)
    request = attrs.evolve(state.requests[index], answer=answer, leased=answer.length > 0)
    events = ("lookup failed",) if failed else ("found in the store",) if answer.length else ()
    return Transition(with_request(state, index, request), Effects(), events)


def lookup_failed_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a lookup at admission cannot fail, or an empty string."""
    if scope.lookup is not Lookup.SYNC:
        return "the store is not looked up at admission"
    if state.spent.failed_lookups >= scope.max_failed_lookups:
        return f"max_failed_lookups={scope.max_failed_lookups} are spent"
    if not ask(scope, state, index).length:
        return "the lookup would find nothing anyway"
    return ""


def with_failed_lookup(state: State) -> State:
    """Count a lookup that failed."""
    spent = attrs.evolve(state.spent, failed_lookups=state.spent.failed_lookups + 1)
    return attrs.evolve(state, spent=spent)


def leased_keys(scope: Scope, state: State) -> frozenset[EntryKey]:
    """Return what leases protect: all that loading what was found could read, on every rank."""
    keys = []
    for index, request in enumerate(state.requests):
        if not request.leased:
            continue
        spec = scope.requests[index]
        if request.answer is not None:
            end, last_keys = request.answer.length, request.answer.last_keys
        else:
            load = next(load for load in state.loads if load.request == index)
            end, last_keys = load.end, load.last_keys
        keys += [
            (group, spec.tokens[:length])
            for group, _, length in keys_read(scope, spec, 0, end, last_keys)
        ]
    return frozenset(keys)


def expire_lease_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a lease cannot run out, or an empty string."""
    if state.open_pass is not None:
        return "a pass is open"
    if not state.requests[index].leased:
        return f"{scope.requests[index].name!r} has no lease"
    if state.spent.expired_leases >= scope.max_expired_leases:
        return f"max_expired_leases={scope.max_expired_leases} are spent"
    return ""


def expire_lease(scope: Scope, state: State, index: int) -> Transition:
    """Let a lease run out; the answer, or the load under way, goes on without it."""
    guard = expire_lease_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    spent = attrs.evolve(state.spent, expired_leases=state.spent.expired_leases + 1)
    request = attrs.evolve(state.requests[index], leased=False)
    return Transition(with_request(attrs.evolve(state, spent=spent), index, request))
