"""Moves vLLM's real scheduler and Mooncake store connector, without weights, GPU or sockets.

Real: the scheduler, its KV cache manager and block pool, the connector, the send and receive
code of every rank. Symbolic: the KV memory. An attention slot holds the token prefix whose KV
it stands for, a Mamba block the prefix that its state summarises; so every read and every stored
key can be compared with the prefix that it is meant for. Tokens are characters.

    engine = Engine(requests=[Request("a", "x" * 44)])
    engine.run("submit(a) step() run_to_rest()", watching="V5")  # raises Violation

The connector's threads are built and never started: the caller decides when a rank takes the
head of its queue. As in the worker, a step's copies come before its forward pass, and read all
their sources before they write; store jobs wait for their step; loads wait for nothing.
"""

# ruff: noqa: E402
from __future__ import annotations

import os

for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
}.items():
    os.environ.setdefault(_name, _value)

import math
import pickle
import re
import threading
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import (
    coordinator,
    data,
    scheduler,
    worker,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request as RealRequest
from vllm.v1.request import RequestStatus

ATTENTION, MAMBA, NULL = 0, 1, 0
MAX_DRAIN, MAX_EMPTY_PASSES = 2000, 20
STEP = ("schedule_pass", "execute", "update_from_output")
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
# Releases up to 0.31 differ in how these are spelled; the driver goes by what is there.
OLD_STORE = not hasattr(coordinator.MooncakeStoreCoordinator, "from_kv_cache_config")
CHECKPOINTS = ("enable_mamba_shared_prefix_checkpoint", "enable_mamba_fine_grained_prefix_cache")
FAILED_BY_BLOCK = not hasattr(worker.KVCacheStoreRecvingThread, "get_and_clear_failed_requests")
kv_cache_utils.init_none_hash(sha256)


class InOrder(set[str]):
    """A set that is gone through in the order of its names."""

    def __iter__(self) -> Any:
        """Go through the names, sorted."""
        return iter(sorted(super().__iter__()))


@dataclass(frozen=True)
class Request:
    """A prompt, and what the device samples after it ("z"s unless ``output`` says)."""

    name: str
    prompt: str
    max_tokens: int = 1
    output: str = ""
    priority: int = 0

    @property
    def tokens(self) -> str:
        """The prompt and all that is sampled after it."""
        return self.prompt + (self.output or "z" * self.max_tokens)[: self.max_tokens]


class Violation(AssertionError):
    """The property that is watched does not hold."""


class Off(SimpleNamespace):
    """A configuration in which every field that was not set is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


class Eagle(Off):
    """An EAGLE drafter that proposes nothing: only its block drop matters here."""

    def __getattr__(self, name: str) -> Any:
        if name in ("use_eagle", "use_eagle_block_drop", "needs_eagle_block_drop"):
            return lambda: True
        return (lambda: False) if name.startswith("use_") else super().__getattr__(name)


class Lookup:
    """The connector's lookup client, asking rank 0 directly instead of through its socket."""

    def __init__(self, vllm_config: Any) -> None:
        self.ask: Any = None
        self.store: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}

    def lookup(self, name: str, num_tokens: int, hashes: Any, non_block: bool = False) -> Any:
        if not non_block:
            return self.ask(num_tokens, hashes)
        if name not in self.answers:
            self.asked.setdefault(name, (num_tokens, list(hashes)))
        return self.answers.pop(name, None)

    def answer(self, name: str, failed: bool) -> None:
        question = self.asked.pop(name)
        self.answers[name] = data.MooncakeLookupResult(0) if failed else self.ask(*question)

    def discard(self, name: str) -> None:
        self.asked.pop(name, None)
        self.answers.pop(name, None)

    def reset(self) -> bool:
        self.store.clear()
        return True

    def close(self) -> None: ...


class Engine:
    """One scheduler, its ranks with their symbolic memories, and the store that they share."""

    def __init__(
        self,
        requests: list[Request],
        stored: list[Request] | None = None,
        attention_block_size: int = 16,
        mamba_block_size: int = 16,
        hash_unit: int = 4,
        num_blocks: int = 64,
        token_budget: int = 64,
        role: str = "both",
        num_ranks: int = 2,
        max_steps_in_flight: int = 1,
        eagle: bool = False,
        retention_interval: int | None = 0,
        recompute_failed_loads: bool = False,
        priority: bool = False,
        failure_code: int = -800,
        model_runner: str = "v1",
        lookup_async: bool = False,
        shared_prefix_checkpoints: bool = False,
        store: dict[str, Any] | None = None,
        prefixes: dict[bytes, str] | None = None,
    ) -> None:
        """Build it; ``stored`` requests are first run to their ends by a producer with room."""
        self.settings = {k: v for k, v in locals().items() if k not in ("self", "stored")}
        self.config = SimpleNamespace(**self.settings)
        self.specs = {request.name: request for request in requests}
        self.sizes = (attention_block_size, mamba_block_size)
        self.store: dict[str, Any] = {} if store is None else store
        self.prefixes: dict[bytes, str] = {} if prefixes is None else prefixes
        if stored:
            self._fill(stored)
        self.longest = max(len(each.tokens) for each in [*requests, *(stored or [])])
        self._build()
        self.memories: list[dict[int, Any]] = [{} for _ in range(num_ranks)]
        self.ranks = [self._build_rank(index) for index in range(num_ranks)]
        self._connect_lookup()
        self.aggregator = KVOutputAggregator(num_ranks)
        self.requests: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}  # what the worker knows of each request in its batch
        self.steps: list[Any] = []
        self.jobs: dict[int, Any] = {}  # store job -> its blocks, and the ranks yet to report
        self.generations: Counter[str] = Counter()
        self.handed_off: set[Any] = set()
        self.wrong: dict[str, str] = {}  # property -> the first reason why it fails
        self.watching = ""
        self.excused = False  # whether something happened for which a store may miss a prompt

    # Building

    def _fill(self, stored: list[Request]) -> None:
        blocks = sum(math.ceil(len(r.tokens) / self.sizes[ATTENTION]) + 4 for r in stored)
        changed = {"requests": stored, "role": "producer", "num_blocks": blocks + 1}
        changed |= {"max_steps_in_flight": 1, "store": self.store, "prefixes": self.prefixes}
        producer = Engine(**{**self.settings, **changed})
        for request in stored:
            producer.run(f"submit({request.name})")

    def _build(self) -> None:
        config = self.config
        asynchronous = config.max_steps_in_flight > 1
        max_model_len = self.longest + math.lcm(*self.sizes)
        os.environ[RUNNER] = "0"  # what only the V2 runner itself needs is checked here
        vllm_config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=max(len(self.specs), 1),
                max_num_batched_tokens=config.token_budget,
                max_model_len=max_model_len,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=asynchronous,
                policy="priority" if config.priority else "fcfs",
                watermark=0.0,
                scheduler_reserve_full_isl=False,
            ),
            cache_config=CacheConfig(
                block_size=config.mamba_block_size,
                enable_prefix_caching=True,
                prefix_cache_retention_interval=config.retention_interval,
            ),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig(
                kv_connector="MooncakeStoreConnector",
                kv_role=f"kv_{config.role}",
                kv_load_failure_policy="recompute" if config.recompute_failed_loads else "fail",
                kv_connector_extra_config={
                    "load_async": True,
                    "lookup_async": config.lookup_async,
                },
            ),
        )
        cache = vllm_config.cache_config
        if config.shared_prefix_checkpoints:
            setattr(cache, next(name for name in CHECKPOINTS if hasattr(cache, name)), True)
        cache.mamba_cache_mode = "align"
        cache.prefix_match_unit = config.hash_unit
        cache.num_gpu_blocks = config.num_blocks
        cache.block_size = config.mamba_block_size
        vllm_config.scheduler_config.async_scheduling = asynchronous
        vllm_config.scheduler_config.disable_hybrid_kv_cache_manager = False
        vllm_config.parallel_config.world_size = config.num_ranks
        vllm_config.model_config = Off(
            hf_config=SimpleNamespace(),
            is_hybrid=True,
            max_model_len=max_model_len,
            model="symbolic",
            multimodal_config=None,
            quantization=None,
            runner_type="generate",
            skip_tokenizer_init=True,
        )
        if config.eagle:
            vllm_config.speculative_config = Eagle(
                draft_model_config=None,
                method="eagle",
                num_speculative_tokens=1,
                num_speculative_tokens_per_batch_size=None,
                max_num_new_slots_for_drafting=0,
            )
        attention = kv.FullAttentionSpec(
            block_size=config.attention_block_size,
            num_kv_heads=1,
            head_size=1,
            dtype=torch.float32,
        )
        states = kv.MambaSpec(
            block_size=config.mamba_block_size,
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
            num_speculative_blocks=int(config.eagle),
        )
        self.kv_config = kv.KVCacheConfig(
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                kv.KVCacheGroupSpec(["attention"], attention, is_eagle_group=config.eagle),
                kv.KVCacheGroupSpec(["mamba"], states),
            ],
            prefix_cache_retention_interval=config.retention_interval,
        )
        sizes = kv_cache_utils.resolve_kv_cache_block_sizes(self.kv_config, vllm_config)
        self.block_size, self.hash_size = sizes
        if not OLD_STORE:
            self.kv_config.hash_block_size = self.hash_size
            self.kv_config.cache_hit_alignment_tokens = (
                kv_cache_utils.resolve_cache_hit_alignment_tokens(
                    self.kv_config, vllm_config, *sizes
                )
            )
        os.environ[RUNNER] = str(int(config.model_runner == "v2"))
        with mock.patch.object(scheduler, "LookupKeyClient", Lookup):
            self.scheduler: Any = (AsyncScheduler if asynchronous else Scheduler)(
                vllm_config=vllm_config,
                kv_cache_config=self.kv_config,
                structured_output_manager=Off(
                    accept_tokens=lambda *_: True, should_advance=lambda *_, **__: False
                ),
                block_size=self.block_size,
                hash_block_size=self.hash_size,
                log_stats=False,
            )
        self.connector = self.scheduler.connector.connector_scheduler
        store_coordinator = coordinator.MooncakeStoreCoordinator
        if OLD_STORE:
            self.coordinator = store_coordinator(
                self.kv_config.kv_cache_groups,
                scheduler_block_size=self.block_size,
                hash_block_size=self.hash_size,
                use_eagle=config.eagle,
                retention_interval=config.retention_interval,
                dcp_world_size=1,
            )
        else:
            self.coordinator = store_coordinator.from_kv_cache_config(
                self.kv_config, vllm_config, *sizes
            )
        self.manager = self.scheduler.kv_cache_manager
        self.pool = self.manager.block_pool

    def _build_rank(self, index: int) -> Any:
        databases = []
        for group, spec in enumerate(self.coordinator.kv_cache_groups):
            metadata = data.KeyMetadata("symbolic", index, 0, 0, 0, group)
            size = spec.kv_cache_spec.block_size
            database = data.ChunkedTokenDatabase(metadata, size, self.hash_size)
            database.set_kv_caches_base_addr([0])  # so that a buffer's address is its block's id
            database.set_block_len([1])
            databases.append(database)
        common = {
            "store": Transport(self, index),
            "coord": self.coordinator,
            "token_databases": databases,
            "block_size": self.block_size,
            "tp_rank": index,
            "ready_event": threading.Event(),
        }
        sender = worker.KVCacheStoreSendingThread(
            **common,
            group_put_steps=[1] * len(databases),
            kv_role=f"kv_{self.config.role}",
            replicate_config=SimpleNamespace(group_ids=None),
        )
        hybrid = {} if FAILED_BY_BLOCK else {"is_hma_required": True}
        receiver = worker.KVCacheStoreRecvingThread(**common, **hybrid)
        rank = object.__new__(worker.MooncakeStoreWorker)  # its constructor would open sockets
        vars(rank).update(
            _capacity_only=False,
            _kv_cache_groups=self.coordinator.kv_cache_groups,
            _record_kv_connector_operation=lambda *_, **__: None,
            can_put=self.config.role != "consumer",
            close=lambda: None,
            coord=self.coordinator,
            finished_store_req=set(),
            hash_block_size=self.hash_size,
            kv_recv_threads=[receiver],
            kv_send_thread=sender,
            load_async=True,
            recv_request_queue=receiver.request_queue,
            store=common["store"],
            token_dbs=databases,
            tp_rank=index,
        )
        return SimpleNamespace(
            worker=rank, sender=sender, receiver=receiver, transport=common["store"],
            outbox=[], reported=[], loaded=set(), failed=set(),
        )  # fmt: skip

    def _connect_lookup(self) -> None:
        first = self.ranks[0].worker
        first._lookup_key_prefixes = tuple(
            tuple(
                data.PoolKey.build_prefix(database.metadata, tp_rank=rank)
                for rank in range(self.config.num_ranks)
            )
            for database in first.token_dbs
        )
        self.client = self.connector.client
        self.client.ask, self.client.store = first.lookup, self.store

    # Actions

    def run(self, actions: str, watching: str = "") -> None:
        """Carry out actions, as in ``submit(a) step()``, then run to rest.

        What is not possible is left out. Raises Violation as soon as the property called
        ``watching`` does not hold, whatever exception vLLM raises if it is "A".
        """
        self.watching = watching
        for name, arguments in re.findall(r"(\w+)\(([^)]*)\)", actions):
            self.perform(name, *arguments.replace(" ", "").split(",") if arguments else ())
        self.run_to_rest()

    def perform(self, name: str, *arguments: str) -> bool:
        """Carry out one action and check; False if it is not possible now."""
        if name == "run_to_rest":
            self.run_to_rest()
            return True
        if name == "step":
            done = [self.perform(part) for part in STEP]
            return any(done)
        if name == "report" and int(arguments[1]) not in self.ranks[int(arguments[0])].outbox:
            arguments = (arguments[0], *map(str, self.ranks[int(arguments[0])].outbox[:1]))
        if not self.is_possible(name, *arguments):
            return False
        getattr(self, f"_{name}")(*arguments)
        self.check()
        return True

    def is_possible(self, name: str, *arguments: str) -> bool:
        """Whether an action can be carried out now."""
        if name in ("submit", "abort"):
            request = self.requests.get(arguments[0])
            if name == "submit":
                return request is None
            return request is not None and not request.is_finished()
        if name == "schedule_pass":
            room = len(self.steps) < self.config.max_steps_in_flight
            return room and bool(self.scheduler.has_requests())
        if name == "execute":
            return any(step.output is None for step in self.steps)
        if name == "look_up":
            asked = arguments[0] in self.client.asked
            return asked and not self.requests[arguments[0]].is_finished()
        if name == "evict":
            return self._key_of(*arguments) is not None
        if name == "reset":
            return self._can_reset(*arguments)
        if name.startswith("update"):
            executed = bool(self.steps) and self.steps[0].output is not None
            arrived = any(rank.reported or rank.loaded or rank.failed for rank in self.ranks)
            return executed and (arrived or name == "update_from_output")
        if int(arguments[0]) >= len(self.ranks):
            return False
        rank = self.ranks[int(arguments[0])]
        if name == "run_load":
            return bool(rank.receiver.request_queue.queue)
        if name == "run_job":
            queue = rank.sender.request_queue.queue
            waiting = {job for step in self.steps if step.output is None for job in step.jobs}
            return bool(queue) and queue[0].store_job_id not in waiting
        return len(arguments) > 1 and int(arguments[1]) in rank.outbox

    def _submit(self, name: str) -> None:
        spec = self.specs[name]
        self.requests[name] = RealRequest(
            request_id=name,
            prompt_token_ids=[ord(token) for token in spec.prompt],
            sampling_params=SamplingParams(max_tokens=spec.max_tokens, ignore_eos=True),
            pooling_params=None,
            block_hasher=kv_cache_utils.get_request_block_hasher(self.hash_size, sha256),
            arrival_time=float(len(self.requests)),
            priority=spec.priority,
        )
        self.scheduler.add_request(self.requests[name])
        self._learn_prefixes()

    def _learn_prefixes(self) -> None:
        for name, request in self.requests.items():
            tokens = "".join(chr(token) for token in request.all_token_ids)
            if not self.specs[name].tokens.startswith(tokens):
                self._blame("V5", f"{name} has the tokens {tokens!r}: not what was sampled")
            for index, key in enumerate(request.block_hashes):
                prefix = tokens[: (index + 1) * self.config.hash_unit]
                self.prefixes.setdefault(bytes(key), prefix)

    def _abort(self, name: str) -> None:
        self.excused = True
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _schedule_pass(self) -> None:
        scheduled = self.scheduler.schedule()
        step = SimpleNamespace(scheduled=scheduled, output=None, jobs=set())
        self._note_loads(scheduled)
        step.touched = self._touched(scheduled)
        self.generations.update(scheduled.preempted_req_ids or ())
        self.excused |= bool(scheduled.preempted_req_ids)
        self._note_jobs(step)
        self.steps.append(step)
        metadata = pickle.dumps(scheduled.kv_connector_metadata)
        for rank in self.ranks:  # each is a process of its own
            copy = pickle.loads(metadata)
            rank.worker.start_load_kv(copy)
            for request in copy.requests:
                if request.can_save and rank.worker.can_put:
                    rank.sender.add_request(request)
            rank.worker.get_finished(scheduled.finished_req_ids, copy)

    def _execute(self) -> None:
        step = next(step for step in self.steps if step.output is None)
        sampled = self._forward(step.scheduled)
        step.output = ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: index for index, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
        )
        self._check_handoffs(step.scheduled)

    def _update_from_output(self) -> None:
        step = self.steps.pop(0)
        self.scheduler.update_from_output(step.scheduled, step.output)
        self._learn_prefixes()

    def _update_connector_output(self) -> None:
        outputs = []
        for index, rank in enumerate(self.ranks):
            for job in rank.reported:
                self.jobs[job].ranks.remove(index)
            done = dict.fromkeys(rank.reported, 1)
            metadata = data.MooncakeStoreWorkerMetadata(completed_saves=done) if done else None
            failed = "invalid_block_ids" if FAILED_BY_BLOCK else "failed_recving"
            output = KVConnectorOutput(
                finished_recving=set(rank.loaded) or None,
                kv_connector_worker_meta=metadata,
                **{failed: set(rank.failed)},
            )
            outputs.append(
                ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=output)
            )
            rank.reported, rank.loaded, rank.failed = [], set(), set()
        reports = self.aggregator.aggregate(outputs)
        assert reports is not None
        heard = reports.kv_connector_output
        # Sets have no order of their own; which comes first decides which block is taken next.
        heard.finished_recving = InOrder(heard.finished_recving or ())
        if not FAILED_BY_BLOCK:
            heard.failed_recving = InOrder(heard.failed_recving)
        self.steps[0].output.kv_connector_output = heard
        self._update_from_output()

    def _run_job(self, index: str, outcome: str = "ok") -> None:
        rank = self.ranks[int(index)]
        self._transfer(rank, rank.sender, outcome != "ok")
        rank.outbox.extend(rank.sender.take_completed_saves())

    def _run_load(self, index: str, failed: str = "False") -> None:
        rank = self.ranks[int(index)]
        self._transfer(rank, rank.receiver, failed != "False")
        rank.loaded |= rank.receiver.get_and_clear_finished_requests()
        if FAILED_BY_BLOCK:
            rank.failed |= rank.receiver.get_and_clear_block_ids_with_load_errors()
        else:
            rank.failed |= rank.receiver.get_and_clear_failed_requests()

    def _transfer(self, rank: Any, thread: Any, fails: bool) -> None:
        rank.transport.failing = self.config.failure_code if fails else None
        self.excused |= fails
        try:
            thread._handle_request(thread.request_queue.get_nowait())
        finally:
            rank.transport.failing = None

    def _report(self, index: str, job: str) -> None:
        self.ranks[int(index)].outbox.remove(int(job))
        self.ranks[int(index)].reported.append(int(job))

    def _look_up(self, name: str, failed: str = "False") -> None:
        self.client.answer(name, failed != "False")

    def _evict(self, rank: str, group: str, prefix: str) -> None:
        self.excused = True
        key = self._key_of(rank, group, prefix)
        assert key is not None
        del self.store[key]

    def _key_of(self, rank: str, group: str, prefix: str) -> str | None:
        """Return the store's key of a rank and group for a prefix; None if it has none."""
        where = (f"@tp_rank:{rank}@", f"@group:{group}@")
        for key in self.store:
            named = self.prefixes.get(bytes.fromhex(key.rsplit("@", 1)[1]))
            if named == prefix and all(part in key for part in where):
                return key
        return None

    def _can_reset(self, running: str = "False", store: str = "False") -> bool:
        """Whether the caller of a reset has seen to what the release asks of it."""
        if self.steps and self.config.max_steps_in_flight == 1:
            return False
        loads = any(rank.receiver.request_queue.queue for rank in self.ranks)
        busy = self.ranks[0].sender.request_queue.queue or self.client.asked or self.client.answers
        return store == "False" or not (busy or loads)

    def _reset(self, running: str = "False", store: str = "False") -> None:
        self.excused = True
        try:
            done = self.scheduler.reset_prefix_cache(running != "False", store != "False")
        except RuntimeError as error:  # blocks are held although nothing runs any more
            if not str(error).startswith("Failed to reset KV cache even when"):
                raise
            done, store = False, "False"
        held = [block.block_id for block in self.pool.blocks if block.ref_cnt and not block.is_null]
        if done and (held or self.key_map()):
            self._blame(
                "S13", f"the cache was reset, but blocks {held} are held, or some have keys"
            )
        if store != "False" and self.store:
            self._blame("S13", f"the store was reset, but has {len(self.store)} keys")

    @property
    def is_at_rest(self) -> bool:
        """Whether the engine would stop stepping, and no rank has anything left to do."""
        queued = any(
            rank.sender.request_queue.queue or rank.receiver.request_queue.queue or rank.outbox
            for rank in self.ranks
        )
        return not self.steps and not self.scheduler.has_requests() and not queued

    def run_to_rest(self) -> None:
        """Let ranks, then device, then passes go on until nothing is left to do (L2)."""
        empty = count = 0
        while not self.is_at_rest and empty <= MAX_EMPTY_PASSES and count < MAX_DRAIN:
            count += 1
            name = self._go_on()
            if not name.startswith(("schedule", "execute", "update_from")) or any(
                step.scheduled.num_scheduled_tokens for step in self.steps
            ):
                empty = 0
            else:
                empty += name == "schedule_pass"
        left = "; ".join(self.leftovers())
        if not self.is_at_rest:
            self._blame("L2", f"not at rest after {count} actions, nothing moves: {left}")
        held = [block.block_id for block in self.pool.blocks if block.ref_cnt and not block.is_null]
        if left or held:
            self._blame("L2", left or f"blocks {held} are not free")
        if self.watching in ("L6", "R23", "R29") and not self.excused:
            self._check_promises()
        self.check()

    def _check_promises(self) -> None:
        """L6, R23 (EAGLE): a longer prompt finds a finished one's boundary; R29: an equal one."""
        unit, eagle = self.config.hash_unit, self.config.eagle
        if self.config.role == "consumer" or self.watching == ("L6" if eagle else "R23"):
            return
        for name, request in self.requests.items():
            if request.status not in (
                RequestStatus.FINISHED_LENGTH_CAPPED,
                RequestStatus.FINISHED_STOPPED,
            ):
                continue
            prompt = self.specs[name].prompt
            owed = (len(prompt) - 1) // unit * unit
            if eagle:
                owed = max(len(prompt) // unit * unit - unit, 0)
            found = self.found_in_store(prompt + ("" if self.watching == "R29" else "\0"))
            if found < owed:
                why = f"of {len(prompt)} prompt tokens of {name}, {found} are found, not {owed}"
                self._blame(self.watching, why)

    def found_in_store(self, prompt: str) -> int:
        """Return how many tokens of a prompt a new consumer finds in the store."""
        blocks = math.ceil(len(prompt) / self.sizes[ATTENTION]) + 16
        changed: dict[str, Any] = {"requests": [Request("later", prompt)], "role": "consumer"}
        changed |= {"num_blocks": blocks, "max_steps_in_flight": 1, "lookup_async": False}
        shared = {"store": self.store, "prefixes": self.prefixes}
        consumer = Engine(**{**self.settings, **changed, **shared})
        for name in ("submit", "schedule_pass"):
            consumer.perform(name, *(["later"] if name == "submit" else []))
        loads = consumer.ranks[0].receiver.request_queue.queue
        return loads[0].load_spec.kvpool_cached_tokens if loads else 0

    def _go_on(self) -> str:
        for index, rank in enumerate(map(str, range(len(self.ranks)))):
            job = (str(job) for job in self.ranks[index].outbox[:1])
            for name, arguments in (
                ("run_job", (rank,)), ("run_load", (rank,)), ("report", (rank, *job))
            ):  # fmt: skip
                if self.is_possible(name, *arguments):
                    self.perform(name, *arguments)
                    return name
        for asked in list(self.client.asked):
            if self.perform("look_up", asked):
                return "look_up"
        for name in ("update_connector_output", "update_from_output", "execute", "schedule_pass"):
            if self.perform(name):
                return name
        return ""

    # The device

    def _forward(self, step: Any) -> dict[str, list[int]]:
        """Run a step on every rank's memory; return what each request samples."""
        for name in step.finished_req_ids:
            self.rows.pop(name, None)
        copies = step.kv_cache_block_copies or ()
        for memory in self.memories:
            pages = [self._page(memory, copy.src_block_id) for copy in copies]
            memory.update(zip((copy.dst_block_id for copy in copies), pages, strict=True))
        starts = self._starts(step)
        for new in step.scheduled_new_reqs:
            known = len(new.prefill_token_ids or new.prompt_token_ids)
            tables = [list(table) for table in new.block_ids]
            self.rows[new.req_id] = SimpleNamespace(known=known, tables=tables, column=None)
        cached = step.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            row = self.rows[name]
            if name in cached.resumed_req_ids:
                tokens = cached.all_token_ids.get(name)
                row.known = row.known if tokens is None else len(tokens)
                row.tables, row.column = [list(table) for table in blocks], None
            else:
                for table, added in zip(row.tables, blocks or ((), ()), strict=True):
                    table.extend(added)
        return {
            name: self._chunk(name, starts[name], starts[name] + count)
            for name, count in step.num_scheduled_tokens.items()
        }

    def _chunk(self, name: str, start: int, end: int) -> list[int]:
        row, script = self.rows[name], self.specs[name].tokens
        if end > row.known:
            self._blame("V5", f"{name} is scheduled to token {end}, but only {row.known} are known")
            return []
        text = script + "z" * (row.known + 1 - len(script))
        attention, states = row.tables
        size, unit = self.sizes
        source = row.column if row.column is not None else (start - 1) // unit
        target = (end - 1) // unit
        if target >= len(states) or states[target] == NULL:
            self._blame("V5", f"{name} has no Mamba block for token {end}: table {states}")
            return []
        for rank, memory in enumerate(self.memories):
            why = self._why_not_prefix(memory, attention, text[:start])
            if why is None and start:
                why = self._why_not_state(memory, states[source], text[:start])
            if why is not None:
                self._blame("V5", f"{name} reads wrong KV on rank {rank}: {why}")
            for position in range(start, end):
                block = attention[position // size]
                if block == NULL:
                    self._blame("V5", f"the null block is written at position {position}")
                    break
                if not isinstance(memory.get(block), list):
                    memory[block] = [""] * size
                memory[block][position % size] = text[: position + 1]
            memory[states[target]] = text[:end]
        row.column = target
        if end < row.known:
            return []
        row.known += 1
        return [ord(text[end])]

    @staticmethod
    def _page(memory: dict[int, Any], block: int) -> Any:
        page = memory.get(block, "")
        return list(page) if isinstance(page, list) else page

    def _why_not_prefix(self, memory: dict[int, Any], table: list[int], prefix: str) -> str | None:
        size = self.sizes[ATTENTION]
        for first in range(0, len(prefix), size):
            why = self._why_not_slots(memory, table[first // size], prefix[: first + size])
            if why is not None:
                return why
        return None

    def _why_not_slots(self, memory: dict[int, Any], block: int, prefix: str) -> str | None:
        """Return why an attention block does not hold the end of ``prefix``; None if it does."""
        size = self.sizes[ATTENTION]
        first = (len(prefix) - 1) // size * size
        page = memory.get(block, "")
        for slot in range(len(prefix) - first):
            held, meant = page[slot] if isinstance(page, list) else "", prefix[: first + slot + 1]
            if held != meant:
                what = f"the state after {page!r}" if isinstance(page, str) and page else repr(held)
                return f"slot {slot} of block {block} holds {what}, not {meant!r}"
        return None

    def _why_not_state(self, memory: dict[int, Any], block: int, prefix: str) -> str | None:
        page = memory.get(block, "")
        if page == prefix:
            return None
        held = "attention slots" if isinstance(page, list) else repr(page)
        return f"block {block} holds {held}, not the state after {prefix!r}"

    def why_not_under_key(self, rank: int, block: int, group: int, prefix: str) -> str | None:
        """Return why a block does not hold what a key at ``prefix`` promises; None if it does."""
        why_not = self._why_not_state if group == MAMBA else self._why_not_slots
        return why_not(self.memories[rank], block, prefix)

    # Books: what steps touch, what jobs read, what was handed off

    @staticmethod
    def _starts(step: Any) -> dict[str, int]:
        cached = step.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        return starts | {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}

    def tables(self, name: str) -> list[list[int]]:
        """Return a request's block tables, group by group."""
        managers = self.manager.coordinator.single_type_managers
        return [[b.block_id for b in m.req_to_blocks.get(name, ())] for m in managers]

    def _touched(self, step: Any) -> set[int]:
        """Return the blocks that a step copies or writes."""
        touched = set()
        for copy in step.kv_cache_block_copies or ():
            touched |= {copy.src_block_id, copy.dst_block_id}
        starts = self._starts(step)
        for name, count in step.num_scheduled_tokens.items():
            last = starts[name] + count - 1
            attention, states = self.tables(name)
            touched.update(attention[starts[name] // self.sizes[0] : last // self.sizes[0] + 1])
            touched.add(states[last // self.sizes[1]])
        return touched

    def _note_loads(self, step: Any) -> None:
        for request in step.kv_connector_metadata.requests:
            if request.load_spec is None:
                continue
            unit = math.lcm(*self.sizes)
            start = request.load_spec.vllm_cached_tokens // unit * unit
            loaded = {
                block
                for table, size in zip(request.block_ids, self.sizes, strict=True)
                for block in table[start // size :]
                if block != NULL
            }
            for before in self.steps:
                if before.output is None and (both := sorted(loaded & before.touched)):
                    why = f"{request.req_id} loads into {both}, which a step that has not run yet"
                    self._blame("V6", f"{why} copies or writes")

    @staticmethod
    def _puts(request: Any) -> list[Any]:
        """Return (group, block, boundary in tokens) of what is stored under an explicit hash."""
        name = "boundary_state_offloads" if OLD_STORE else "boundary_puts"
        return list(getattr(request, name) or ())

    def _note_jobs(self, step: Any) -> None:
        for request in step.scheduled.kv_connector_metadata.requests:
            if not request.can_save:
                continue
            puts = self._puts(request)
            blocks = {block for _, block, _ in puts}
            if request.token_len_chunk or OLD_STORE:
                blocks.update(block for block in request.block_ids[ATTENTION] if block != NULL)
            ranks = list(range(len(self.ranks)))
            self.jobs[request.store_job_id] = SimpleNamespace(blocks=sorted(blocks), ranks=ranks)
            step.jobs.add(request.store_job_id)
            for put in puts:
                self._note_put(request, *put)

    def _note_put(self, request: Any, group: int, block: int, boundary: int) -> None:
        what = f"block {block} of {request.req_id} at {boundary} tokens"
        if block == NULL:
            self._blame("S7", f"{what} is the null block")
        elif not self.pool.blocks[block].ref_cnt:
            self._blame("S7", f"{what} is handed off without a reference")
        if group != MAMBA:
            return
        end = request.num_prompt_tokens if OLD_STORE else request.prefill_end_tokens
        if boundary > end:
            self._blame("S7", f"{what} is past the end of prefill, {end}")
        handoff = (request.req_id, self.generations[request.req_id], boundary)
        if handoff in self.handed_off:
            self._blame("S10", f"{what} is handed off a second time")
        self.handed_off.add(handoff)

    def _check_handoffs(self, step: Any) -> None:
        for request in step.kv_connector_metadata.requests:
            for group, block, boundary in self._puts(request):
                index = boundary // self.config.hash_unit - 1
                if index < len(request.block_hashes):
                    prefix = self.prefixes[bytes(request.block_hashes[index])]
                    for rank in range(len(self.ranks)):
                        why = self.why_not_under_key(rank, block, group, prefix)
                        if why is not None:
                            self._blame("S7", f"{request.req_id} on rank {rank}: {why}")

    # Properties

    def _blame(self, identifier: str, why: str) -> None:
        self.wrong.setdefault(identifier, why)

    def check(self) -> None:
        """Raise Violation if the property that is watched does not hold."""
        state = {
            "S1": self._references, "S2": self._key_map, "S3": self._keyed_contents,
            "S9": self._pins, "S10": self._markers,
        }  # fmt: skip
        why = self.wrong.get(self.watching)
        if why is None and self.watching in state:
            why = state[self.watching]()
        if why is not None:
            raise Violation(f"{self.watching}: {why}")

    def _references(self) -> str | None:
        """S1: as many references as owners; the free list is what has none."""
        owners: Counter[int] = Counter()
        for manager in self.manager.coordinator.single_type_managers:
            for blocks in [*manager.req_to_blocks.values(), *manager._pending_cow_copies]:
                owners.update(block.block_id for block in blocks if not block.is_null)
        for _, blocks in self.scheduler.deferred_frees:
            owners.update(block.block_id for block in blocks if not block.is_null)
        for blocks, _ in self.connector._pinned_saves.values():
            owners.update(blocks)
        free = [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
        for block in self.pool.blocks[1:]:
            if block.ref_cnt != owners[block.block_id]:
                count = f"{block.ref_cnt} references, and {owners[block.block_id]} owners"
                return f"block {block.block_id} has {count}"
        unreferenced = [block.block_id for block in self.pool.blocks[1:] if not block.ref_cnt]
        if sorted(free) != unreferenced or len(free) != self.pool.get_num_free_blocks():
            return f"the free list is {free}, but {unreferenced} have no reference"
        return None

    def _key_map(self) -> str | None:
        """S2: a key finds a block if and only if the block says that it has the key."""
        keyed = {(bytes(b.block_hash), b.block_id) for b in self.pool.blocks if b.block_hash}
        for block, keys in self.pool.cached_block_hashes_by_block.items():
            keyed |= {(bytes(key), block) for key in keys}
        wrong = sorted({block for _, block in keyed ^ set(self.key_map())})
        return f"keys found and keys that blocks have differ for blocks {wrong}" if wrong else None

    def key_map(self) -> list[tuple[bytes, int]]:
        """Return (key, block) for every entry of the map that lookups read."""
        return [
            (bytes(key), block.block_id)
            for key, blocks in self.pool.cached_block_hash_to_block._cache.items()
            for block in (blocks.values() if isinstance(blocks, dict) else (blocks,))
        ]

    def _keyed_contents(self) -> str | None:
        """S3: with no step left to execute, a keyed block holds what its keys promise."""
        if any(step.output is None for step in self.steps):
            return None
        for key, block in self.key_map():
            group, prefix = int.from_bytes(key[-4:], "big"), self.prefixes[key[:-4]]
            for rank in range(len(self.ranks)):
                why = self.why_not_under_key(rank, block, group, prefix)
                if why is not None:
                    return f"the key of group {group} at {prefix!r} is wrong: {why}"
        return None

    def _pins(self) -> str | None:
        """S9: the blocks of a job are pinned until every rank has reported it, and no longer."""
        pins = self.connector._pinned_saves
        for job, (_, left) in pins.items():
            if job not in self.jobs and left != len(self.ranks):
                return f"job {job} was not sent yet, but waits for {left} ranks only"
        for job, owed in self.jobs.items():
            blocks, left = pins.get(job, (None, 0))
            if not owed.ranks or not owed.blocks:
                if blocks is not None:
                    return f"job {job} keeps its pin although every rank has reported it"
                continue
            if blocks is None:
                return f"job {job} lost its pin on {owed.blocks}: ranks {owed.ranks} not reported"
            if set(blocks) != set(owed.blocks):
                return f"job {job} pins {sorted(blocks)}, but reads {owed.blocks}"
            if left != len(owed.ranks):
                return f"job {job} waits for {left} reports, but ranks {owed.ranks} are left"
            if free := [block for block in owed.blocks if not self.pool.blocks[block].ref_cnt]:
                return f"blocks {free} of job {job} have no reference, ranks {owed.ranks} are left"
        return None

    def _markers(self) -> str | None:
        """S10: a marker of a tail names a block in its own request's table."""
        for group, manager in enumerate(self.manager.coordinator.single_type_managers):
            for name, marker in getattr(manager, "_producer_partial_tail_reqs", {}).items():
                if not isinstance(marker, tuple):  # up to 0.31: where in the table it is
                    marker = (manager.req_to_blocks[name][marker // manager.block_size], marker)
                block, at = marker
                if group != MAMBA or block.block_id not in self.tables(name)[group]:
                    return f"the tail of {name} at {at} marks block {block.block_id}"
        return None

    def leftovers(self) -> list[str]:
        """L2: what scheduler, managers and connector still remember."""
        places: list[tuple[Any, str]] = [
            (self.scheduler, "requests running waiting kv_holding_waiting skipped_waiting "
             "deferred_waiting "
             "deferred_frees finished_recving_kv_req_ids failed_recving_kv_req_ids "
             "_inflight_prefills"),
            (self.connector, "load_specs _request_trackers _unfinished_requests "
             "_unfinished_request_ids _finished_partial_tail_metas _pinned_saves"),
        ]  # fmt: skip
        fields = (
            "req_to_blocks num_cached_block _partial_hit_reqs _pending_cow_copies "
            "_pending_boundary_state_offloads last_state_block_idx _num_retired_blocks "
            "_allocated_block_reqs _checkpoints _producer_partial_tail_reqs"
        )
        places += [(manager, fields) for manager in self.manager.coordinator.single_type_managers]
        return [
            f"{type(owner).__name__}.{name} is not empty"
            for owner, names in places
            for name in names.split()
            if getattr(owner, name, None)
        ]


class Transport:
    """One rank's connection to the store, with Mooncake's interface and return codes."""

    def __init__(self, engine: Engine, rank: int) -> None:
        self.engine, self.rank, self.failing = engine, rank, None

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return [int(key in self.engine.store) for key in keys]

    def batch_put_from_multi_buffers(
        self, keys: list[str], addresses: Any, sizes: Any, config: Any = None
    ) -> list[int]:
        if self.failing is not None:
            return [self.failing] * len(keys)
        for key, (block,) in zip(keys, addresses, strict=True):
            self._check(key, int(block))
            page = self.engine._page(self.engine.memories[self.rank], int(block))
            self.engine.store.setdefault(key, page)
        return [0] * len(keys)

    def _check(self, key: str, block: int) -> None:
        """S8: a stored key has the bytes that its hash promises."""
        group = int(key.split("@group:")[1].split("@")[0])
        prefix = self.engine.prefixes.get(bytes.fromhex(key.rsplit("@", 1)[1]))
        why: str | None = f"{key} is the hash of no request's prefix"
        if block == NULL:
            why = f"the null block is stored under {key}"
        elif prefix is not None:
            why = self.engine.why_not_under_key(self.rank, block, group, prefix)
            why = why and f"the key at {prefix!r} is stored wrong: {why}"
        if why is not None:
            self.engine._blame("S8", why)

    def batch_get_into_multi_buffers(
        self, keys: list[str], addresses: Any, sizes: Any
    ) -> list[int]:
        if self.failing is not None:
            return [self.failing] * len(keys)
        memory, codes = self.engine.memories[self.rank], []
        for key, (block,) in zip(keys, addresses, strict=True):
            found = key in self.engine.store
            if found:
                page = self.engine.store[key]
                memory[int(block)] = list(page) if isinstance(page, list) else page
            codes.append(1 if found else -704)
        return codes
