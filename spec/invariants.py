"""What must hold in every state: S1-S12 and S15 of the domain, each with its reason.

Contents are judged *ahead of the device*: the scheduler registers keys before the step that
computes them has run, so what counts is the memory after every dispatched step.

Each function takes a scope and a state and returns why the property fails, or None. What each
catches is in ``broken_rules`` and in the kill matrix; a property that catches nothing is a defect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import attrs

from cowtail.models import boundaries, lookup, tables
from cowtail.models.device import memory_ahead, run_step
from cowtail.models.observations import NULL_BLOCK, Key, Status
from cowtail.models.scope import Scope
from cowtail.models.state import JobMeta, ScheduledChunk, State, known_tokens
from cowtail.spec import store_invariants
from cowtail.spec.contents import contradiction
from cowtail.spec.store_invariants import unfinished_jobs

Check = Callable[[Scope, State], str | None]


@attrs.frozen
class Property:
    """An invariant of the model: identifier, name, one sentence, source, and its check."""

    identifier: str
    name: str
    sentence: str
    source: str
    check: Check


def rules_do_not_fail(scope: Scope, state: State) -> str | None:
    """S0: no rule meets a state that it must never meet."""
    return state.failure or None


def references_equal_owners(scope: Scope, state: State) -> str | None:
    """S1: see ``PROPERTIES``."""
    owners: Counter[int] = Counter()
    for request in state.requests:
        for table in request.tables:
            owners.update(b for b in table.blocks if b != NULL_BLOCK)
    for pin in state.pins:
        if len(set(pin.blocks)) != len(pin.blocks):
            return f"job {pin.job} pins a block twice: {pin.blocks}"
        owners.update(pin.blocks)
    if state.open_pass is not None:
        for copy in state.open_pass.copies:
            owners.update((copy.source, copy.destination))
    counts = state.pool.ref_counts
    for block in range(len(counts)):
        if block == NULL_BLOCK:
            if counts[block] or owners[block] or block in state.pool.free:
                return "the null block is referenced, pinned or free"
        elif counts[block] != owners[block]:
            return f"block {block} has {counts[block]} references and {owners[block]} owners"
        elif (block in state.pool.free) != (counts[block] == 0):
            return f"block {block} with {counts[block]} references is misplaced in the free list"
    if len(set(state.pool.free)) != len(state.pool.free):
        return f"the free list holds a block twice: {state.pool.free}"
    return None


def keys_match_the_index(scope: Scope, state: State) -> str | None:
    """S2: see ``PROPERTIES``."""
    pool = state.pool
    if pool.keys[NULL_BLOCK]:
        return f"the null block is keyed {pool.keys[NULL_BLOCK]}"
    from_blocks = sorted((key, block) for block, keys in enumerate(pool.keys) for key in keys)
    if from_blocks != sorted(pool.index):
        return f"the index {pool.index} is not what the blocks say: {from_blocks}"
    if list(pool.index) != sorted(pool.index, key=lambda entry: entry[0]):
        return f"the index is out of order: {pool.index}"
    return None


def keys_tell_the_truth(scope: Scope, state: State) -> str | None:
    """S3: see ``PROPERTIES``."""
    if state.open_pass is not None:
        return None
    memory = memory_ahead(scope, state)
    for key, block in state.pool.index:
        wrong = contradiction(scope, memory, block, key)
        if wrong:
            return f"block {block} is keyed {key}, but {wrong}"
    return None


def hits_can_be_supplied(scope: Scope, state: State) -> str | None:
    """S4: see ``PROPERTIES``."""
    for spec, request in zip(scope.requests, state.requests, strict=True):
        if request.status not in (Status.WAITING, Status.PREEMPTED):
            continue
        tokens = spec.tokens[: known_tokens(spec, request)]
        hit = lookup.find_hit(scope, state.pool, tokens)
        if hit.length > len(tokens) - 1:
            return (
                f"{spec.name!r} hits {hit.length} of {len(tokens)} tokens: none is left to compute"
            )
        if hit.length % boundaries.hit_alignment(scope):
            align = boundaries.hit_alignment(scope)
            return f"{spec.name!r} hits {hit.length}, not a multiple of {align}"
        missing = _missing_from_hit(scope, state, tokens, hit)
        if missing:
            return f"{spec.name!r} hits {hit.length} tokens, but {missing}"
    return None


def _missing_from_hit(scope: Scope, state: State, tokens: str, hit: lookup.Hit) -> str | None:
    """Return what a joint hit lacks, judged on keys and not by the rules of the lookup."""
    for index, (group, blocks) in enumerate(zip(scope.groups, hit.blocks, strict=True)):
        if not hit.length:
            if any(blocks):
                return f"group {index} still supplies {blocks}"
            continue
        if group.is_mamba:
            held = state.pool.keys[blocks[-1]] if blocks else ()
            if Key(index, tokens[: hit.length]) not in held:
                return f"group {index} has no state at exactly {hit.length}"
            continue
        for column in range(-(-hit.length // group.block_size)):
            first = column * group.block_size
            needed = min(first + group.block_size, hit.length)
            held = state.pool.keys[blocks[column]] if column < len(blocks) else ()
            if not any(
                key.group == index
                and len(key.prefix) >= needed
                and key.prefix[:needed] == tokens[:needed]
                for key in held
            ):
                return f"group {index} has nothing for tokens {first} to {needed}"
    return None


def writers_are_alone(scope: Scope, state: State) -> str | None:
    """S5: see ``PROPERTIES``."""
    for chunk, jobs in _chunks_to_run(state):
        for group, table in enumerate(chunk.tables):
            for block in tables.blocks_written(scope, group, table, chunk.start, chunk.end):
                wrong = _foreign_job(scope, chunk, group, block, jobs)
                if wrong:
                    return _about_to_write(scope, chunk, group, block, wrong)
    for chunk in () if state.open_pass is None else state.open_pass.scheduled:
        for group, table in enumerate(chunk.tables):
            for block in tables.blocks_written(scope, group, table, chunk.start, chunk.end):
                wrong = _foreign_holder(scope, state, chunk, group, block)
                if wrong:
                    return _about_to_write(scope, chunk, group, block, wrong)
    return None


def _about_to_write(scope: Scope, chunk: ScheduledChunk, group: int, block: int, wrong: str) -> str:
    name = scope.requests[chunk.request].name
    return f"{name!r} will write block {block} (group {group}), but {wrong}"


def _chunks_to_run(state: State) -> Iterator[tuple[ScheduledChunk, list[JobMeta]]]:
    """Yield every chunk that has not run, with the jobs that may read before it does.

    A job shipped with a later step reads what that step leaves, so it is not among them.
    """
    queued = [job for rank in state.ranks for job in rank.queue if job.live]
    jobs = [*state.queued_tails, *queued]
    for step in state.steps:
        jobs = [*jobs, *step.jobs]
        if not step.executed:
            yield from ((chunk, jobs) for chunk in step.chunks)
    if state.open_pass is not None:
        yield from ((chunk, jobs) for chunk in state.open_pass.scheduled)


def _foreign_holder(
    scope: Scope, state: State, chunk: ScheduledChunk, group: int, block: int
) -> str | None:
    """Return which request holds a block that ``chunk`` will fill with other tokens.

    Judged in the pass that schedules the chunk. Whoever takes the block in a later pass, for
    instance because the writer was aborted, uses it in a later step: the device is in order.
    """
    if block == NULL_BLOCK:
        return "it is the null block"
    tokens = scope.requests[chunk.request].tokens
    covered = _tokens_in_block(scope, chunk, group, block)
    for index, request in enumerate(state.requests):
        if index == chunk.request or block not in request.tables[group].blocks:
            continue
        if scope.requests[index].tokens[:covered] != tokens[:covered]:
            return f"it is in a table of {scope.requests[index].name!r}"
    return None


def _foreign_job(
    scope: Scope, chunk: ScheduledChunk, group: int, block: int, jobs: list[JobMeta]
) -> str | None:
    """Return which job stores a block that ``chunk`` will overwrite as something else."""
    tokens = scope.requests[chunk.request].tokens
    size = scope.groups[group].block_size
    for job in jobs:
        stored = scope.requests[job.request].tokens
        for put in job.puts:
            if put.block != block or put.group != group:
                continue
            if scope.groups[group].is_mamba:
                intended = put.boundary == chunk.end and tokens[: chunk.end] == stored[: chunk.end]
            else:
                end = put.boundary
                intended = end <= chunk.start or tokens[:end] == stored[:end]
            if not intended:
                return f"job {job.job} stores it under the prefix of {put.boundary} tokens"
        saved = job.tables[group][: job.save_to // size]
        if block in saved:
            end = min((saved.index(block) + 1) * size, chunk.end)
            if tokens[:end] != stored[:end]:
                return f"job {job.job} saves it as part of {job.save_to} tokens"
    return None


def _tokens_in_block(scope: Scope, chunk: ScheduledChunk, group: int, block: int) -> int:
    """Return the length of the prefix that a block stands for once ``chunk`` is computed."""
    if scope.groups[group].is_mamba:
        return chunk.end
    end_of_block = (chunk.tables[group].index(block) + 1) * scope.groups[group].block_size
    return min(chunk.end, end_of_block)


def copies_read_what_they_mean(scope: Scope, state: State) -> str | None:
    """S6: see ``PROPERTIES``."""
    if state.open_pass is not None:
        for copy in state.open_pass.copies:
            for block in (copy.source, copy.destination):
                if block == NULL_BLOCK or state.pool.ref_counts[block] == 0:
                    return f"{copy} has an endpoint that nothing keeps"
    memory = state.memory
    for step in state.steps:
        if step.executed:
            continue
        for copy in step.copies:
            if copy.source in step.new_blocks:
                return f"{copy} reads a block that this step has just zeroed"
            if not any(memory[copy.source]):
                return f"{copy} reads a block that holds nothing"
        memory = run_step(scope, memory, step)
    return None


def markers_are_consumed_once(scope: Scope, state: State) -> str | None:
    """S10: see ``PROPERTIES``."""
    for spec, request in zip(scope.requests, state.requests, strict=True):
        twice = [h for h, count in Counter(request.handed_off).items() if count > 1]
        if twice:
            return f"{spec.name!r} handed off (group, boundary) {twice[0]} twice"
        for index, table in enumerate(request.tables):
            marker = table.marker
            if marker is None:
                continue
            if request.status is not Status.RUNNING:
                return f"{spec.name!r} is {request.status.value} and still has a marker"
            column = -(-marker.boundary // scope.groups[index].block_size) - 1
            if table.blocks[column] != marker.block:
                return f"the tail of {spec.name!r} is block {marker.block}, not in its column"
            if table.copy_due is None or table.copy_due.source != marker.block:
                return f"the tail of {spec.name!r} would be overwritten without a copy"
            if request.computed != marker.boundary:
                return f"{spec.name!r} passed the boundary of its tail and still has the marker"
    return None


def finished_requests_hold_nothing(scope: Scope, state: State) -> str | None:
    """S15: see ``PROPERTIES``."""
    for spec, request in zip(scope.requests, state.requests, strict=True):
        if request.status is Status.RUNNING:
            continue
        for table in request.tables:
            if table.blocks or table.marker is not None or table.copy_due is not None:
                return f"{spec.name!r} is {request.status.value} and still holds {table}"
    owed = {job.job for job in unfinished_jobs(state)}
    owed.update(done for rank in state.ranks for done in rank.outbox)
    owed.update(done for done, _ in state.inbox)
    for pin in state.pins:
        if pin.job not in owed:
            return f"job {pin.job} is pinned, but no rank will ever report it"
    return None


PROPERTIES: tuple[Property, ...] = (
    Property(
        "S0",
        "rules do not fail",
        "No rule meets a state that it must never meet: no double free, no key on the null "
        "block, no copy of a block other than the marked one.",
        "R9, domain A1-A5",
        rules_do_not_fail,
    ),
    Property(
        "S1",
        "conservation",
        "A block's references are its table entries, its pins and its pending copies; it is in "
        "the free list exactly if it has none.",
        "domain S1, R8, R15",
        references_equal_owners,
    ),
    Property(
        "S2",
        "keys match the index",
        "A key leads to a block exactly if the block carries the key; the null block carries none.",
        "domain S2",
        keys_match_the_index,
    ),
    Property(
        "S6",
        "copies read what they mean",
        "Both ends of a copy are kept until the step is dispatched, and the source still holds "
        "something when it is read.",
        "domain S6",
        copies_read_what_they_mean,
    ),
    Property(
        "S3",
        "key tells the truth",
        "Once every dispatched step has run, the bytes of a keyed block are that prefix.",
        "domain S3, R30",
        keys_tell_the_truth,
    ),
    Property(
        "S4",
        "hit is loadable",
        "Every group can supply a joint hit, a Mamba state at its exact token; at least one token "
        "is left to compute.",
        "domain S4",
        hits_can_be_supplied,
    ),
    Property(
        "S5",
        "copy-on-write isolation",
        "A step writes no block that another request holds under other tokens, or that a job "
        "stores as something else; requests with one prefix may share what a step computes.",
        "domain S5",
        writers_are_alone,
    ),
    Property(
        "S7",
        "handoffs hold their state",
        "Every block of an unfinished job holds, after the dispatched steps, the prefix that it is "
        "to be stored under.",
        "domain S7, R1, R30",
        store_invariants.handoffs_hold_their_state,
    ),
    Property(
        "S8",
        "store tells the truth",
        "Nothing past the end of prefill and no null block is stored, and every stored value is "
        "what its key names.",
        "domain S8, R7, R18",
        store_invariants.store_tells_the_truth,
    ),
    Property(
        "S9",
        "no reuse while busy",
        "A pinned block is not free, a job pins every block that it may read, and a pin lasts "
        "until every rank has reported the job.",
        "domain S9, R6, R15",
        store_invariants.pins_wait_for_every_rank,
    ),
    Property(
        "S10",
        "one tail, one handoff",
        "A marker is consumed once, by copy, finish, preemption or abort; no boundary is handed "
        "off twice in a generation.",
        "domain S10, R2, R9",
        markers_are_consumed_once,
    ),
    Property(
        "S11",
        "offsets are durable",
        "A rank's durable offset covers only what is in the store; a failed tail never moves it.",
        "domain S11, R19",
        store_invariants.offsets_are_durable,
    ),
    Property(
        "S12",
        "stored where lookup looks",
        "A tail is stored with every attention block that a lookup at its boundary needs beside "
        "the state.",
        "domain S12, R16, R20",
        store_invariants.tails_are_stored_whole,
    ),
    Property(
        "L6",
        "what is due is stored",
        "In a scope without failures, preemptions and other requests: once a request has run to "
        "its end and the system is at rest, every rank has stored its replay boundary, with the "
        "attention blocks up to it, and every whole LCM of its prompt.",
        "domain L6, R1, R16, R22",
        store_invariants.what_is_due_is_stored,
    ),
    Property(
        "S15",
        "finished requests hold nothing",
        "A request that is not running holds no blocks: its jobs' pins do, until the last rank.",
        "domain S15, R6",
        finished_requests_hold_nothing,
    ),
)
"""Every invariant, in the order in which it is checked: S6 is narrower than S3, hence before it."""
