"""Building the real scheduler, without weights, hub, GPU or sockets.

Real: the scheduler, its KV cache manager and block pool, the Mooncake store connector and its
coordinator. Ours: stand-ins for the model's configuration, EAGLE's, structured output, and the
client of the lookup socket (``lookups.py``).
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

import attrs

from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.lookups import DirectLookup
from cowtail.impl.vllm_engine.multi import store_connectors
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.scope import RequestSpec

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""The environment variable from which a scheduler takes the conventions of its runner."""

_ROLES = {"producer": "kv_producer", "consumer": "kv_consumer", "both": "kv_both"}


class _Absent(SimpleNamespace):
    """A configuration in which every field that was not set is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


class _Eagle(_Absent):
    """An EAGLE drafter that proposes nothing; only the block drop matters to a block's life."""

    def use_eagle(self) -> bool:
        return True

    def use_eagle_block_drop(self) -> bool:
        return True

    def needs_eagle_block_drop(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("use_"):
            return lambda: False
        return super().__getattr__(name)


@attrs.frozen
class Built:
    """The scheduler side, and what the worker side has to share with it. Sizes in tokens."""

    scheduler: Any
    vllm_config: Any
    kv_cache_config: Any
    coordinator: Any
    lookups: tuple[DirectLookup, ...]
    scheduler_block_size: int
    hash_block_size: int


def build(config: EngineConfig) -> Built:
    """Build the real scheduler and connector for a configuration.

    Raises VllmNotInstalled where vLLM is missing.
    """
    vllm = surface()
    scheduler_class = vllm.AsyncScheduler if config.max_steps_in_flight > 1 else vllm.Scheduler
    # What only the V2 runner itself needs (triton) is checked with the configuration; the
    # scheduler asks again, and only for whose conventions to speak.
    with mock.patch.dict(os.environ, {RUNNER_VARIABLE: "0"}):
        vllm_config = _vllm_config(config)
    kv_cache_config, scheduler_block_size, hash_block_size = _kv_cache_config(config, vllm_config)
    with (
        mock.patch.object(vllm.store_scheduler, "LookupKeyClient", DirectLookup),
        mock.patch.dict(os.environ, {RUNNER_VARIABLE: str(int(config.model_runner == "v2"))}),
    ):
        scheduler = scheduler_class(
            vllm_config=vllm_config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=_Absent(
                accept_tokens=lambda *args: True, should_advance=lambda *args, **kwargs: False
            ),
            block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
            log_stats=False,
        )
    return Built(
        scheduler=scheduler,
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        coordinator=_coordinator(
            config, vllm_config, kv_cache_config, scheduler_block_size, hash_block_size
        ),
        lookups=tuple(
            each.connector_scheduler.client for each in store_connectors(scheduler.connector)
        ),
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
    )


def _coordinator(
    config: EngineConfig,
    vllm_config: Any,
    kv_cache_config: Any,
    scheduler_block_size: int,
    hash_block_size: int,
) -> Any:
    """Build the store's coordinator as the release's own worker does."""
    vllm = surface()
    coordinator = vllm.store_coordinator.MooncakeStoreCoordinator
    if vllm.release.coordinator_from_config:
        return coordinator.from_kv_cache_config(
            kv_cache_config, vllm_config, scheduler_block_size, hash_block_size
        )
    return coordinator(
        kv_cache_config.kv_cache_groups,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        use_eagle=config.eagle,
        retention_interval=kv_cache_config.prefix_cache_retention_interval,
        dcp_world_size=1,
    )


def build_request(spec: RequestSpec, arrival: int, hash_block_size: int) -> Any:
    """Build a request whose token ids are the characters of its prompt.

    ``arrival`` orders requests in place of the wall clock.
    """
    vllm = surface()
    return vllm.request.Request(
        request_id=spec.name,
        prompt_token_ids=[ord(token) for token in spec.prompt],
        sampling_params=vllm.SamplingParams(max_tokens=spec.max_tokens, ignore_eos=True),
        pooling_params=None,
        block_hasher=vllm.kv_cache_utils.get_request_block_hasher(hash_block_size, vllm.sha256),
        arrival_time=float(arrival),
        priority=spec.priority,
    )


def _vllm_config(config: EngineConfig) -> Any:
    vllm = surface()
    max_model_len = config.longest + config.lcm_block_size
    asynchronous = config.max_steps_in_flight > 1
    vllm_config = vllm.config.VllmConfig(
        scheduler_config=vllm.config.SchedulerConfig(
            max_num_seqs=max(len(config.requests), 1),
            max_num_batched_tokens=config.token_budget,
            max_model_len=max_model_len,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=asynchronous,
            policy="priority" if config.priority else "fcfs",
            watermark=0.0,
            scheduler_reserve_full_isl=False,
        ),
        cache_config=vllm.config.CacheConfig(
            block_size=config.mamba_block_size,
            enable_prefix_caching=True,
            prefix_cache_retention_interval=config.retention_interval,
        ),
        device_config=vllm.config.DeviceConfig("cpu"),
        kv_transfer_config=vllm.config.KVTransferConfig(
            **_connector(config),
            kv_load_failure_policy="recompute" if config.recompute_failed_loads else "fail",
        ),
    )
    cache = vllm_config.cache_config
    if config.shared_prefix_checkpoints:
        setattr(cache, vllm.release.shared_prefix_checkpoint, True)
    cache.mamba_cache_mode = "align"
    cache.prefix_match_unit = config.hash_unit
    cache.num_gpu_blocks = config.num_blocks
    # What follows is settled by a model or an executor, of which there is none here.
    cache.block_size = config.mamba_block_size
    vllm_config.scheduler_config.async_scheduling = asynchronous
    vllm_config.scheduler_config.disable_hybrid_kv_cache_manager = False
    vllm_config.parallel_config.world_size = config.num_ranks
    vllm_config.model_config = _Absent(
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
        vllm_config.speculative_config = _Eagle(
            draft_model_config=None,
            method="eagle",
            num_speculative_tokens=1,
            num_speculative_tokens_per_batch_size=None,
            max_num_new_slots_for_drafting=0,
        )
    return vllm_config


def _window_groups(config: EngineConfig) -> list[Any]:
    """Return the group of sliding-window attention, if there is one."""
    if not config.window:
        return []
    vllm = surface()
    spec = vllm.kv_cache.SlidingWindowSpec(
        block_size=config.window_block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=vllm.torch.float32,
        sliding_window=config.window,
    )
    return [vllm.kv_cache.KVCacheGroupSpec(["window"], spec)]


def _connector(config: EngineConfig) -> dict[str, Any]:
    """Return the settings of the connector, or of one of several and its children."""
    role = _ROLES[config.role.value]
    child = {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"load_async": True, "lookup_async": config.lookup_async},
    }
    if config.connectors == 1:
        return child
    return {
        "kv_connector": "MultiConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"connectors": [child] * config.connectors},
    }


def _kv_cache_config(config: EngineConfig, vllm_config: Any) -> tuple[Any, int, int]:
    vllm = surface()
    attention = vllm.kv_cache.FullAttentionSpec(
        block_size=config.attention_block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=vllm.torch.float32,
    )
    mamba = vllm.kv_cache.MambaSpec(
        block_size=config.mamba_block_size,
        shapes=((1,),),
        dtypes=(vllm.torch.float32,),
        mamba_cache_mode="align",
        num_speculative_blocks=int(config.eagle),
    )
    kv_cache_config = vllm.kv_cache.KVCacheConfig(
        num_blocks=config.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            vllm.kv_cache.KVCacheGroupSpec(["attention"], attention, is_eagle_group=config.eagle),
            vllm.kv_cache.KVCacheGroupSpec(["mamba"], mamba),
            *_window_groups(config),
        ],
        prefix_cache_retention_interval=config.retention_interval,
    )
    utils = vllm.kv_cache_utils
    scheduler_block_size, hash_block_size = utils.resolve_kv_cache_block_sizes(
        kv_cache_config, vllm_config
    )
    if vllm.release.alignment_in_kv_cache_config:
        # Unset, the store's partial hits would be off without a word.
        kv_cache_config.hash_block_size = hash_block_size
        kv_cache_config.cache_hit_alignment_tokens = utils.resolve_cache_hit_alignment_tokens(
            kv_cache_config, vllm_config, scheduler_block_size, hash_block_size
        )
    return kv_cache_config, scheduler_block_size, hash_block_size
