"""What must hold of bytes: copies, keyed blocks, hits, writers (S3-S6).

Contents are judged *ahead of the device*: the scheduler registers keys before the step that
computes them has run, so what counts is the memory after every dispatched step.
"""

from __future__ import annotations

from collections.abc import Iterator

from cowtail.models import boundaries, lookup
from cowtail.models.block_pool import cached_block
from cowtail.models.device import memory_ahead, run_step
from cowtail.models.observations import NULL_BLOCK, Key, Status
from cowtail.models.scope import GroupKind, Scope
from cowtail.models.state import JobMeta, ScheduledChunk, State, known_tokens
from cowtail.spec import supply
from cowtail.spec.contents import contradiction
from cowtail.spec.invariants.property import Property


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
    """Return what a joint hit lacks: every block of it must carry a key that says so."""
    for index, blocks in enumerate(hit.blocks):
        if not hit.length and any(blocks):
            return f"group {index} still supplies {blocks}"
    if not hit.length:
        return None
    supplied = {
        key
        for blocks in hit.blocks
        for column, block in enumerate(blocks)
        for key in state.pool.keys[block]
        if (len(key.prefix) - 1) // scope.groups[key.group].block_size == column
    }
    lacking = supply.missing(scope, tokens, 0, hit.length, supplied.__contains__)
    return lacking or _missing_proof(scope, state, tokens, hit.length)


def _missing_proof(scope: Scope, state: State, tokens: str, length: int) -> str | None:
    """Return which EAGLE group of full attention is not cached one unit beyond the hit."""
    align = boundaries.hit_alignment(scope)
    for index, group in enumerate(scope.groups):
        if not group.eagle or group.kind is not GroupKind.FULL_ATTENTION:
            continue
        proof = length + min(align, group.block_size)
        full = -(-proof // group.block_size) * group.block_size
        ends = range(proof, min(full, len(tokens)) + 1)
        if not any(cached_block(state.pool, Key(index, tokens[:end])) for end in ends):
            return f"group {index} drops its last unit and is not cached to {proof}"
    return None


def writers_are_alone(scope: Scope, state: State) -> str | None:
    """S5: see ``PROPERTIES``."""
    for chunk, jobs in _chunks_to_run(state):
        for group, block, length in _blocks_written(scope, chunk):
            wrong = _foreign_job(scope, chunk, group, block, length, jobs)
            if wrong:
                return _about_to_write(scope, chunk, group, block, wrong)
    for chunk in () if state.open_pass is None else state.open_pass.scheduled:
        for group, block, length in _blocks_written(scope, chunk):
            wrong = _foreign_holder(scope, state, chunk, group, block, length)
            if wrong:
                return _about_to_write(scope, chunk, group, block, wrong)
    return None


def _blocks_written(scope: Scope, chunk: ScheduledChunk) -> Iterator[tuple[int, int, int]]:
    """Yield group, block, and the length of the prefix that the block stands for afterwards."""
    for index, (group, table) in enumerate(zip(scope.groups, chunk.tables, strict=True)):
        size = group.block_size
        last = -(-chunk.end // size)
        if not group.is_mamba:
            for column in range(chunk.start // size, last):
                yield index, table[column], min(chunk.settled, (column + 1) * size)
            continue
        for draft in range(chunk.drafts + 1):
            yield index, table[last - 1 + draft], chunk.end - chunk.drafts + draft
        if chunk.exports and chunk.exports[index] is not None:
            yield index, table[chunk.exports[index] or 0], chunk.checkpoint
        passed = chunk.settled // size * size
        if chunk.drafts and passed > chunk.start:
            yield index, table[passed // size - 1], passed


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
    scope: Scope, state: State, chunk: ScheduledChunk, group: int, block: int, length: int
) -> str | None:
    """Return which request holds a block that ``chunk`` will fill with other tokens.

    Judged in the pass that schedules the chunk. Whoever takes the block in a later pass, for
    instance because the writer was aborted, uses it in a later step: the device is in order.
    """
    if block == NULL_BLOCK:
        return "it is the null block"
    tokens = scope.requests[chunk.request].tokens
    for index, request in enumerate(state.requests):
        if index == chunk.request or block not in request.tables[group].blocks:
            continue
        if scope.requests[index].tokens[:length] != tokens[:length]:
            return f"it is in a table of {scope.requests[index].name!r}"
    return None


def _foreign_job(
    scope: Scope, chunk: ScheduledChunk, group: int, block: int, length: int, jobs: list[JobMeta]
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
                intended = put.boundary == length and tokens[:length] == stored[:length]
            else:
                end = put.boundary
                intended = end <= chunk.start or tokens[:end] == stored[:end]
            if not intended:
                return f"job {job.job} stores it under the prefix of {put.boundary} tokens"
        saved = job.tables[group][: job.save_to // size]
        if block in saved:
            end = min((saved.index(block) + 1) * size, length)
            if tokens[:end] != stored[:end]:
                return f"job {job.job} saves it as part of {job.save_to} tokens"
    return None


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


PROPERTIES: tuple[Property, ...] = (
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
        "Every group can supply a joint hit, a Mamba state at its exact token, an EAGLE group one "
        "unit beyond it; at least one token is left to compute.",
        "domain S4, K35",
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
)
"""In the order in which they are judged."""
