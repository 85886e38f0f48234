"""The model as a machine for the explorer: successors, and packed keys under symmetry.

Two states share a key when no property and no future can tell them apart:

- **blocks** are interchangeable (allocation goes by position in the free list, not by id), so
  they are renamed in the order in which the state mentions them, free list first;
- **ranks** are interchangeable, so they are sorted by everything that a state says of them
  (not where resets are possible: those of the store ask rank 0);
- **requests of equal prompt and length** are interchangeable, so the smallest of the packed
  keys over their orders is taken (not where they load or are held: reports go by name);
- **job ids** only ever grow, so they are renamed in order;
- what nothing can read any more is left out: counts of finished requests, and bytes of free
  blocks without keys, unless loads are possible, for which blocks are not zeroed.

>>> from cowtail.spec.scopes import scope_named
>>> machine = LifecycleMachine(scope_named("lone_producer"))
>>> [action for action, _, _ in machine.successors(machine.initial())]
[submit(a)]
"""

from __future__ import annotations

import itertools
import marshal
from collections.abc import Iterator
from typing import Any

import attrs

from cowtail.models import lifecycle, peers, tables
from cowtail.models.actions import Action
from cowtail.models.errors import LifecycleError
from cowtail.models.observations import NULL_BLOCK, Key, Status
from cowtail.models.scope import Policy, Scope
from cowtail.models.state import (
    JobMeta,
    Memory,
    OpenPass,
    RankWorker,
    Request,
    ScheduledChunk,
    State,
    tokens_in_flight,
)

_MARSHAL_VERSION = 2  # later versions encode object identity, which differs between equal keys


class LifecycleMachine:
    """The model of one scope, as the explorer wants it.

    A rule that fails one of its own assertions does not stop the search: the successor
    carries the failure, nothing is enabled in it, and the invariant on failures reports it.
    """

    def __init__(self, scope: Scope, *, symmetry: bool = True) -> None:
        self.scope = scope
        self.symmetry = symmetry
        self._equal = _classes_of_equal_requests(scope) if symmetry else ()

    def initial(self) -> State:
        """Return the state in which nothing has been submitted."""
        return lifecycle.initial(self.scope)

    def successors(self, state: State) -> Iterator[tuple[Action, State, tuple[str, ...]]]:
        """Yield every enabled action with the state it leads to and what happened."""
        for action in lifecycle.enabled(self.scope, state):
            try:
                transition = lifecycle.step(self.scope, state, action)
            except LifecycleError as error:
                yield action, attrs.evolve(state, failure=f"{action}: {error}"), ("rule failed",)
            else:
                yield action, transition.state, transition.events

    def action_name(self, action: Action) -> str:
        """Return the event's name, without its arguments."""
        return action.name

    def is_quiescent(self, state: State) -> bool:
        """Whether the state may have no successors; a failure is reported by its invariant."""
        return bool(state.failure) or lifecycle.is_quiescent(self.scope, state)

    def key(self, state: State) -> bytes:
        """Return the packed search key."""
        if not self.symmetry:
            return _pack(self.scope, state, _Renaming.identity(self.scope, state))
        return min(
            _pack(self.scope, state, _Renaming.canonical(self.scope, state, order))
            for order in _request_orders(state, self._equal)
        )


def _classes_of_equal_requests(scope: Scope) -> tuple[tuple[int, ...], ...]:
    """Return the indices of requests that differ in name only, class by class.

    None where reports are consumed in the order of names: that order then matters.
    """
    if scope.loads or peers.retaining(scope):
        return ()
    classes: dict[object, list[int]] = {}
    for index, spec in enumerate(scope.requests):
        abortable = scope.may_abort is None or spec.name in scope.may_abort
        alike = (spec.tokens, spec.prompt, spec.accepts, spec.priority, abortable)
        classes.setdefault(alike, []).append(index)
    return tuple(tuple(members) for members in classes.values() if len(members) > 1)


def _request_orders(
    state: State, classes: tuple[tuple[int, ...], ...]
) -> Iterator[tuple[int, ...]]:
    """Yield the orders of requests to try: permutations within a class, told apart cheaply first.

    Members are sorted by what does not depend on block ids; only ties are permuted, and not
    even those while they are still new.
    """
    base = list(range(len(state.requests)))
    if not classes:
        yield tuple(base)
        return
    choices = []
    for members in classes:
        ranked = sorted(members, key=lambda index: _outline(state.requests[index]))
        runs = [
            list(run) for _, run in itertools.groupby(ranked, lambda i: _outline(state.requests[i]))
        ]
        choices.append(
            [
                [index for run in combination for index in run]
                for combination in itertools.product(
                    *(
                        [run]
                        if state.requests[run[0]].status is Status.NEW
                        else itertools.permutations(run)
                        for run in runs
                    )
                )
            ]
        )
    for combination in itertools.product(*choices):
        order = base.copy()
        for members, chosen in zip(classes, combination, strict=True):
            for position, index in zip(members, chosen, strict=True):
                order[position] = index
        yield tuple(order)


def _outline(request: Request) -> tuple[object, ...]:
    if request.status in (Status.FINISHED, Status.NEW):
        return (request.status.value,)
    return (
        request.status.value,
        request.computed,
        request.outputs,
        request.placeholders,
        tuple(tuple(b != NULL_BLOCK for b in table.blocks) for table in request.tables),
    )


@attrs.frozen
class _Renaming:
    """New names for everything interchangeable, each list indexed by the old name.

    ``requests`` and ``ranks`` list the old indices in their new order.
    """

    requests: tuple[int, ...]
    ranks: tuple[int, ...]
    block: list[int]
    request: list[int]
    rank: list[int]
    job: dict[int, int]
    index_of: dict[str, int]

    @classmethod
    def identity(cls, scope: Scope, state: State) -> _Renaming:
        """Rename nothing but job ids, which would never repeat."""
        requests = tuple(range(len(state.requests)))
        ranks = tuple(range(len(state.ranks)))
        index_of = {spec.name: index for index, spec in enumerate(scope.requests)}
        return cls(
            requests,
            ranks,
            list(range(len(state.memory))),
            list(requests),
            list(ranks),
            _job_names(state),
            index_of,
        )

    @classmethod
    def canonical(cls, scope: Scope, state: State, order: tuple[int, ...]) -> _Renaming:
        """Rename blocks, ranks and jobs canonically, given the order of requests."""
        request = _inverse(order)
        job = _job_names(state)
        block = _block_names(state, order)
        ranks = tuple(range(len(state.ranks)))
        if not scope.max_resets:
            ranks = _rank_order(scope, state, order, block, request, job)
        index_of = {spec.name: index for index, spec in enumerate(scope.requests)}
        return cls(order, ranks, block, request, _inverse(ranks), job, index_of)


def _inverse(order: tuple[int, ...]) -> list[int]:
    names = [0] * len(order)
    for new, old in enumerate(order):
        names[old] = new
    return names


def _pack(scope: Scope, state: State, new: _Renaming) -> bytes:
    """Return the state, renamed and without what cannot be read, as bytes."""
    block, request, job = new.block, new.request, new.job
    pool = state.pool
    live = _blocks_that_can_be_read(scope, state)
    memories = _memories_apart(state, live)
    ordered = [memories[r] for r in new.ranks] if memories else [state.memory]
    packed: Any = (
        tuple(block[b] for b in pool.free),
        tuple(
            (
                pool.ref_counts[b],
                tuple((key.group, key.prefix) for key in pool.keys[b]),
                tuple(memory[b] for memory in ordered) if b in live else (),
            )
            for b in _inverse(tuple(block))
        ),
        tuple((key.group, key.prefix, block[b]) for key, b in _shared_keys(state)),
        tuple(_request(scope, state, index, block) for index in new.requests),
        _queues(scope, state, request),
        None if state.open_pass is None else _pass(state.open_pass, new),
        tuple(
            (
                step.executed,
                tuple(_chunk(chunk, new) for chunk in step.chunks),
                tuple((c.group, block[c.source], block[c.destination]) for c in step.copies),
                tuple(block[b] for b in step.new_blocks),
                tuple(_job(meta, new) for meta in step.jobs),
                tuple(request[index] for index in step.preempted),
                tuple(request[index] for index in step.finished),
            )
            for step in state.steps
        ),
        tuple((free.steps, tuple(block[b] for b in free.blocks)) for free in state.deferred),
        tuple(
            (
                job[pin.job],
                request[pin.request],
                tuple(block[b] for b in pin.blocks),
                tuple(sorted(new.rank[r] for r in pin.ranks_owed)),
            )
            for pin in state.pins
        ),
        tuple(_job(meta, new) for meta in state.queued_tails),
        tuple(request[index] for index in state.untold_finished),
        tuple(sorted((job[done], new.rank[rank]) for done, rank in state.inbox)),
        tuple(
            (
                tuple(_job(meta, new) for meta in state.ranks[r].queue),
                tuple(job[done] for done in state.ranks[r].outbox),
                tuple(state.ranks[r].saved[index] for index in new.requests),
                tuple(request[index] for index in state.ranks[r].closing),
                _loads_and_sends(state.ranks[r], request),
                tuple((e.group, e.prefix, e.content) for e in state.store if e.rank == r),
            )
            for r in new.ranks
        ),
        _waits(state, new),
        attrs.astuple(state.spent, recurse=False),
        state.failure,
    )
    return marshal.dumps(packed, _MARSHAL_VERSION)


def _queues(scope: Scope, state: State, request: list[int]) -> tuple[object, ...]:
    """Return the orders among requests that a policy, or a reset, goes by."""
    if scope.policy is Policy.ANY and not scope.max_resets:
        return ()
    running = tuple(
        request[i] for i in state.admitted if state.requests[i].status is Status.RUNNING
    )
    if scope.policy is not Policy.PRIORITY:
        return running
    waiting = (
        request[i] for i in state.submitted if state.requests[i].status is not Status.FINISHED
    )
    return running, tuple(waiting)


def _loads_and_sends(rank: RankWorker, request: list[int]) -> tuple[object, ...]:
    """Return what a rank does beside its jobs; nothing, mostly."""
    if not (rank.loads or rank.loaded or rank.sends or rank.skipping):
        return ()
    return (
        tuple(request[index] for index in rank.loads),
        tuple((request[index], went_well) for index, went_well in rank.loaded),
        tuple(sorted((request[index], child) for index, child in rank.sends)),
        tuple(sorted(request[index] for index in rank.skipping)),
    )


def _waits(state: State, new: _Renaming) -> tuple[object, ...]:
    """Return what loads, sends and the store's outside have to say beside requests and ranks."""
    waiting = state.loads or state.held or state.load_inbox or state.send_inbox
    if not (waiting or state.foreign_done or state.untold_preempted):
        return ()
    request, rank = new.request, new.rank
    return (
        tuple(
            (
                request[load.request],
                load.child,
                load.start,
                load.end,
                load.last_keys,
                tuple(sorted(rank[r] for r in load.ranks_owed)),
                load.failed,
            )
            for load in state.loads
        ),
        tuple(
            (
                request[held.request],
                held.sending,
                tuple(sorted(rank[r] for r in held.ranks_owed)),
            )
            for held in state.held
        ),
        tuple(sorted((request[i], rank[r], went_well) for i, r, went_well in state.load_inbox)),
        tuple(sorted((request[index], rank[r]) for index, r in state.send_inbox)),
        tuple(sorted(request[index] for index in state.foreign_done)),
        tuple(request[index] for index in state.untold_preempted),
    )


def _memories_apart(state: State, live: set[int]) -> tuple[Memory, ...]:
    """Return every rank's memory, if they differ in what can be read; else nothing."""
    if not state.other_memories:
        return ()
    memories = (state.memory, *state.other_memories)
    apart = any(memory[b] != state.memory[b] for memory in memories for b in live)
    return memories if apart else ()


def _block_names(state: State, order: tuple[int, ...]) -> list[int]:
    """Return the new name of each block: in order of first mention, free list first."""
    names = {NULL_BLOCK: NULL_BLOCK}
    for block in state.pool.free:
        names.setdefault(block, len(names))
    for index in order:
        for table in state.requests[index].tables:
            for block in table.blocks:
                names.setdefault(block, len(names))
    for free in state.deferred:
        for block in free.blocks:
            names.setdefault(block, len(names))
    for pin in state.pins:
        for block in pin.blocks:
            names.setdefault(block, len(names))
    if state.open_pass is not None:
        for copy in state.open_pass.copies:
            names.setdefault(copy.source, len(names))
            names.setdefault(copy.destination, len(names))
    for block in range(len(state.memory)):  # leaked blocks, which only a broken rule leaves
        names.setdefault(block, len(names))
    return [names[block] for block in range(len(state.memory))]


def _job_names(state: State) -> dict[int, int]:
    """Return the rank of each job id that the state still mentions."""
    mentioned = {pin.job for pin in state.pins}
    mentioned.update(meta.job for meta in state.queued_tails)
    mentioned.update(meta.job for step in state.steps for meta in step.jobs)
    mentioned.update(done for done, _ in state.inbox)
    for rank in state.ranks:
        mentioned.update(meta.job for meta in rank.queue)
        mentioned.update(rank.outbox)
    return {job: name for name, job in enumerate(sorted(mentioned))}


def _rank_order(
    scope: Scope,
    state: State,
    order: tuple[int, ...],
    block: list[int],
    request: list[int],
    job: dict[int, int],
) -> tuple[int, ...]:
    """Return the ranks in canonical order: by everything that the state says of each."""
    if len(state.ranks) == 1:
        return (0,)
    memories: tuple[Memory, ...] = ()
    blocks: list[int] = []
    if state.other_memories:
        live = _blocks_that_can_be_read(scope, state)
        memories = _memories_apart(state, live)
        blocks = sorted(live, key=lambda b: block[b])

    def said_of(rank: int) -> tuple[object, ...]:
        worker = state.ranks[rank]
        return (
            tuple((job[meta.job], meta.live) for meta in worker.queue),
            tuple(job[done] for done in worker.outbox),
            tuple(worker.saved[index] for index in order),
            tuple(request[index] for index in worker.closing),
            _loads_and_sends(worker, request),
            _waited_for(state, rank, request),
            tuple(memories[rank][b] for b in blocks) if memories else (),
            tuple(rank in pin.ranks_owed for pin in state.pins),
            tuple(job[done] for done, r in state.inbox if r == rank),
            tuple((e.group, e.prefix, e.content) for e in state.store if e.rank == rank),
        )

    return tuple(sorted(range(len(state.ranks)), key=said_of))


def _waited_for(state: State, rank: int, request: list[int]) -> tuple[object, ...]:
    """Return what loads and sends say of a rank; nothing, mostly."""
    if not (state.loads or state.held or state.load_inbox or state.send_inbox):
        return ()
    return (
        tuple(rank in load.ranks_owed for load in state.loads),
        tuple(rank in held.ranks_owed for held in state.held),
        sorted((request[i], well) for i, r, well in state.load_inbox if r == rank),
        sorted(request[index] for index, r in state.send_inbox if r == rank),
    )


def _blocks_that_can_be_read(scope: Scope, state: State) -> set[int]:
    """Return the blocks whose bytes matter: referenced, keyed, or wanted by a job or a step.

    All, if loads are possible: what they do not fill of a block they leave as it is.
    """
    pool = state.pool
    if scope.loads:
        return set(range(1, len(state.memory)))
    live = {b for b, count in enumerate(pool.ref_counts) if count or pool.keys[b]}
    metas = [*state.queued_tails, *(meta for rank in state.ranks for meta in rank.queue)]
    for step in state.steps:
        metas += step.jobs
        live.update(copy.source for copy in step.copies)
        live.update(b for chunk in step.chunks for table in chunk.tables for b in table)
    for index in range(len(state.requests)):
        live.update(b for _, blocks in _workers_only(scope, state, index) for b in blocks)
    for meta in metas:
        live.update(put.block for put in meta.puts)
        live.update(b for table in meta.tables for b in table)
    return live


def _shared_keys(state: State) -> list[tuple[Key, int]]:
    """Return the index entries of keys that several blocks carry: their order is a fact."""
    index = state.pool.index
    return [
        entry
        for i, entry in enumerate(index)
        if (i and index[i - 1][0] == entry[0])
        or (i + 1 < len(index) and index[i + 1][0] == entry[0])
    ]


def _workers_only(scope: Scope, state: State, index: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return what a later step can find in the workers' tables and not in the scheduler's.

    By group, from the first column on that a step from the processed tokens on can touch. The
    columns before it make no difference any more.
    """
    request = state.requests[index]
    if not request.worker_tables:
        return []
    processed = max(0, request.computed - tokens_in_flight(state, index))
    apart = []
    for group, (spec, known, table) in enumerate(
        zip(scope.groups, request.worker_tables, request.tables, strict=True)
    ):
        first = tables.first_column_touched(spec, processed)
        if known[first:] != table.blocks[first : len(known)]:
            apart.append((group, known[first:]))
    return apart


def _request(scope: Scope, state: State, index: int, block: list[int]) -> tuple[object, ...]:
    request = state.requests[index]
    if request.status in (Status.FINISHED, Status.NEW):
        handed_twice = len(set(request.handed_off)) < len(request.handed_off)
        ran_to_its_end = request.status is Status.FINISHED and request.outputs
        held = tuple(tuple(block[b] for b in table.blocks) for table in request.tables)
        return (request.status.value, handed_twice, ran_to_its_end, held if any(held) else ())
    tracker = state.trackers[index]
    return (
        request.status.value,
        request.computed,
        request.outputs,
        request.placeholders,
        request.drafted,
        request.junction,
        tuple(
            (group, tuple(block[b] for b in blocks))
            for group, blocks in _workers_only(scope, state, index)
        ),
        tuple(sorted(request.handed_off)),
        None if request.answer is None else attrs.astuple(request.answer),
        request.leased,
        request.load_failed,
        None if tracker is None else attrs.astuple(tracker, recurse=False),
        tuple(
            (
                tuple(block[b] for b in table.blocks),
                table.num_cached,
                None
                if table.copy_due is None
                else (table.copy_due.index, block[table.copy_due.source]),
                None
                if table.marker is None
                else (block[table.marker.block], table.marker.boundary),
                table.allocated,
                table.last_state,
                table.retired,
                None if table.running is None else attrs.astuple(table.running),
            )
            for table in request.tables
        ),
    )


def _chunk(chunk: ScheduledChunk, new: _Renaming) -> tuple[object, ...]:
    return (
        new.request[chunk.request],
        chunk.start,
        chunk.end,
        chunk.samples,
        chunk.stale,
        tuple(tuple(new.block[b] for b in table) for table in chunk.tables),
        (chunk.drafts, chunk.accepted) if chunk.drafts else (),
        tuple(None if left is None else attrs.astuple(left) for left in chunk.running),
        chunk.checkpoint,
        chunk.exports,
        tuple((new.block[b], key.group, key.prefix) for b, key in chunk.keys),
    )


def _pass(opened: OpenPass, new: _Renaming) -> tuple[object, ...]:
    return (
        tuple(_chunk(chunk, new) for chunk in opened.scheduled),
        tuple(new.request[index] for index in opened.admitted),
        tuple(new.request[index] for index in opened.preempted),
        tuple((c.group, new.block[c.source], new.block[c.destination]) for c in opened.copies),
        tuple(
            (new.request[new.index_of[o.request]], o.group, new.block[o.block], o.boundary)
            for o in opened.offers
        ),
        tuple((key.group, key.prefix) for key in opened.registered),
        tuple(new.block[b] for b in opened.new_blocks),
        tuple(new.request[index] for index in opened.loads),
    )


def _job(meta: JobMeta, new: _Renaming) -> tuple[object, ...]:
    return (
        new.job[meta.job],
        new.request[meta.request],
        tuple((put.group, new.block[put.block], put.boundary) for put in meta.puts),
        meta.save_to,
        tuple(tuple(new.block[b] for b in table) for table in meta.tables),
        meta.prefill_end,
        meta.live,
    )
