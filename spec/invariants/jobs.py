"""What must hold of store jobs, pins and the store (S7-S9, S12, L5, L6)."""

from __future__ import annotations

import math
from functools import lru_cache

import attrs

from cowtail.models import boundaries, store_lookup
from cowtail.models.device import memory_ahead
from cowtail.models.lifecycle import is_quiescent
from cowtail.models.observations import NULL_BLOCK, Key
from cowtail.models.scope import STORE, GroupKind, Lookup, Scope
from cowtail.models.state import JobMeta, State, with_request
from cowtail.spec import supply
from cowtail.spec.contents import contradiction
from cowtail.spec.expected_hit import Layout, Resend, expected_hit
from cowtail.spec.invariants.property import Property
from cowtail.spec.invariants.unfinished import jobs_to_run, unfinished_jobs


def handoffs_hold_their_state(scope: Scope, state: State) -> str | None:
    """S7: see ``PROPERTIES``."""
    memory = memory_ahead(scope, state)
    for job in jobs_to_run(state):
        if job in state.queued_tails and state.open_pass is not None:
            continue
        tokens = scope.requests[job.request].tokens
        for put in job.puts:
            wrong = contradiction(scope, memory, put.block, Key(put.group, tokens[: put.boundary]))
            if wrong:
                return f"job {job.job} stores block {put.block} at {put.boundary}, but {wrong}"
    return None


def store_tells_the_truth(scope: Scope, state: State) -> str | None:
    """S8: see ``PROPERTIES``."""
    margins = boundaries.margins(scope)
    boundary_of = [boundaries.replay_boundary(scope, spec) for spec in scope.requests]
    for job in jobs_to_run(state):
        if job.save_to > job.prefill_end:
            return f"job {job.job} saves {job.save_to} tokens, past prefill of {job.prefill_end}"
        for put in job.puts:
            limit = job.prefill_end
            if not scope.groups[put.group].is_mamba:
                limit = min(limit, boundary_of[job.request] + margins[put.group])
            if put.boundary > limit:
                return (
                    f"job {job.job} stores {put.boundary} tokens of group {put.group}, "
                    f"past the {limit} that a lookup can use"
                )
            if put.block == NULL_BLOCK:
                return f"job {job.job} stores the null block"
    for entry in state.store:
        group = scope.groups[entry.group]
        length = len(entry.prefix)
        first = (length - 1) // group.block_size * group.block_size
        expected = (
            (entry.prefix,)
            if group.is_mamba
            else tuple(entry.prefix[: position + 1] for position in range(first, length))
        )
        if entry.content != expected:
            return f"the store holds {entry.content} under {entry.prefix!r} of group {entry.group}"
    return None


def pins_wait_for_every_rank(scope: Scope, state: State) -> str | None:
    """S9: see ``PROPERTIES``."""
    pinned = {pin.job: pin for pin in state.pins}
    for pin in state.pins:
        for block in pin.blocks:
            if state.pool.ref_counts[block] == 0:
                return f"job {pin.job} pins block {block}, which is free"
        if not pin.ranks_owed:
            return f"every rank has reported job {pin.job}, but it is still pinned"
    for job in jobs_to_run(state):
        if job.job not in pinned:
            return f"job {job.job} may still run, but its blocks are not pinned"
        loose = _blocks_read(scope, job) - set(pinned[job.job].blocks)
        if loose:
            return f"job {job.job} will read blocks {sorted(loose)}, which it does not pin"
    for rank, worker in enumerate(state.ranks):
        for job in worker.queue:
            held = pinned.get(job.job)
            if held is None or rank not in held.ranks_owed:
                return f"rank {rank} has not run job {job.job}, but no longer holds its pin"
    return None


def _blocks_read(scope: Scope, job: JobMeta) -> set[int]:
    """Return the blocks that a job may read: its puts', and the attention blocks that it saves."""
    saved = {
        block
        for group, table in zip(scope.groups, job.tables, strict=True)
        for block in table[: job.save_to // group.block_size]
        if block != NULL_BLOCK
    }
    return saved | {put.block for put in job.puts}


def tails_are_stored_whole(scope: Scope, state: State) -> str | None:
    """S12: see ``PROPERTIES``."""
    for job in unfinished_jobs(state):
        for tail in job.puts:
            size = scope.groups[tail.group].block_size
            if not scope.groups[tail.group].is_mamba or tail.boundary % size == 0:
                continue
            if tail.boundary != boundaries.replay_boundary(scope, scope.requests[job.request]):
                continue
            lcm = boundaries.lcm_block_size(scope)
            start = tail.boundary // lcm * lcm
            ends = {(put.group, put.boundary) for put in job.puts}
            for index, group in enumerate(scope.groups):
                if group.is_mamba:
                    continue
                needed = supply.first_needed_column(scope, index, tail.boundary) * group.block_size
                for first in range(max(start, needed), tail.boundary, group.block_size):
                    end = min(first + group.block_size, tail.boundary)
                    full = first + group.block_size
                    if not any((index, reach) in ends for reach in range(end, full + 1)):
                        return (
                            f"job {job.job} stores the state at {tail.boundary}, "
                            f"but not tokens {first} to {end} of group {index}"
                        )
    return None


def what_is_due_is_stored(scope: Scope, state: State) -> str | None:
    """L6: see ``PROPERTIES``."""
    if not _undisturbed(scope) or not is_quiescent(scope, state):
        return None
    spec, request = scope.requests[0], state.requests[0]
    if request.outputs != spec.max_tokens:
        return None
    unit = math.lcm(*(group.block_size for group in scope.groups))
    whole = len(spec.prompt) // unit * unit
    for index, group in enumerate(scope.groups):
        if group.kind is not GroupKind.FULL_ATTENTION:
            continue
        ends = {*range(group.block_size, whole + 1, group.block_size)}
        for rank in range(scope.num_ranks):
            held = {len(e.prefix) for e in state.store if (e.rank, e.group) == (rank, index)}
            if ends - held:
                return (
                    f"at rest, rank {rank} has stored nothing of {spec.name!r} in group {index} "
                    f"at {sorted(ends - held)} tokens"
                )
    fresh = with_request(state, 0, attrs.evolve(request, outputs=0, load_failed=False))
    asking = attrs.evolve(scope, lookup=Lookup.SYNC, defer_frees=True)  # two steps need the latter
    found = store_lookup.ask(asking, fresh, 0).length
    due = _expected_of_a_resend(scope)
    if found < due:
        return (
            f"at rest, {spec.name!r} sent again would find {found} tokens in the store, not {due}"
        )
    return None


@lru_cache
def _expected_of_a_resend(scope: Scope) -> int:
    """Return what the first request's prompt, sent again, is expected to find in the store.

    From lengths alone, by no rule of the model (R31). That arithmetic knows states of one block
    size: of several, the first, to which chunks align.
    """
    sizes = [group.block_size for group in scope.groups if group.is_mamba]
    layout = Layout(
        tuple(g for g in scope.groups if not g.is_mamba or g.block_size == sizes[0]),
        scope.hash_unit,
        scope.token_budget,
        scope.retention_interval,
        scope.internal_checkpoints,
    )
    spec = scope.requests[0]
    return expected_hit(layout, len(spec.prompt), Resend(), max_tokens=spec.max_tokens).length


def _undisturbed(scope: Scope) -> bool:
    """Whether one request runs in a scope, and nothing keeps what it stores from the store."""
    return (
        len(scope.requests) == 1
        and boundaries.saves(scope.role)
        and STORE in scope.children
        and not scope.max_preemptions
        and not scope.max_failed_jobs
        and not scope.max_evictions
        and not scope.max_resets
    )


def pressure_clears(scope: Scope, state: State) -> str | None:
    """L5: see ``PROPERTIES``."""
    if not is_quiescent(scope, state):
        return None
    for rank, worker in enumerate(state.ranks):
        lasting = set(worker.skipping) - set(worker.closing)
        if lasting:
            names = [scope.requests[index].name for index in sorted(lasting)]
            return f"at rest, rank {rank} still skips the jobs of {names}"
    return None


PROPERTIES: tuple[Property, ...] = (
    Property(
        "S7",
        "handoffs hold their state",
        "Every block of an unfinished job holds, after the dispatched steps, the prefix that it is "
        "to be stored under.",
        "domain S7, R1, R30",
        handoffs_hold_their_state,
    ),
    Property(
        "S8",
        "store tells the truth",
        "Nothing past the end of prefill, no tail past the replay boundary and its margin, and no "
        "null block is stored; every stored value is what its key names.",
        "domain S8, R7, R18, R23, K04, K14, K23",
        store_tells_the_truth,
    ),
    Property(
        "S9",
        "no reuse while busy",
        "A pinned block is not free, a job pins every block that it may read, and a pin lasts "
        "until every rank has reported the job.",
        "domain S9, R6, R15",
        pins_wait_for_every_rank,
    ),
    Property(
        "S12",
        "stored where lookup looks",
        "A tail is stored with every attention block that a lookup at its boundary needs beside "
        "the state.",
        "domain S12, R16, R20",
        tails_are_stored_whole,
    ),
    Property(
        "L6",
        "what is due is stored",
        "In a scope without failures, preemptions, evictions and other requests: once a request "
        "has run to its end and the system is at rest, every rank has stored the attention blocks "
        "of every whole LCM of its prompt, and the prompt sent again finds in the store as much as "
        "is expected from lengths alone.",
        "domain L6, R16, R23, R29, R31, K13",
        what_is_due_is_stored,
    ),
    Property(
        "L5",
        "pressure clears",
        "At rest no rank skips jobs because the store was full, but those of a finished request "
        "that it will forget with the next step.",
        "domain L5, R18",
        pressure_clears,
    ),
)
"""In the order in which they are judged."""
