"""The driver's own books: what steps touch, what jobs read, what was handed off.

Kept from the metadata that workers are sent, independently of what the scheduler and the
connector remember, so that the two can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs

from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.device import MAMBA, NULL_BLOCK, why_not_under_key
from cowtail.impl.vllm_engine.memory import Memory
from cowtail.impl.vllm_engine.multi import number, requests_of
from cowtail.impl.vllm_engine.surface import surface
from cowtail.impl.vllm_engine.view import View


@attrs.define
class Step:
    """A scheduled step; ``output`` is None until the device has run it.

    ``touched`` are the blocks that it copies or writes, ``jobs`` the store jobs that it carries.
    """

    scheduled: Any
    touched: frozenset[int]
    output: Any = None
    jobs: set[int] = attrs.field(factory=set)


@attrs.define
class OwedJob:
    """A store job as its metadata describes it: blocks it reads, ranks that have yet to report."""

    request: str
    blocks: tuple[int, ...]
    ranks: list[int]


@attrs.frozen
class BoundaryPut:
    """One block that a job stores under the hash at ``num_tokens``."""

    group_id: int
    block_id: int
    num_tokens: int


class Ledger:
    """What the properties need to know beside the engine itself.

    ``wrong_handoffs``, ``repeated_handoffs``, ``racing_loads``, ``wrong_resets`` and
    ``wrong_lookups`` say what was wrong when it was seen (S7, S10, V6, S13 and S14, S12);
    ``keys_of_preempted`` are the keys that a pass registered for requests that it preempted;
    ``resumed_at_once`` are the requests that a reset preempted, and that the next pass, the one
    that tells the connector of it, scheduled again; ``marked_late`` are those whose tail was
    registered when a later chunk of theirs, which overwrites it, was scheduled already; ``jobs``
    are all store jobs so far; ``statistics`` counts events.
    """

    def __init__(
        self,
        config: EngineConfig,
        view: View,
        memories: Sequence[Memory],
        prefixes: Mapping[bytes, str],
    ) -> None:
        """Start empty. ``prefixes`` says which prefix a hash stands for."""
        self.jobs: dict[int, OwedJob] = {}
        self.wrong_handoffs: list[str] = []
        self.repeated_handoffs: list[str] = []
        self.racing_loads: list[str] = []
        self.wrong_resets: list[str] = []
        self.wrong_lookups: list[str] = []
        self.keys_of_preempted: set[bytes] = set()
        self.resumed_at_once: set[str] = set()
        self.marked_late: set[str] = set()
        self.statistics: Counter[str] = Counter()
        self._config = config
        self._view = view
        self._memories = memories
        self._prefixes = prefixes
        self._generations: Counter[str] = Counter()
        self._handed_off: set[tuple[int, str, int, int, int]] = set()
        self._outlived: set[int] = set()

    def note_pass(self, scheduled: Any, in_flight: Sequence[Step]) -> Step:
        """Take down a pass, given the steps that were in flight before; return its step."""
        self.statistics["empty steps"] += not scheduled.num_scheduled_tokens
        self.note_loads(scheduled, in_flight)
        step = Step(scheduled, self._touched(scheduled))
        for name in sorted(scheduled.preempted_req_ids or ()):
            self._generations[name] += 1
            self.statistics["preemptions"] += 1
            waiting = any(job.request == name and job.ranks for job in self.jobs.values())
            self.statistics["preemptions with a job in flight"] += waiting
        self._note_jobs(step)
        return step

    def note_keys(self, before: Mapping[bytes, int], scheduled: Any) -> None:
        """Take down the keys that a pass registered for requests which it then preempted.

        They are new, and name a prefix of a preempted request: bytes that no step computes.
        """
        victims = [self._config.request(name).tokens for name in scheduled.preempted_req_ids or ()]
        if not victims:
            return
        for key, _ in self._view.key_map():
            prefix = self._prefixes.get(key[:-4], "")
            if key not in before and any(tokens.startswith(prefix) for tokens in victims):
                self.keys_of_preempted.add(key)

    def note_reset(self, succeeded: bool) -> None:
        """Check that a reset that says so has left nothing in the cache, and nobody a block."""
        self.statistics["resets" if succeeded else "resets refused"] += 1
        if not succeeded:
            return
        keyed = {block for _, block in self._view.key_map()} | set(self._view.block_keys())
        held = [block for block, count in self._view.references().items() if count]
        if keyed:
            self.wrong_resets.append(f"the cache was reset, but blocks {sorted(keyed)} have keys")
        if held:
            self.wrong_resets.append(f"the cache was reset, but blocks {held} are held")

    def note_store_reset(self, keys: Collection[str]) -> None:
        """Check that a store that says that it was reset is empty."""
        self.statistics["store resets"] += 1
        if keys:
            self.wrong_resets.append(f"the store was reset, but still has {sorted(keys)[:3]}")

    def note_executed(self, step: Step) -> None:
        """Compare the step's boundary blocks with their hashes, the step having been executed."""
        for _, request in requests_of(step.scheduled.kv_connector_metadata):
            self._check_contents(request)

    def note_reported(self, rank: int, jobs: Sequence[int]) -> None:
        """Take down that the scheduler is about to hear of ``jobs`` from ``rank``."""
        for job in jobs:
            self.jobs[job].ranks.remove(rank)

    def note_markers(self, requests: Mapping[str, Any]) -> None:
        """Take down the tails that are marked in a block which a step in flight overwrites."""
        for (name, _), (_, boundary) in self._view.markers().items():
            if requests[name].num_computed_tokens > boundary:
                self.marked_late.add(name)

    def note_finished(self, requests: Mapping[str, Any]) -> None:
        """Count the pins that outlive their requests."""
        for job, owed in self.jobs.items():
            if owed.ranks and owed.blocks and requests[owed.request].is_finished():
                self._outlived.add(job)
        self.statistics["pins outliving requests"] = len(self._outlived)

    def _touched(self, scheduled: Any) -> frozenset[int]:
        """Return the blocks that a step copies, reads or writes, as its pass leaves the tables."""
        touched = set()
        starts = _chunk_starts(scheduled)
        for copy in scheduled.kv_cache_block_copies or ():
            touched |= {copy.src_block_id, copy.dst_block_id}
        for name, num_tokens in scheduled.num_scheduled_tokens.items():
            end = starts[name] + num_tokens
            tables = self._view.tables(name)
            for group, size in enumerate(self._config.block_sizes):
                if group != MAMBA:
                    touched.update(tables[group][: (end - 1) // size + 1])
            states = tables[MAMBA]
            touched.add(states[(end - 1) // self._config.mamba_block_size])
            if starts[name]:
                touched.add(states[(starts[name] - 1) // self._config.mamba_block_size])
        return frozenset(touched - {NULL_BLOCK})

    def note_loads(self, scheduled: Any, in_flight: Sequence[Step]) -> None:
        """Check that no load of this pass goes where an earlier, unexecuted step still works."""
        loading = set()
        for _, request in requests_of(scheduled.kv_connector_metadata):
            if request.load_spec is None or not request.load_spec.can_load:
                continue
            if request.req_id in loading:
                self.racing_loads.append(f"two connectors load into the blocks of {request.req_id}")
            loading.add(request.req_id)
            loaded = self._load_destinations(request)
            for step in in_flight:
                if step.output is None and (both := sorted(loaded & step.touched)):
                    self.racing_loads.append(
                        f"{request.req_id} loads into {both}, which a step that the device has "
                        "not run yet copies or writes"
                    )

    def _load_destinations(self, request: Any) -> set[int]:
        """Return the blocks that a load fills: those from the aligned local hit on."""
        lcm = self._config.lcm_block_size
        start = request.load_spec.vllm_cached_tokens // lcm * lcm
        return {
            block
            for table, size in zip(request.block_ids, self._config.block_sizes, strict=True)
            for block in table[start // size :]
            if block != NULL_BLOCK
        }

    def _note_jobs(self, step: Step) -> None:
        """Take down the jobs that a step carries, and check what is handed to them (S7, S10)."""
        references = self._view.references()
        for child, request in requests_of(step.scheduled.kv_connector_metadata):
            if not request.can_save:
                continue
            job = number(child, request.store_job_id)
            puts = self.boundary_puts(request)
            blocks = {put.block_id for put in puts}
            if request.token_len_chunk or not surface().release.tail_put_by_scheduler:
                for group, table in enumerate(request.block_ids):
                    if group != MAMBA:
                        blocks.update(block for block in table if block != NULL_BLOCK)
            self.jobs[job] = OwedJob(
                request.req_id, tuple(sorted(blocks)), list(range(self._config.num_ranks))
            )
            step.jobs.add(job)
            for put in puts:
                self._note_put(child, request, put, references, step)

    def _note_put(
        self, child: int, request: Any, put: BoundaryPut, references: dict[int, int], step: Step
    ) -> None:
        name = request.req_id
        what = f"block {put.block_id} of {name} at {put.num_tokens} tokens"
        if put.block_id == NULL_BLOCK:
            self.wrong_handoffs.append(f"{what} is the null block")
        elif not references[put.block_id]:
            self.wrong_handoffs.append(f"{what} is handed off without a reference")
        if put.group_id != MAMBA:
            return
        if put.num_tokens > (end := getattr(request, surface().release.prefill_end)):
            self.wrong_handoffs.append(f"{what} is past the end of prefill, {end}")
        handoff = (child, name, self._generations[name], put.group_id, put.num_tokens)
        if handoff in self._handed_off:
            self.repeated_handoffs.append(f"{what} is handed off a second time")
        self._handed_off.add(handoff)
        if put.num_tokens % self._config.mamba_block_size:
            finished = name in step.scheduled.finished_req_ids
            self.statistics["tails handed to a second connector"] += child
            self.statistics[f"tails handed off {'at finish' if finished else 'by CoW'}"] += 1

    def boundary_puts(self, request: Any) -> list[BoundaryPut]:
        """Return what a job stores under an explicit hash, in the order of the release."""
        return [
            BoundaryPut(*put) for put in getattr(request, surface().release.boundary_puts) or []
        ]

    def _check_contents(self, request: Any) -> None:
        """Compare a job's boundary blocks with their hashes, its step having been executed."""
        for put in self.boundary_puts(request):
            index = put.num_tokens // self._config.hash_unit - 1
            if index >= len(request.block_hashes):
                continue
            prefix = self._prefixes[bytes(request.block_hashes[index])]
            for rank, memory in enumerate(self._memories):
                why = why_not_under_key(self._config, memory, put.block_id, put.group_id, prefix)
                if why is not None:
                    self.wrong_handoffs.append(f"{request.req_id} on rank {rank}: {why}")


def _chunk_starts(scheduled: Any) -> dict[str, int]:
    """Return where the chunk of each scheduled request starts, in tokens."""
    cached = scheduled.scheduled_cached_reqs
    starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    starts.update((new.req_id, new.num_computed_tokens) for new in scheduled.scheduled_new_reqs)
    return starts
