"""Reading the real engine: owners, references, keys, pins, and what is left behind.

The only module that looks into private fields of the scheduler, its managers and its connector;
it changes nothing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs

from cowtail.impl.vllm_engine.multi import number, store_connectors
from cowtail.impl.vllm_engine.remembered import places_of
from cowtail.impl.vllm_engine.surface import surface

_Read = TypeVar("_Read")


def _read_once(read: Callable[[View], _Read]) -> Callable[[View], _Read]:
    """Let a method of View keep what it has read until it is to look again."""

    @functools.wraps(read)
    def reading(view: View) -> _Read:
        if read.__name__ not in view._read:
            view._read[read.__name__] = read(view)
        kept: _Read = view._read[read.__name__]
        return kept

    return reading


@attrs.frozen
class Pin:
    """The references that a store job holds: its blocks, and how many ranks have yet to report."""

    blocks: tuple[int, ...]
    ranks_left: int


class View:
    """What can be asked about one real scheduler and its connector.

    What is asked several times after an action is read once, until :meth:`look_again`.
    """

    def __init__(self, scheduler: Any) -> None:
        """Look at ``scheduler``."""
        self._read: dict[str, Any] = {}
        self._release = surface().release
        self._scheduler = scheduler
        self._connectors = [
            each.connector_scheduler for each in store_connectors(scheduler.connector)
        ]

    @property
    def _pool(self) -> Any:
        return self._scheduler.kv_cache_manager.block_pool

    @property
    def _managers(self) -> Any:
        return self._scheduler.kv_cache_manager.coordinator.single_type_managers

    def look_again(self) -> None:
        """Forget what was read: the scheduler was called, or may have been."""
        self._read.clear()

    @_read_once
    def pins(self) -> dict[int, Pin]:
        """Return the connector's pins by store job."""
        return {
            number(child, job): Pin(tuple(blocks), ranks_left)
            for child, connector in enumerate(self._connectors)
            for job, (blocks, ranks_left) in connector._pinned_saves.items()
        }

    def owners(self) -> Counter[int]:
        """Return how many owners each block has: tables, copies, deferred frees and pins."""
        owned: list[int] = []
        for manager in self._managers:
            for blocks in manager.req_to_blocks.values():
                owned += [block.block_id for block in blocks if not block.is_null]
            for copied in manager._pending_cow_copies:
                owned += [block.block_id for block in copied]
        for _, blocks in self._scheduler.deferred_frees:
            owned += [block.block_id for block in blocks if not block.is_null]
        for pin in self.pins().values():
            owned += pin.blocks
        return Counter(owned)

    @_read_once
    def references(self) -> dict[int, int]:
        """Return the reference count of every block but the null block."""
        return {block.block_id: block.ref_cnt for block in self._pool.blocks if not block.is_null}

    def null_block(self) -> int:
        """Return the id of the null block."""
        return int(self._pool.null_block.block_id)

    @_read_once
    def free_list(self) -> list[int]:
        """Return the free list in the order in which blocks would be allocated."""
        return [b.block_id for b in self._pool.free_block_queue.get_all_free_blocks()]

    def free_count(self) -> int:
        """Return the free list's length as the pool counts it."""
        return int(self._pool.get_num_free_blocks())

    @_read_once
    def block_keys(self) -> dict[int, set[bytes]]:
        """Return the keys that each block says it has; blocks without keys are left out."""
        keys: dict[int, set[bytes]] = {}
        for block in self._pool.blocks:
            if block.block_hash is not None:
                keys.setdefault(block.block_id, set()).add(bytes(block.block_hash))
        for block_id, extra in self._pool.cached_block_hashes_by_block.items():
            keys.setdefault(block_id, set()).update(bytes(key) for key in extra)
        return keys

    @_read_once
    def key_map(self) -> list[tuple[bytes, int]]:
        """Return (key, block) for every entry of the map that lookups read."""
        return [
            (bytes(key), block.block_id)
            for key, blocks in self._pool.cached_block_hash_to_block._cache.items()
            for block in (blocks.values() if isinstance(blocks, dict) else (blocks,))
        ]

    def tables(self, request_id: str) -> list[list[int]]:
        """Return a request's block tables, group by group."""
        return [
            [block.block_id for block in manager.req_to_blocks.get(request_id, ())]
            for manager in self._managers
        ]

    @_read_once
    def markers(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the registered tails: (request, group) -> (block, boundary in tokens).

        A release whose markers leave the block out means the one that the table has there.
        """
        markers = {}
        for manager in self._managers:
            registered = getattr(manager, "_producer_partial_tail_reqs", {})
            for request_id, marker in registered.items():
                if self._release.marker_has_block:
                    block, boundary = marker
                else:
                    boundary = marker
                    block = manager.req_to_blocks[request_id][boundary // manager.block_size]
                markers[request_id, manager.kv_cache_group_id] = (block.block_id, boundary)
        return markers

    def queued_tails(self) -> list[int]:
        """Return the jobs of finish-time tails that no pass has sent yet, in order."""
        return [
            number(child, meta.store_job_id)
            for child, connector in enumerate(self._connectors)
            for meta in getattr(connector, "_finished_partial_tail_metas", {}).values()
        ]

    def deferred_frees(self) -> list[list[int]]:
        """Return the blocks that wait for steps in flight, in the order in which they will go."""
        return [
            [block.block_id for block in reversed(blocks) if not block.is_null]
            for _, blocks in self._scheduler.deferred_frees
        ]

    @_read_once
    def primary_keys(self) -> dict[int, bytes]:
        """Return the primary key of every block that has one."""
        return {b.block_id: bytes(b.block_hash) for b in self._pool.blocks if b.block_hash}

    def untold_preemptions(self) -> set[str]:
        """Return the requests that were preempted, and whose preemption no pass has told of yet."""
        return set(self._scheduler.reset_preempted_req_ids)

    def is_loaded(self, request_id: str) -> bool:
        """Whether every rank has reported a load that its request has not gone on from yet."""
        return request_id in self._scheduler.finished_recving_kv_req_ids

    def has_marker(self, request_id: str) -> bool:
        """Whether a request has registered a tail that nobody has taken yet."""
        return any(request == request_id for request, _ in self.markers())

    def has_partial_hit(self, request_id: str) -> bool:
        """Whether a request must copy a block before it goes on from inside it."""
        return any(request_id in manager._partial_hit_reqs for manager in self._managers)

    def blocked_head(self) -> Any:
        """Return the first of the waiting requests that load or have loaded; None if none do."""
        queue = getattr(self._scheduler, self._release.blocked_queue)
        return queue.peek_request() if queue else None

    @property
    def defers_frees(self) -> bool:
        """Whether freed blocks are kept back until the steps in flight have been processed."""
        return bool(self._scheduler.defer_block_free)

    @property
    def has_running(self) -> bool:
        """Whether a request runs, and could be preempted."""
        return bool(self._scheduler.running)

    def is_reserved_for(self, request: Any) -> bool:
        """Whether blocks are reserved for a request as for a prefill in flight."""
        return request in self._scheduler._inflight_prefills

    def leftovers(self, workers: Iterable[Any] = ()) -> list[str]:
        """Return what is not empty in scheduler, managers and connector, and in the ranks'."""
        places = places_of(self._scheduler, workers)
        return [line for place in places for line in place.left_behind()]
