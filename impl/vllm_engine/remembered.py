"""What scheduler, managers, connector and ranks remember, and must have forgotten at rest.

One table names every container among their attributes: watched, or excused with a reason.
``tests/vllm/test_leftovers.py`` walks the real objects, and fails with the name of an attribute
that the table leaves out.

>>> is_empty({}), is_empty([0]), is_empty(0)
(True, False, True)
>>> is_empty(dict.fromkeys(("asked", "answered"), 0), counts=True)
True
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import attrs

from cowtail.impl.vllm_engine.multi import store_connectors

_SETUP = "settled when it is built, the same for every request"
_CACHE = "the prefix cache: it outlives requests on purpose; S1, S2 and S3 look at it"


@attrs.frozen
class Containers:
    """The containers of one kind of object. A name that a release does not have says nothing.

    ``watched`` must be empty at rest, ``counts`` all zero. ``until_next_step`` are those of a
    rank's books in which a finished request may stay until the next step, the first of which
    lists those that do; ``excused`` says why the others need not be empty.
    """

    watched: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    until_next_step: tuple[str, ...] = ()
    excused: dict[str, str] = attrs.field(factory=dict)

    @property
    def named(self) -> frozenset[str]:
        """Every name that the table has, watched or excused."""
        return frozenset((*self.watched, *self.counts, *self.until_next_step, *self.excused))


CONTAINERS: dict[str, Containers] = {
    "scheduler": Containers(
        watched=(
            "requests",
            "running",
            "waiting",
            "kv_holding_waiting",
            "skipped_waiting",
            "deferred_waiting",
            "deferred_frees",
            "deferred_loads",
            "finished_req_ids",
            "finished_recving_kv_req_ids",
            "failed_recving_kv_req_ids",
            "prev_step_scheduled_req_ids",
            "reset_preempted_req_ids",
            "encoder_cache_mismatch_reqs",
            "grammar_compile_error_reqs",
            "_inflight_prefills",
            "_pending_encoder_input_ids",
            "_skip_zero_block_ids",
        ),
        counts=("_kv_fetch_counts",),
        excused={"prefix_replay_group_ids": _SETUP, "_spec_token_placeholders": _SETUP},
    ),
    "encoder cache": Containers(
        watched=(
            "cached",
            "freeable",
            "freed",
            "num_embeds_by_hash",
            "request_cached_ids",
            "request_hash_refs",
        ),
    ),
    "KV cache manager": Containers(
        excused={"kv_cache_event_metadata": _SETUP, "retained_hit_group_ids": _SETUP},
    ),
    "coordinator": Containers(
        excused=dict.fromkeys(
            (
                "attention_groups",
                "drop_eagle_group_ids",
                "eagle_group_ids",
                "group_block_sizes",
                "single_type_managers",
            ),
            _SETUP,
        ),
    ),
    "manager": Containers(
        watched=(
            "req_to_blocks",
            "num_cached_block",
            "new_block_ids",
            "cached_blocks_this_step",
            "last_state_block_idx",
            "_allocated_block_reqs",
            "_checkpoints",
            "_num_checkpoint_blocks",
            "_num_retired_blocks",
            "_partial_hit_reqs",
            "_pending_boundary_state_offloads",
            "_pending_cow_copies",
            "_producer_partial_tail_reqs",
        ),
    ),
    "block pool": Containers(
        watched=("_reuse_watchers", "kv_event_queue"),
        excused={
            "blocks": "every block there is; S1 counts its references, and L2 wants none",
            "cached_block_hash_to_block": _CACHE,
            "cached_block_hashes_by_block": _CACHE,
        },
    ),
    "connector": Containers(
        watched=("_extra_async_saves", "_requests_to_connector"),
        excused=dict.fromkeys(("_connectors", "_ktc_kv_transfer_config"), _SETUP),
    ),
    "connector scheduler": Containers(
        watched=(
            "load_specs",
            "_finished_partial_tail_metas",
            "_pinned_saves",
            "_request_trackers",
            "_unfinished_request_ids",
            "_unfinished_requests",
        ),
        excused=dict.fromkeys(
            (
                "_boundary_state_group_ids",
                "_store_group_id_by_kv_cache_group_id",
                "_store_group_ids",
            ),
            _SETUP,
        ),
    ),
    "lookup client": Containers(
        watched=("_asked", "_answers"),
        excused={"used": "what the harness has yet to look at: the client is ours"},
    ),
    "worker": Containers(
        watched=("recv_request_queue",),
        until_next_step=("finished_store_req",),
        excused=dict.fromkeys(
            ("_kv_cache_groups", "_lookup_key_prefixes", "kv_recv_threads", "token_dbs"), _SETUP
        ),
    ),
    "sending thread": Containers(
        watched=("_completed_saves", "finished_requests", "kv_events", "request_queue"),
        until_next_step=(
            "stored_requests",
            "_retry_token_ids",
            "_saved_offset",
            "_skip_store_requests",
        ),
        excused=dict.fromkeys(("group_participates", "group_put_steps", "token_databases"), _SETUP),
    ),
    "receiving thread": Containers(
        watched=(
            "_failed_requests",
            "_invalid_block_ids",
            "finished_requests",
            "kv_events",
            "request_queue",
        ),
        excused=dict.fromkeys(("group_participates", "token_databases"), _SETUP),
    ),
}
"""By the kind of object that has them, as :func:`places_of` names it."""


@attrs.frozen
class Place:
    """An object that remembers things: its kind in the table, a name for readers, itself.

    ``going`` are the requests that a rank forgets on its next step: finished, their jobs done.
    """

    kind: str
    name: str
    owner: Any
    going: frozenset[str] = frozenset()

    def containers(self) -> Iterator[tuple[str, Any]]:
        """Yield the attributes that are containers; those of Python's own threads are left out."""
        threads = vars(threading.Thread()) if isinstance(self.owner, threading.Thread) else {}
        for name, value in sorted(vars(self.owner).items()):
            if name not in threads and is_container(value):
                yield name, value

    def left_behind(self) -> Iterator[str]:
        """Yield a line for each watched container that still has something."""
        table = CONTAINERS[self.kind]
        for name in (*table.watched, *table.counts, *table.until_next_step):
            left = getattr(self.owner, name, {})
            if name in table.until_next_step:
                left = {item for item in left if item not in self.going}
            if not is_empty(left, counts=name in table.counts):
                yield f"{self.name}.{name} still has {_shown(left)}"


def places_of(scheduler: Any, workers: Iterable[Any] = ()) -> Iterator[Place]:
    """Yield every object that remembers something of requests, of a scheduler and its ranks."""
    manager = scheduler.kv_cache_manager
    yield Place("scheduler", "scheduler", scheduler)
    yield Place("encoder cache", "encoder cache", scheduler.encoder_cache_manager)
    yield Place("KV cache manager", "KV cache manager", manager)
    yield Place("coordinator", "coordinator", manager.coordinator)
    for each in manager.coordinator.single_type_managers:
        yield Place("manager", type(each).__name__, each)
    yield Place("block pool", "block pool", manager.block_pool)
    yield Place("connector", "connector's facade", scheduler.connector)
    for each in store_connectors(scheduler.connector):
        yield Place("connector scheduler", "connector", each.connector_scheduler)
        yield Place("lookup client", "lookup client", each.connector_scheduler.client)
    for rank, worker in enumerate(workers):
        sender = worker.kv_send_thread
        jobs = sender.stored_requests
        going = frozenset(name for name in worker.finished_store_req if not jobs.get(name))
        yield Place("worker", f"rank {rank}", worker, going)
        yield Place("sending thread", f"rank {rank}'s sender", sender, going)
        for thread in worker.kv_recv_threads:
            yield Place("receiving thread", f"rank {rank}'s receiver", thread)


def is_container(value: Any) -> bool:
    """Whether a value has a number of things in it: with a length, but not a text; a queue."""
    if isinstance(value, str | bytes):
        return False
    return isinstance(value, queue.Queue | Sized)


def is_empty(left: Any, *, counts: bool = False) -> bool:
    """Whether nothing is left in a container; of a table of counts, whether all are 0."""
    if isinstance(left, queue.Queue):
        return left.empty()
    return not any(left.values()) if counts else not left


def _shown(left: Any) -> str:
    items: list[Any] = list(left.queue if isinstance(left, queue.Queue) else left)
    shown = [_name_of(item) for item in items]
    return ", ".join(sorted(shown) if isinstance(left, set) else shown)


def _name_of(item: Any) -> str:
    if isinstance(item, bytes):  # a key: its hash and its group
        return f"a key of group {int.from_bytes(item[-4:], 'big')}"
    return str(getattr(item, "request_id", item))
