"""Faults of our own, to be planted into a copy of an installed vLLM 0.32.0.

Each is a few lines that are appended to one module of the copy: they replace a method by one with
a mistake in it, and leave everything else as it is. Nothing of vLLM is repeated here.
"""

from __future__ import annotations

import attrs

_STORE = "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store"
_CORE = "vllm/v1/core"


@attrs.frozen
class PlantedFault:
    """A mistake: its name, what it is in one sentence, the file it goes to, and the lines."""

    name: str
    sentence: str
    file: str
    lines: str


PLANTED_FAULTS: tuple[PlantedFault, ...] = (
    PlantedFault(
        "pin_released_after_the_first_rank",
        "A store job's blocks are released when the first rank has reported it.",
        f"{_STORE}/scheduler.py",
        """
_real_update = MooncakeStoreScheduler.update_connector_output

def _update_connector_output(self, connector_output):
    meta = connector_output.kv_connector_worker_meta
    for job in getattr(meta, "completed_saves", ()):
        if job in self._pinned_saves:
            self._pinned_saves[job] = (self._pinned_saves[job][0], meta.completed_saves[job])
    _real_update(self, connector_output)

MooncakeStoreScheduler.update_connector_output = _update_connector_output
""",
    ),
    PlantedFault(
        "state_found_by_its_position",
        "A boundary state is stored from the block at its position in the table, not from the "
        "block that was handed over.",
        f"{_STORE}/scheduler.py",
        """
_real_reference = MooncakeStoreScheduler._reference_save_blocks

def _reference_save_blocks(self, meta):
    sizes = [g.kv_cache_spec.block_size for g in self._store_coord.kv_cache_groups]
    for request in meta.requests:
        if request.can_save and request.store_job_id is None and request.boundary_puts:
            moved = []
            for put in request.boundary_puts:
                column = (put.num_tokens - 1) // sizes[put.group_id]
                block = request.block_ids[put.group_id][column]
                moved.append(put._replace(block_id=block or put.block_id))
            request.boundary_puts = moved
    _real_reference(self, meta)

MooncakeStoreScheduler._reference_save_blocks = _reference_save_blocks
""",
    ),
    PlantedFault(
        "tail_handed_over_without_a_pin",
        "The tail of a finished request is queued, and its blocks are not kept.",
        f"{_STORE}/scheduler.py",
        """
_real_register = MooncakeStoreScheduler.register_finished_partial_tail

def _register(self, request, block_ids, partial_tail_offloads):
    before = set(self._pinned_saves)
    answer = _real_register(self, request, block_ids, partial_tail_offloads)
    for job in set(self._pinned_saves) - before:
        blocks = [self._gpu_block_pool.blocks[b] for b in self._pinned_saves[job][0]]
        self._gpu_block_pool.free_blocks(blocks)
        self._pinned_saves[job] = ([], self._num_workers)
    return answer

MooncakeStoreScheduler.register_finished_partial_tail = _register
""",
    ),
    PlantedFault(
        "failed_job_is_never_reported",
        "A store job whose boundary puts fail leaves the sending thread without a report.",
        f"{_STORE}/worker.py",
        """
_real_offload = KVCacheStoreSendingThread._maybe_offload_boundary_states
_real_finish = KVCacheStoreSendingThread.finish_store_job

def _offload(self, req_meta):
    done = _real_offload(self, req_meta)
    req_meta.lost = not done
    return done

def _finish(self, req_meta):
    if not getattr(req_meta, "lost", False):
        _real_finish(self, req_meta)

KVCacheStoreSendingThread._maybe_offload_boundary_states = _offload
KVCacheStoreSendingThread.finish_store_job = _finish
""",
    ),
    PlantedFault(
        "handoffs_stay_after_they_were_taken",
        "What was handed to the connector is handed to it again in the next pass.",
        f"{_CORE}/single_type_kv_cache_manager.py",
        """
_real_take = MambaManager.take_pending_boundary_state_offloads

def _take(self):
    taken = _real_take(self)
    if taken and not getattr(self, "_again", False):
        self._pending_boundary_state_offloads.extend(taken)
    self._again = bool(taken) and not getattr(self, "_again", False)
    return taken

MambaManager.take_pending_boundary_state_offloads = _take
""",
    ),
    PlantedFault(
        "hit_shared_instead_of_copied",
        "A request that goes on from inside a cached state's block writes that block itself.",
        f"{_CORE}/single_type_kv_cache_manager.py",
        """
_real_add = MambaManager.add_local_computed_blocks

def _add(self, request_id, *args, **kwargs):
    _real_add(self, request_id, *args, **kwargs)
    self._partial_hit_reqs.pop(request_id, None)

MambaManager.add_local_computed_blocks = _add
""",
    ),
    PlantedFault(
        "hit_in_the_same_pass",
        "A state that a step of this pass has yet to compute is found by the next request.",
        f"{_CORE}/single_type_kv_cache_manager.py",
        """
_real_needed = MambaManager.get_num_blocks_to_allocate

def _needed(self, *args, **kwargs):
    self.cached_blocks_this_step.clear()
    return _real_needed(self, *args, **kwargs)

MambaManager.get_num_blocks_to_allocate = _needed
""",
    ),
    PlantedFault(
        "keys_survive_reallocation",
        "A block that is allocated anew keeps the keys of what it held.",
        f"{_CORE}/block_pool.py",
        """
BlockPool._maybe_evict_cached_block = lambda self, block: False
""",
    ),
    PlantedFault(
        "save_runs_ahead",
        "Normal saves cover a block that is still to be computed.",
        f"{_STORE}/data.py",
        """
_real_from = ReqMeta.from_request_tracker

def _from(tracker, block_size, *args, **kwargs):
    meta = _real_from(tracker, block_size, *args, **kwargs)
    if meta is not None and meta.can_save and meta.token_len_chunk:
        longer = meta.token_len_chunk + block_size
        if longer <= meta.num_prompt_tokens:
            meta.token_len_chunk = longer
    return meta

ReqMeta.from_request_tracker = staticmethod(_from)
""",
    ),
    PlantedFault(
        "frees_do_not_wait",
        "Blocks are given back while steps in flight still read and write them.",
        f"{_CORE}/sched/scheduler.py",
        """
_real_init = Scheduler.__init__

def _init(self, *args, **kwargs):
    _real_init(self, *args, **kwargs)
    self.defer_block_free = False

Scheduler.__init__ = _init
""",
    ),
    PlantedFault(
        "copies_are_never_released",
        "Source and destination of a copy-on-write keep the reference that the copy took.",
        f"{_CORE}/sched/scheduler.py",
        """
Scheduler._free_cow_retained_blocks = lambda self, *args, **kwargs: None
""",
    ),
    PlantedFault(
        "failed_load_is_not_told",
        "A rank whose load failed reports it as done, and nothing else.",
        f"{_STORE}/worker.py",
        """
KVCacheStoreRecvingThread.set_failed_request = lambda self, req_id: None
""",
    ),
    PlantedFault(
        "marker_outlives_its_request",
        "A request that is freed leaves the mark of its tail behind.",
        f"{_CORE}/single_type_kv_cache_manager.py",
        """
_real_pop = MambaManager.pop_blocks_for_free

def _pop(self, request_id):
    marks = dict(self._producer_partial_tail_reqs)
    freed = _real_pop(self, request_id)
    self._producer_partial_tail_reqs.update(marks)
    return freed

MambaManager.pop_blocks_for_free = _pop
""",
    ),
)
"""In the order of the table."""
