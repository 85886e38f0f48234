"""What must hold of every transition, about the store and resets (T4, S11, S13, S14)."""

from __future__ import annotations

from cowtail.models import boundaries, peers
from cowtail.models.actions import Action, Admit, EndPass, Execute, LookUp, Reset, RunJob
from cowtail.models.observations import Status
from cowtail.models.scope import GroupKind, Lookup, Scope
from cowtail.models.state import State, known_tokens
from cowtail.spec import supply
from cowtail.spec.step_invariants.property import StepProperty


def store_hits_are_loadable(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """T4: see ``STEP_PROPERTIES``."""
    if isinstance(action, LookUp):
        index = scope.index(action.request)
        answer = after.requests[index].answer
        start, end = 0, 0 if answer is None else answer.length
    elif isinstance(action, Admit) and scope.lookup is Lookup.SYNC:
        index = scope.index(action.request)
        load = next((load for load in after.loads if load.request == index), None)
        if load is None or peers.serving(scope, load.child):
            return None
        start, end = load.start, load.end
    else:
        return None
    if not end:
        return None
    spec = scope.requests[index]
    known = known_tokens(spec, before.requests[index])
    if end >= known or end % boundaries.hit_alignment(scope):
        return f"the store supplies {end} of {known} tokens of {action.request!r}"
    present = supply.on_every_rank(scope, before)
    tokens = spec.tokens[:known]
    lacking = supply.missing(scope, tokens, start, end, present.__contains__)
    return (
        f"the store supplies {end} tokens of {action.request!r}, but {lacking}" if lacking else None
    )


def offsets_are_durable(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """S11: see ``STEP_PROPERTIES``."""
    for rank, (old, new) in enumerate(zip(before.ranks, after.ranks, strict=True)):
        for index, (was, now) in enumerate(zip(old.saved, new.saved, strict=True)):
            if now == was:
                continue
            moved = (
                f"rank {rank} moved from {was} to {now} tokens of {scope.requests[index].name!r}"
            )
            if isinstance(action, RunJob):
                wrong = _not_by_a_save(scope, before, action, after, rank, index)
            else:
                told = isinstance(action, (EndPass, Execute))
                wrong = None if told and not now else f"by {action}, which saves nothing"
            if wrong:
                return f"{moved}, {wrong}"
    return None


def _not_by_a_save(
    scope: Scope, before: State, action: RunJob, after: State, rank: int, index: int
) -> str | None:
    """Return why a job of ``action`` must not have moved a rank's offset of a request."""
    job = before.ranks[action.rank].queue[0]
    if (rank, index) != (action.rank, job.request):
        return f"by job {job.job} of another request or rank"
    if not job.save_to:
        return f"by job {job.job}, which saves no prefix"
    was, now = before.ranks[rank].saved[index], after.ranks[rank].saved[index]
    present = {(entry.rank, entry.group, entry.prefix) for entry in after.store}
    stored = _first_gap(scope, present, rank, scope.requests[index].tokens, max(was, now))
    if now > was and stored < now:
        return f"and {stored} are stored"
    if now < was and stored >= was:
        return "and all are stored"
    return None


def _first_gap(
    scope: Scope, present: set[tuple[int, int, str]], rank: int, tokens: str, limit: int
) -> int:
    """Return how many tokens of every full-attention group a rank has stored without a gap."""
    stored = limit
    for index, group in enumerate(scope.groups):
        if group.kind is not GroupKind.FULL_ATTENTION:
            continue
        for end in range(group.block_size, limit + 1, group.block_size):
            if (rank, index, tokens[:end]) not in present:
                stored = min(stored, end - group.block_size)
                break
    return stored


def cache_reset_forgets(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """S13: see ``STEP_PROPERTIES``."""
    if not isinstance(action, Reset):
        return None
    busy = any(after.pool.ref_counts) or bool(after.deferred)
    if not busy and after.pool.index:
        return f"nothing is referenced, and {after.pool.index[0][0]} survived a reset"
    if busy and after.pool.index != before.pool.index:
        return "blocks are referenced, and a reset dropped keys all the same"
    if action.running and any(r.status is Status.RUNNING for r in after.requests):
        return "a request still runs after a reset of running requests"
    return None


def store_reset_forgets(
    scope: Scope, before: State, action: Action, after: State, events: tuple[str, ...]
) -> str | None:
    """S14: see ``STEP_PROPERTIES``."""
    if not isinstance(action, Reset) or not action.store:
        return None
    busy = any(after.pool.ref_counts) or bool(after.deferred)
    if action.running and busy and not scope.behaviours.store_reset_in_any_case:
        return None
    if after.store:
        return f"the store was reset and still holds {after.store[0]}"
    for spec, request in zip(scope.requests, after.requests, strict=True):
        if request.answer is not None or request.leased:
            return f"the store was reset, and {spec.name!r} goes by what was found in it"
    return None


STEP_PROPERTIES: tuple[StepProperty, ...] = (
    StepProperty(
        "T4",
        "store hits are loadable",
        "What a lookup says the store supplies, every rank has stored at that moment, in every "
        "group; at least one token is left to compute.",
        "domain S12, R21, K16, K35",
        store_hits_are_loadable,
    ),
    StepProperty(
        "S11",
        "offsets are durable",
        "A durable offset is moved by jobs that save a prefix, and forgotten with its request: it "
        "rises only over what is then in the store, and falls only where something is gone.",
        "domain S11, R19, K08, K27",
        offsets_are_durable,
    ),
    StepProperty(
        "S13",
        "reset forgets",
        "A reset of the prefix cache drops every key if no block is referenced, and else none.",
        "domain S13, K45",
        cache_reset_forgets,
    ),
    StepProperty(
        "S14",
        "store reset forgets",
        "After a reset of the store nothing is in it, and no answer taken from it is left.",
        "domain S14, K44",
        store_reset_forgets,
    ),
)
"""In the order in which they are judged."""
