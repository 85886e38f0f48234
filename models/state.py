"""The state of the model: frozen values only, contents included.

Nothing here moves; the rules do. Values that an implementation can be asked about
(keys, markers, puts, pins) are those of ``observations``; what is here beside them is what
the rules need to remember.
"""

from __future__ import annotations

import attrs

from cowtail.models.actions import LoadOutcome
from cowtail.models.block_pool import Pool, initial_pool
from cowtail.models.observations import Copy, Handoff, Key, Marker, Put, Status, StoreEntry
from cowtail.models.scope import RequestSpec, Scope

Memory = tuple[tuple[str, ...], ...]
"""What a memory holds, by block and slot."""


@attrs.frozen
class CopyDue:
    """A copy-on-write that the next allocation performs: column and source block."""

    index: int
    source: int


@attrs.frozen
class RunningState:
    """Where the last chunk left a request's state in a Mamba group: its columns in the table.

    ``column`` is the running column of that chunk, ``state`` the one whose state counts: a
    scratch column if drafts were accepted.
    """

    column: int
    state: int


@attrs.frozen
class BlockTable:
    """One request's blocks in one group, by column.

    ``num_cached``: leading columns already considered for keys. The last five fields are the
    align-mode bookkeeping of a Mamba group: the registered tail, whether this generation has
    allocated before, the column of the state to copy from, the columns retired so far, and
    where the state is, if it is not simply in the column of the last computed token.
    """

    blocks: tuple[int, ...] = ()
    num_cached: int = 0
    copy_due: CopyDue | None = None
    marker: Marker | None = None
    allocated: bool = False
    last_state: int | None = None
    retired: int = 0
    running: RunningState | None = None


@attrs.frozen
class Answer:
    """What a lookup in the store found: the length supplied, in tokens, and how it is keyed.

    ``last_keys``: per group, the number of tokens in the key under which the store has the
    block that holds token ``length - 1``; it can lie past the hit, where attention was saved
    further. Empty if nothing was found.
    """

    length: int = 0
    last_keys: tuple[int, ...] = ()


@attrs.frozen
class Request:
    """A request as the scheduler holds it.

    ``computed`` is optimistic: advanced when a chunk is scheduled. ``placeholders`` counts
    tokens that scheduled steps will sample, ``drafted`` the drafts among them. ``junction`` is
    where another set's hit ended at the last admission, if that is beyond its own; else 0.
    ``worker_tables`` are the workers' own tables, by group; none while it does not run.
    ``handed_off`` is a ghost: the (group, boundary) pairs that the connector took in this
    generation, which no rule reads.
    ``answer`` is that of an asynchronous lookup, until an admission uses it; ``leased``: what it
    found is protected. ``load_failed``: it computes everything itself from now on. ``settles``:
    how a load ended that no pass has come to yet (see ``Promote``). ``prefilling``: it runs, and
    more of its prompt is to come; kept only where loads do not reserve for themselves.
    """

    tables: tuple[BlockTable, ...]
    status: Status = Status.NEW
    computed: int = 0
    outputs: int = 0
    placeholders: int = 0
    drafted: int = 0
    junction: int = 0
    worker_tables: tuple[tuple[int, ...], ...] = ()
    handed_off: tuple[tuple[int, int], ...] = ()
    answer: Answer | None = None
    leased: bool = False
    load_failed: bool = False
    settles: LoadOutcome | None = None
    prefilling: bool = False


@attrs.frozen
class ScheduledChunk:
    """Tokens [start, end) of a request in a pass or step, with the tables its workers will use.

    The last ``drafts`` of them are drafts, of which the first ``accepted`` will be accepted.
    ``running`` says, for each group, where a Mamba state is before the chunk. If the device
    exports the state at ``checkpoint`` tokens from within the chunk, ``exports`` holds the
    column that it goes into, for each Mamba group. ``keys``: what the chunk registered, as
    (block, key), under the policy that may withdraw it.
    """

    request: int
    start: int
    end: int
    samples: bool
    tables: tuple[tuple[int, ...], ...]
    stale: bool = False
    drafts: int = 0
    accepted: int = 0
    running: tuple[RunningState | None, ...] = ()
    checkpoint: int = 0
    exports: tuple[int | None, ...] = ()
    keys: tuple[tuple[int, Key], ...] = ()

    @property
    def settled(self) -> int:
        """Tokens computed once the drafts have their verdict."""
        return self.end - self.drafts + self.accepted


@attrs.frozen
class OpenPass:
    """A scheduling pass that has begun and not ended.

    ``registered``: keys that Mamba groups registered or moved in this pass, whose bytes exist
    only after its step. ``new_blocks``: blocks the step must zero. ``loads``: requests whose
    load was begun, ``settled`` those whose load was found to be over.
    """

    scheduled: tuple[ScheduledChunk, ...] = ()
    admitted: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    copies: tuple[Copy, ...] = ()
    offers: tuple[Handoff, ...] = ()
    registered: tuple[Key, ...] = ()
    new_blocks: tuple[int, ...] = ()
    loads: tuple[int, ...] = ()
    settled: tuple[int, ...] = ()


@attrs.frozen
class JobMeta:
    """A store job as it is shipped to the workers.

    ``tables`` are what a prefix save reads by position: attention and window tables at emission,
    per group; a Mamba group's entry is empty, because a state is never found by position (R30).
    ``prefill_end`` is where the connector's save window ended. ``live`` is false once the
    request's generation retired.
    """

    job: int
    request: int
    puts: tuple[Put, ...]
    save_to: int
    tables: tuple[tuple[int, ...], ...]
    blocks: tuple[int, ...]
    prefill_end: int
    live: bool = True


@attrs.frozen
class PinnedJob:
    """A job whose blocks stay referenced until every rank has reported it."""

    job: int
    request: int
    blocks: tuple[int, ...]
    ranks_owed: tuple[int, ...]


@attrs.frozen
class PendingLoad:
    """Tokens [start, end) that the connector ``child`` fills, until every rank has reported it.

    ``last_keys`` are those of the answer that the load goes by, empty for a peer, which knows no
    keys. ``failed``: some rank that reported could not load.
    """

    request: int
    child: int
    start: int
    end: int
    last_keys: tuple[int, ...]
    ranks_owed: tuple[int, ...]
    failed: bool = False


@attrs.frozen
class HeldRequest:
    """A finished request whose tables stay until every rank owed has loaded or sent them.

    ``sending``: it waits for sends; otherwise it was aborted while it loaded.
    """

    request: int
    sending: bool
    ranks_owed: tuple[int, ...]


@attrs.frozen
class DeviceStep:
    """A dispatched step. It stays in flight until the scheduler has processed its output.

    Once it has run, only its chunks are remembered.
    """

    chunks: tuple[ScheduledChunk, ...]
    copies: tuple[Copy, ...] = ()
    new_blocks: tuple[int, ...] = ()
    jobs: tuple[JobMeta, ...] = ()
    preempted: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    executed: bool = False


@attrs.frozen
class DeferredFree:
    """Freed blocks that stay referenced until ``steps`` more outputs have been processed."""

    steps: int
    blocks: tuple[int, ...]


@attrs.frozen
class Tracker:
    """What the connector knows of a request's progress, in tokens."""

    token_len: int = 0
    num_saved: int = 0
    prefill_end: int = 0
    tail_sent: bool = False


@attrs.frozen
class RankWorker:
    """One worker rank: its job queue, jobs done but unreported, durable offset per request.

    ``closing``: finished requests whose offset is forgotten once no live job of theirs is queued.
    ``loads``: requests whose load is queued; ``loaded``: those done with and unreported, each
    with whether all went well. ``sends``: (request, child) pairs being sent. ``skipping``, in
    the order of the scope: requests whose jobs do nothing while the store is full.
    """

    saved: tuple[int, ...]
    queue: tuple[JobMeta, ...] = ()
    outbox: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    loads: tuple[int, ...] = ()
    loaded: tuple[tuple[int, bool], ...] = ()
    sends: tuple[tuple[int, int], ...] = ()
    skipping: tuple[int, ...] = ()


@attrs.frozen
class Spent:
    """How much of the environment's bounds is used up."""

    preemptions: int = 0
    failed_jobs: int = 0
    repeated_reports: int = 0
    failed_loads: int = 0
    failed_lookups: int = 0
    evictions: int = 0
    expired_leases: int = 0
    resets: int = 0


@attrs.frozen
class State:
    """Everything. ``memory[block][slot]`` is the prefix that the bytes stand for.

    ``memory`` is that of every rank, unless loads have set them apart: then it is rank 0's, and
    ``other_memories`` those of the ranks after it. The load inbox holds (request, rank, went
    well), the send inbox (request, rank), both sorted by name and rank. ``foreign_done``:
    requests whose foreign put has happened.
    ``early_offers``: states keyed between passes, to be offered by the next one.
    ``submitted`` and ``admitted`` hold requests in the order of their submission and of their
    last admission to a pass.
    """

    pool: Pool
    requests: tuple[Request, ...]
    trackers: tuple[Tracker | None, ...]
    ranks: tuple[RankWorker, ...]
    memory: Memory
    submitted: tuple[int, ...] = ()
    admitted: tuple[int, ...] = ()
    open_pass: OpenPass | None = None
    steps: tuple[DeviceStep, ...] = ()
    deferred: tuple[DeferredFree, ...] = ()
    pins: tuple[PinnedJob, ...] = ()
    queued_tails: tuple[JobMeta, ...] = ()
    next_job: int = 0
    untold_finished: tuple[int, ...] = ()
    inbox: tuple[tuple[int, int], ...] = ()
    store: tuple[StoreEntry, ...] = ()
    spent: Spent = attrs.field(factory=Spent)
    failure: str = ""
    loads: tuple[PendingLoad, ...] = ()
    held: tuple[HeldRequest, ...] = ()
    load_inbox: tuple[tuple[int, int, bool], ...] = ()
    send_inbox: tuple[tuple[int, int], ...] = ()
    other_memories: tuple[Memory, ...] = ()
    foreign_done: tuple[int, ...] = ()
    untold_preempted: tuple[int, ...] = ()
    early_offers: tuple[Handoff, ...] = ()


def initial_state(scope: Scope) -> State:
    """Return the state in which nothing has been submitted."""
    num_requests = len(scope.requests)
    return State(
        pool=initial_pool(scope.num_blocks),
        requests=(Request(tables=tuple(BlockTable() for _ in scope.groups)),) * num_requests,
        trackers=(None,) * num_requests,
        ranks=(RankWorker(saved=(0,) * num_requests),) * scope.num_ranks,
        memory=(("",) * scope.slots_per_block,) * scope.num_blocks,
    )


def known_tokens(spec: RequestSpec, request: Request) -> int:
    """Return N: prompt plus processed output tokens."""
    return len(spec.prompt) + request.outputs


def tokens_in_flight(state: State, index: int) -> int:
    """Return F: tokens of a request in steps whose output is not processed, stale ones included."""
    return sum(
        chunk.end - chunk.start
        for step in state.steps
        for chunk in step.chunks
        if chunk.request == index
    )


def with_request(state: State, index: int, request: Request) -> State:
    """Return ``state`` with one request replaced."""
    requests = (*state.requests[:index], request, *state.requests[index + 1 :])
    return attrs.evolve(state, requests=requests)


def with_rank(state: State, rank: int, worker: RankWorker) -> State:
    """Return ``state`` with one rank replaced."""
    return attrs.evolve(state, ranks=(*state.ranks[:rank], worker, *state.ranks[rank + 1 :]))
