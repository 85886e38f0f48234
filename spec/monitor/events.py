"""The events of a log from the field: one JSON object a line, one class an event.

An engine that serves is recorded as what its scheduler's process does to blocks, tables, keys,
tails, jobs and loads, in the order in which it does it. Token ids are not recorded, nor are
block hashes. Requests are numbered in the order in which they were first seen.

The calls into the scheduler (``Settled.call``) are the points at which books must balance: within
a call, a block may have been taken for a table that has not been written yet.

>>> from cowtail.spec.monitor.reading import parse
>>> parse('{"event": "allocate", "blocks": [3, 4]}', 2)
Allocate(blocks=[3, 4])
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

FORMAT = 1
"""The version of the format that this package writes and reads."""


def _meta(shape: str, doc: str, model: str, vllm: str) -> dict[str, str]:
    """Describe a field: the shape of its JSON value, what it says, and where both sides have it."""
    return {"shape": shape, "doc": doc, "model": model, "vllm": vllm}


_REQUEST = ("int", "number of the request", "`State.requests`", "`Request.request_id`")
_GROUP = ("int", "KV cache group", "`Scope.groups`", "`SingleTypeKVCacheManager.kv_cache_group_id`")
_JOB = ("int", "number of the store job", "`StoreJob.job`", "`ReqMeta.store_job_id`")
_CONNECTOR = (
    "int",
    "which of several connectors, from 0",
    "`Scope.children`",
    "child of `MultiConnector`",
)
_BOUNDARY = (
    "int",
    "boundary, in tokens",
    "`Handoff.boundary`",
    "boundary tokens of the marker or offer",
)
_KEYS = (
    "ints",
    "the keys: Python's hash of each, which stands for it in this log only",
    "`Pool.index`",
)


@attrs.frozen(kw_only=True)
class Event:
    """Base of all events; ``event`` is the name in the log."""

    event: ClassVar[str] = ""


@attrs.frozen(kw_only=True)
class Header(Event):
    """The first line: which engine this is, and its sizes."""

    event: ClassVar[str] = "log"
    format: int = attrs.field(metadata=_meta("int", "version of the format", "", ""))
    cowtail: str = attrs.field(metadata=_meta("str", "version of the recorder", "", ""))
    vllm: str = attrs.field(metadata=_meta("str", "release", "", "`vllm.__version__`"))
    pid: int = attrs.field(metadata=_meta("int", "process", "", "process that built the scheduler"))
    role: str = attrs.field(
        metadata=_meta("str", "role of the process", "", "engine core; workers build no scheduler")
    )
    scheduler: str = attrs.field(
        metadata=_meta("str", "class of the scheduler", "", "`Scheduler`, `AsyncScheduler`")
    )
    kv_role: str = attrs.field(
        metadata=_meta(
            "str", "role, `none` without a connector", "`Scope.role`", "`KVTransferConfig.kv_role`"
        )
    )
    connectors: list[str] = attrs.field(
        metadata=_meta(
            "strs",
            "classes of the connectors",
            "`Scope.children`",
            "scheduler side of each connector",
        )
    )
    num_blocks: int = attrs.field(
        metadata=_meta(
            "int",
            "blocks, the null block included",
            "`Scope.num_blocks`",
            "`BlockPool.num_gpu_blocks`",
        )
    )
    null_block: int = attrs.field(
        metadata=_meta("int", "the null block", "`NULL_BLOCK`", "`BlockPool.null_block`")
    )
    num_ranks: int = attrs.field(
        metadata=_meta(
            "int", "ranks that report each job", "`Scope.num_ranks`", "`parallel_config.world_size`"
        )
    )
    hit_alignment: int = attrs.field(
        metadata=_meta(
            "int",
            "what hits in the store are multiples of, in tokens; 0 without a store",
            "`boundaries.hit_alignment`",
            "`_hash_block_size` or `_block_size` of the store's scheduler",
        )
    )
    groups: list[Any] = attrs.field(
        metadata=_meta(
            "groups",
            "kind and block size in tokens of each group",
            "`Scope.groups`",
            "`KVCacheConfig.kv_cache_groups`",
        )
    )
    defers_frees: bool = attrs.field(
        metadata=_meta(
            "bool",
            "frees wait for the steps in flight",
            "`Scope.defer_frees`",
            "`Scheduler.defer_block_free`",
        )
    )


@attrs.frozen(kw_only=True)
class Submit(Event):
    """A request arrives. ``id`` is what it is called elsewhere."""

    event: ClassVar[str] = "submit"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    id: str = attrs.field(
        metadata=_meta(
            "str", "identifier of the request", "`RequestSpec.name`", "`Request.request_id`"
        )
    )
    num_prompt_tokens: int = attrs.field(
        metadata=_meta(
            "int",
            "length of the prompt, in tokens",
            "`RequestSpec.prompt`",
            "`Request.num_prompt_tokens`",
        )
    )


@attrs.frozen(kw_only=True)
class Lookup(Event):
    """The store answers what it has beyond the local hit."""

    event: ClassVar[str] = "lookup"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    connector: int = attrs.field(metadata=_meta(*_CONNECTOR))
    num_tokens: int = attrs.field(
        metadata=_meta(
            "int",
            "known tokens of the request",
            "`RequestState.outputs` and prompt",
            "`Request.num_tokens`",
        )
    )
    local: int = attrs.field(
        metadata=_meta(
            "int", "tokens found locally", "`Lookup`", "`num_computed_tokens` asked with"
        )
    )
    external: int | None = attrs.field(
        metadata=_meta(
            "int?",
            "tokens found beyond these; null: no answer yet",
            "`store_lookup.ask`",
            "`get_num_new_matched_tokens`",
        )
    )


@attrs.frozen(kw_only=True)
class Allocate(Event):
    """Blocks leave the free list, each with one reference."""

    event: ClassVar[str] = "allocate"
    blocks: list[int] = attrs.field(
        metadata=_meta(
            "ints", "the blocks, in the order given", "`Pool.free`", "`BlockPool.get_new_blocks`"
        )
    )


@attrs.frozen(kw_only=True)
class Touch(Event):
    """Each block gets one more reference."""

    event: ClassVar[str] = "touch"
    blocks: list[int] = attrs.field(
        metadata=_meta(
            "ints", "the blocks, but for the null block", "`Pool.ref_counts`", "`BlockPool.touch`"
        )
    )


@attrs.frozen(kw_only=True)
class Free(Event):
    """Each block loses one reference."""

    event: ClassVar[str] = "free"
    blocks: list[int] = attrs.field(
        metadata=_meta(
            "ints",
            "the blocks, but for the null block",
            "`Pool.ref_counts`",
            "`BlockPool.free_blocks`",
        )
    )


@attrs.frozen(kw_only=True)
class Keyed(Event):
    """Keys now find blocks."""

    event: ClassVar[str] = "key"
    keys: list[int] = attrs.field(metadata=_meta(*_KEYS, "`BlockHashToBlockMap.insert`"))
    blocks: list[int] = attrs.field(
        metadata=_meta("ints", "the block of each key", "`Pool.index`", "`KVCacheBlock.block_id`")
    )


@attrs.frozen(kw_only=True)
class Unkeyed(Event):
    """Keys no longer find blocks."""

    event: ClassVar[str] = "unkey"
    keys: list[int] = attrs.field(metadata=_meta(*_KEYS, "`BlockHashToBlockMap.pop`"))
    blocks: list[int] = attrs.field(
        metadata=_meta("ints", "the block of each key", "`Pool.index`", "`KVCacheBlock.block_id`")
    )


@attrs.frozen(kw_only=True)
class Table(Event):
    """A block table has changed."""

    event: ClassVar[str] = "table"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    group: int = attrs.field(metadata=_meta(*_GROUP))
    changed: list[Any] = attrs.field(
        metadata=_meta("pairs", "pairs of index and block", "`Table.blocks`", "`req_to_blocks`")
    )
    appended: list[int] = attrs.field(
        metadata=_meta("ints", "blocks added behind", "`Table.blocks`", "`req_to_blocks`")
    )


@attrs.frozen(kw_only=True)
class Drop(Event):
    """A block table is gone."""

    event: ClassVar[str] = "drop"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    group: int = attrs.field(metadata=_meta(*_GROUP))


@attrs.frozen(kw_only=True)
class Defer(Event):
    """References are kept back until the steps in flight have been processed."""

    event: ClassVar[str] = "defer"
    blocks: list[int] = attrs.field(
        metadata=_meta("ints", "the blocks", "`State.deferred`", "`Scheduler.deferred_frees`")
    )


@attrs.frozen(kw_only=True)
class Undefer(Event):
    """References that were kept back are given back."""

    event: ClassVar[str] = "undefer"
    blocks: list[int] = attrs.field(
        metadata=_meta("ints", "the blocks", "`State.deferred`", "`Scheduler.deferred_frees`")
    )


@attrs.frozen(kw_only=True)
class Copy(Event):
    """A copy-on-write is ordered: the next step copies before its forward pass."""

    event: ClassVar[str] = "copy"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    group: int = attrs.field(metadata=_meta(*_GROUP))
    source: int = attrs.field(
        metadata=_meta("int", "block read", "`Copy.source`", "`_pending_cow_copies`")
    )
    destination: int = attrs.field(
        metadata=_meta("int", "block written", "`Copy.destination`", "`_pending_cow_copies`")
    )
    redirected: bool = attrs.field(
        metadata=_meta(
            "bool",
            "the table has the copy now (a hit), or keeps the source (a producer)",
            "`tables`",
            "`_apply_cow`",
        )
    )


@attrs.frozen(kw_only=True)
class Mark(Event):
    """A partial tail is registered: the block holds the state at a boundary."""

    event: ClassVar[str] = "mark"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    group: int = attrs.field(metadata=_meta(*_GROUP))
    block: int = attrs.field(
        metadata=_meta(
            "int", "the table's block", "`Marker.block`", "`_producer_partial_tail_reqs`"
        )
    )
    tokens: int = attrs.field(metadata=_meta(*_BOUNDARY))


@attrs.frozen(kw_only=True)
class Unmark(Event):
    """A registered tail is consumed."""

    event: ClassVar[str] = "unmark"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    group: int = attrs.field(metadata=_meta(*_GROUP))
    block: int = attrs.field(
        metadata=_meta(
            "int", "the block that was marked", "`Marker.block`", "`_producer_partial_tail_reqs`"
        )
    )
    tokens: int = attrs.field(metadata=_meta(*_BOUNDARY))


@attrs.frozen(kw_only=True)
class Job(Event):
    """A store job exists: what it stores, and what it pins."""

    event: ClassVar[str] = "job"
    job: int = attrs.field(metadata=_meta(*_JOB))
    connector: int = attrs.field(metadata=_meta(*_CONNECTOR))
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    puts: list[Any] = attrs.field(
        metadata=_meta(
            "triples",
            "group, block and boundary of each boundary put",
            "`StoreJob.puts`",
            "`ReqMeta.boundary_puts`",
        )
    )
    pins: list[int] = attrs.field(
        metadata=_meta("ints", "blocks pinned", "`Pin.blocks`", "`_pinned_saves`")
    )
    save_to: int = attrs.field(
        metadata=_meta(
            "int",
            "tokens that the normal save should reach; 0: a handoff only",
            "`StoreJob.save_to`",
            "`ReqMeta.token_len_chunk`",
        )
    )
    reads_tables: bool = attrs.field(
        metadata=_meta(
            "bool",
            "ranks read the tables of the groups that keep no boundary state",
            "`StoreJob.save_to`",
            "`_reference_save_blocks`",
        )
    )
    prefill_end: int = attrs.field(
        metadata=_meta(
            "int", "end of the prefill, in tokens", "`boundaries`", "`ReqMeta.prefill_end_tokens`"
        )
    )
    at_finish: bool = attrs.field(
        metadata=_meta(
            "bool",
            "handed off because the request finishes",
            "`Finish`",
            "`register_finished_partial_tail`",
        )
    )
    computed: int = attrs.field(
        metadata=_meta(
            "int",
            "tokens computed when it finished, else 0",
            "`RequestState.computed`",
            "`Request.num_computed_tokens`",
        )
    )
    in_flight: int = attrs.field(
        metadata=_meta(
            "int",
            "tokens in flight when it finished, else 0",
            "`RequestState.in_flight`",
            "`Request.num_in_flight_tokens`",
        )
    )


@attrs.frozen(kw_only=True)
class Emit(Event):
    """A store job leaves for the ranks with the metadata of a step."""

    event: ClassVar[str] = "emit"
    job: int = attrs.field(metadata=_meta(*_JOB))
    connector: int = attrs.field(metadata=_meta(*_CONNECTOR))


@attrs.frozen(kw_only=True)
class Report(Event):
    """The scheduler hears how many more ranks are done with a job."""

    event: ClassVar[str] = "report"
    job: int = attrs.field(metadata=_meta(*_JOB))
    connector: int = attrs.field(metadata=_meta(*_CONNECTOR))
    count: int = attrs.field(metadata=_meta("int", "ranks", "`Report`", "`completed_saves`"))


@attrs.frozen(kw_only=True)
class Release(Event):
    """A job's pin is gone."""

    event: ClassVar[str] = "release"
    job: int = attrs.field(metadata=_meta(*_JOB))
    connector: int = attrs.field(metadata=_meta(*_CONNECTOR))


@attrs.frozen(kw_only=True)
class Load(Event):
    """A load from the store is ordered into blocks of a request."""

    event: ClassVar[str] = "load"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    connector: int = attrs.field(metadata=_meta(*_CONNECTOR))
    blocks: list[int] = attrs.field(
        metadata=_meta(
            "ints",
            "blocks that are written",
            "`State.loads`",
            "`ReqMeta.block_ids` from the aligned local hit on",
        )
    )


@attrs.frozen(kw_only=True)
class Loaded(Event):
    """All ranks are done with a request's load."""

    event: ClassVar[str] = "loaded"
    request: int = attrs.field(metadata=_meta(*_REQUEST))


@attrs.frozen(kw_only=True)
class Preempt(Event):
    """A request loses its blocks and waits again."""

    event: ClassVar[str] = "preempt"
    request: int = attrs.field(metadata=_meta(*_REQUEST))


@attrs.frozen(kw_only=True)
class Finish(Event):
    """A request is over: stopped, or aborted."""

    event: ClassVar[str] = "finish"
    request: int = attrs.field(metadata=_meta(*_REQUEST))
    status: str = attrs.field(metadata=_meta("str", "how", "`Finish`, `Abort`", "`RequestStatus`"))


@attrs.frozen(kw_only=True)
class Schedule(Event):
    """A pass is over: what its step computes."""

    event: ClassVar[str] = "schedule"
    step: int = attrs.field(
        metadata=_meta(
            "int", "number of the step", "`SchedulePass`", "call of `Scheduler.schedule`"
        )
    )
    at_ms: int = attrs.field(metadata=_meta("int", "milliseconds since the log began", "", ""))
    requests: list[int] = attrs.field(
        metadata=_meta(
            "ints",
            "the requests that the step computes for",
            "`Chunk.request`",
            "`num_scheduled_tokens`",
        )
    )
    starts: list[int] = attrs.field(
        metadata=_meta(
            "ints", "tokens of each computed before", "`Chunk.start`", "`num_computed_tokens`"
        )
    )
    tokens: list[int] = attrs.field(
        metadata=_meta(
            "ints", "tokens of each that the step computes", "`Chunk.end`", "`num_scheduled_tokens`"
        )
    )
    new: list[int] = attrs.field(
        metadata=_meta(
            "ints",
            "requests that are scheduled for the first time",
            "`Admit`",
            "`scheduled_new_reqs`",
        )
    )
    resumed: list[int] = attrs.field(
        metadata=_meta(
            "ints",
            "requests that are scheduled again after a preemption",
            "`Admit`",
            "`resumed_req_ids`",
        )
    )
    preempted: list[int] = attrs.field(
        metadata=_meta(
            "ints", "requests preempted since the last pass", "`Preempt`", "`preempted_req_ids`"
        )
    )
    finished: list[int] = attrs.field(
        metadata=_meta(
            "ints", "requests that ranks are told have finished", "`Finish`", "`finished_req_ids`"
        )
    )


@attrs.frozen(kw_only=True)
class Update(Event):
    """The output of a step is processed."""

    event: ClassVar[str] = "update"
    step: int = attrs.field(
        metadata=_meta(
            "int", "number of the step", "`UpdateFromOutput`", "`Scheduler.update_from_output`"
        )
    )


@attrs.frozen(kw_only=True)
class Reset(Event):
    """The local prefix cache is reset, or refuses."""

    event: ClassVar[str] = "reset"
    succeeded: bool = attrs.field(
        metadata=_meta("bool", "whether it was", "`Reset`", "`BlockPool.reset_prefix_cache`")
    )


@attrs.frozen(kw_only=True)
class Settled(Event):
    """A call into the scheduler that changed something is over: what blocks say of themselves."""

    event: ClassVar[str] = "settled"
    call: str = attrs.field(
        metadata=_meta("str", "name of the call", "the action", "method of `Scheduler`")
    )
    free: int = attrs.field(
        metadata=_meta("int", "length of the free list", "`Pool.free`", "`num_free_blocks`")
    )
    blocks: list[int] = attrs.field(
        metadata=_meta(
            "ints", "the blocks that the call used", "`Pool.ref_counts`", "`KVCacheBlock`"
        )
    )
    references: list[int] = attrs.field(
        metadata=_meta(
            "ints", "reference count of each", "`Pool.ref_counts`", "`KVCacheBlock.ref_cnt`"
        )
    )
    keyed: list[int] = attrs.field(
        metadata=_meta(
            "ints",
            "blocks whose keys changed, once for each key that they say they have",
            "`Pool.keys`",
            "`block_hash`, `cached_block_hashes_by_block`",
        )
    )
    keys: list[int] = attrs.field(
        metadata=_meta(
            "ints", "these keys", "`Pool.keys`", "`block_hash`, `cached_block_hashes_by_block`"
        )
    )
    keyless: list[int] = attrs.field(
        metadata=_meta(
            "ints",
            "blocks whose keys changed, and that say they have no primary key",
            "`Pool.keys`",
            "`block_hash`",
        )
    )


@attrs.frozen(kw_only=True)
class Raised(Event):
    """A call into the scheduler ended with an exception."""

    event: ClassVar[str] = "raised"
    call: str = attrs.field(
        metadata=_meta("str", "name of the call", "the action", "method of `Scheduler`")
    )
    error: str = attrs.field(
        metadata=_meta("str", "type of the exception, and where it was raised", "", "")
    )


@attrs.frozen(kw_only=True)
class Truncated(Event):
    """The last line of a log that reached its size."""

    event: ClassVar[str] = "truncated"
    max_bytes: int = attrs.field(metadata=_meta("int", "the bound", "", "`COWTAIL_LOG_MAX_BYTES`"))


@attrs.frozen(kw_only=True)
class Failed(Event):
    """The last line of a log whose recorder failed and switched itself off."""

    event: ClassVar[str] = "failed"
    error: str = attrs.field(
        metadata=_meta("str", "type of the exception, and where it was raised", "", "")
    )


@attrs.frozen(kw_only=True)
class End(Event):
    """The process ends in good order."""

    event: ClassVar[str] = "end"


EVENTS: tuple[type[Event], ...] = (
    Header, Submit, Lookup, Allocate, Touch, Free, Keyed, Unkeyed, Table, Drop, Defer, Undefer,
    Copy, Mark, Unmark, Job, Emit, Report, Release, Load, Loaded, Preempt, Finish, Schedule,
    Update, Reset, Settled, Raised, Truncated, Failed, End,
)  # fmt: skip
"""All events, in the order of the reference."""
