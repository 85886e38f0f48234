"""What an implementation can be asked about after an action.

Plain values, compared for equality at the ``exact`` level. They name blocks by id, requests
by name, and bytes by the token prefix that they stand for: ``""`` for a slot never written
since its block was last zeroed, ``"?"`` for bytes that stand for no prefix of the scope.
"""

from __future__ import annotations

import enum

import attrs

NULL_BLOCK = 0
"""Id of the null block: never counted, never freed, never keyed, never stored."""

GARBAGE = "?"
"""Content that is no prefix of any request in the scope."""


class Status(enum.StrEnum):
    """Where a request is, as the scheduler sees it.

    ``LOADING``: it has blocks and waits for a connector to fill them; ``LOADED``: they are
    filled, and it waits to be scheduled.
    """

    NEW = "new"
    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@attrs.frozen(order=True, repr=False)
class Key:
    """A prefix-cache key: the hash of ``prefix`` within one group. Groups never alias."""

    group: int
    prefix: str

    def __repr__(self) -> str:
        """Print as ``abc@group1``."""
        return f"{self.prefix}@group{self.group}"


@attrs.frozen
class Marker:
    """A registered partial tail: the table's own block, and the boundary whose state it holds."""

    block: int
    boundary: int


@attrs.frozen
class Copy:
    """A copy-on-write that the next step performs before its forward pass."""

    group: int
    source: int
    destination: int


@attrs.frozen
class Chunk:
    """Tokens [start, end) of a request, scheduled in one pass."""

    request: str
    start: int
    end: int


@attrs.frozen
class Handoff:
    """A boundary state handed to the connector: the exact block, and its token count."""

    request: str
    group: int
    block: int
    boundary: int


@attrs.frozen
class Put:
    """A block that a job stores under the key of the prefix that ends at ``boundary`` tokens."""

    group: int
    block: int
    boundary: int


@attrs.frozen
class StoreJob:
    """A store job as the connector emits it.

    ``puts`` are the boundary puts, in order. ``save_to`` is the length, in tokens and a
    multiple of the LCM, that the normal prefix save should reach; 0 for a handoff-only job
    (R10). ``blocks`` are the pinned blocks in pinning order, each once (R8).
    """

    job: int
    request: str
    puts: tuple[Put, ...]
    save_to: int
    blocks: tuple[int, ...]


@attrs.frozen
class Pin:
    """The blocks that a job keeps referenced, and the ranks that have not reported it yet."""

    job: int
    blocks: tuple[int, ...]
    ranks_owed: tuple[int, ...]


@attrs.frozen(order=True)
class StoreEntry:
    """One value in the external store, as one rank put it.

    ``content`` is what the bytes stand for: one prefix a slot for attention (from the
    block's first slot through the key's last token), a single prefix for a recurrent state.
    """

    rank: int
    group: int
    prefix: str
    content: tuple[str, ...]


@attrs.frozen
class Load:
    """Tokens [start, end) of a request, to be filled by the connector ``child``."""

    request: str
    child: int
    start: int
    end: int


@attrs.frozen
class LoadView:
    """A load that not every rank has reported. ``failed``: some rank that did could not load."""

    request: str
    ranks_owed: tuple[int, ...]
    failed: bool


@attrs.frozen
class Held:
    """A finished request whose blocks stay until every rank owed has sent, or loaded, them."""

    request: str
    ranks_owed: tuple[int, ...]


@attrs.frozen
class RequestView:
    """A request as the scheduler holds it.

    ``computed`` is optimistic (advanced when scheduled). ``known`` counts prompt and processed
    output tokens. ``tables`` holds block ids per group, ``markers`` the tail per group;
    ``worker_tables`` is the workers' own copy of the tables, as the last step sent left it.
    ``found`` is the answer of a lookup that has not been used yet, in tokens; ``leased``:
    what it found is protected from eviction. ``junction``: where a sibling's hit ended, or 0.
    """

    name: str
    status: Status
    computed: int
    known: int
    tables: tuple[tuple[int, ...], ...]
    markers: tuple[Marker | None, ...]
    worker_tables: tuple[tuple[int, ...], ...] = ()
    found: int | None = None
    leased: bool = False
    junction: int = 0


@attrs.frozen
class Effects:
    """What the last action did, beyond moving state.

    ``hit`` is what the local cache supplies, ``external`` where the load that was begun will
    end, in tokens. ``reset``: whether the prefix cache could be reset.
    """

    hit: int | None = None
    external: int | None = None
    chunk: Chunk | None = None
    copies: tuple[Copy, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    jobs: tuple[StoreJob, ...] = ()
    loads: tuple[Load, ...] = ()
    puts: tuple[StoreEntry, ...] = ()
    released: tuple[int, ...] = ()
    reset: bool | None = None


@attrs.frozen
class RankView:
    """One rank: jobs queued, jobs done but not reported, and the durable offset per request.

    ``loads`` are queued, ``loaded`` done but not reported, by request. ``sends``: (request,
    child) pairs that are still being sent. ``skipping``: requests whose jobs are skipped
    while the store is full; empty unless there is pressure.
    """

    queue: tuple[int, ...]
    outbox: tuple[int, ...]
    saved: tuple[int, ...]
    loads: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    sends: tuple[tuple[str, int], ...] = ()
    skipping: tuple[str, ...] = ()


@attrs.frozen
class Observation:
    """Everything that is compared after one action, at the ``exact`` level.

    ``ref_counts`` and ``keys`` are indexed by block id (keys: primary first, then extras in
    insertion order); ``free`` is the free list, head first. ``queued_tails`` are job ids
    registered at finish and not yet flushed to the workers. ``inbox`` holds the (job, rank)
    reports that arrived and were not consumed, sorted; ``load_inbox`` and ``send_inbox`` the
    (request, rank) ones. ``deferred``: freed blocks that wait, and for how many steps.
    ``untold``: requests that finished and of which the workers were not told, in order.
    ``memory`` is indexed by block and slot. ``store`` is sorted.
    """

    requests: tuple[RequestView, ...]
    ref_counts: tuple[int, ...]
    free: tuple[int, ...]
    keys: tuple[tuple[Key, ...], ...]
    pins: tuple[Pin, ...]
    queued_tails: tuple[int, ...]
    steps_in_flight: int
    ranks: tuple[RankView, ...]
    inbox: tuple[tuple[int, int], ...]
    memory: tuple[tuple[str, ...], ...]
    store: tuple[StoreEntry, ...]
    effects: Effects = attrs.field(factory=Effects)
    loads: tuple[LoadView, ...] = ()
    held: tuple[Held, ...] = ()
    load_inbox: tuple[tuple[str, int], ...] = ()
    send_inbox: tuple[tuple[str, int], ...] = ()
    deferred: tuple[tuple[int, tuple[int, ...]], ...] = ()
    untold: tuple[str, ...] = ()
