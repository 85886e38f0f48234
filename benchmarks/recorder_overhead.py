"""What recording costs the real scheduler: processor time of its calls, with and without.

    python benchmarks/recorder_overhead.py [--rounds N] [--requests N]

The real scheduler, managers and connector; no device and no ranks: outputs are made up, and every
store job is reported by all ranks with the next output. Only the time inside ``schedule``,
``update_from_output`` and ``add_request`` counts, which is what an engine core does between
two steps, so the ratio is what recording costs the scheduler's process; a served token also waits
for the device, of which this knows nothing. Plain, recorded and monitored runs of the same
workload take turns. Every run makes the same passes, so the least that each pass took in any
round is what it takes on an undisturbed machine; printed are the ratios of the sums of these.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import attrs

from cowtail import vllm_plugin
from cowtail.harness.check import check_log
from cowtail.impl.vllm_engine.build import build, build_request
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.scope import RequestSpec, Role
from cowtail.spec.exploration import Verdict

MODES = ("plain", "recorded", "monitored")


@attrs.frozen
class Workload:
    """Requests that come at once: lengths in tokens, the first ``shared`` of which are the same."""

    name: str
    prompt: int
    shared: int
    max_tokens: int
    block_size: int
    blocks: int


WORKLOADS = (
    Workload("long outputs", prompt=300, shared=0, max_tokens=256, block_size=512, blocks=2000),
    Workload("chat", prompt=1500, shared=700, max_tokens=256, block_size=512, blocks=2000),
    Workload("tight pool", prompt=1500, shared=700, max_tokens=256, block_size=512, blocks=160),
    Workload("long prompts", prompt=6000, shared=0, max_tokens=16, block_size=512, blocks=2000),
    Workload("small blocks", prompt=600, shared=300, max_tokens=256, block_size=16, blocks=10_000),
)
"""Hybrid models have blocks of hundreds of tokens; the last one is the worst case instead."""


def config_of(workload: Workload, num_requests: int) -> EngineConfig:
    """Return an engine for a workload; hits are multiples of 16 tokens."""
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    stem = "".join(rng.choices(letters, k=workload.shared))
    requests = tuple(
        RequestSpec(
            f"cmpl-{rng.getrandbits(128):032x}-0",
            stem + "".join(rng.choices(letters, k=workload.prompt - workload.shared)),
            workload.max_tokens,
        )
        for _ in range(num_requests)
    )
    return EngineConfig(
        requests=requests,
        attention_block_size=workload.block_size,
        mamba_block_size=workload.block_size,
        hash_unit=16,
        num_blocks=workload.blocks,
        token_budget=8192,
        role=Role.BOTH,
    )


def run(config: EngineConfig, mode: str, folder: Path) -> tuple[list[float], Path | None]:
    """Run a workload to its end; return seconds in the scheduler by pass, and the log."""
    vllm = surface()
    built = build(config)
    built.lookup.ask = lambda *_: SimpleNamespace(hit_length=0, tail_key_boundaries=())
    scheduler = built.scheduler
    log = folder / f"{mode}.jsonl"
    log.unlink(missing_ok=True)
    wanted = {"plain": {}, "recorded": {vllm_plugin.LOG: str(log)}}.get(
        mode, {vllm_plugin.LOG: str(log), vllm_plugin.MONITOR: "raise"}
    )
    recorder = None
    if wanted:
        with mock.patch.dict(os.environ, wanted):
            recorder = vllm_plugin.record(scheduler)
    requests = [
        build_request(spec, arrival, built.hash_block_size)
        for arrival, spec in enumerate(config.requests)
    ]
    gc.collect()
    gc.freeze()  # as the engine core does once it is built
    spent = []
    began = time.process_time()
    for request in requests:
        scheduler.add_request(request)
    spent.append(time.process_time() - began)
    while scheduler.has_requests():
        began = time.process_time()
        scheduled = scheduler.schedule()
        between = time.process_time()
        output = _output(vllm, scheduler, scheduled, config.num_ranks)
        again = time.process_time()
        scheduler.update_from_output(scheduled, output)
        spent.append(time.process_time() - again + between - began)
    gc.unfreeze()
    if recorder is not None:
        recorder.close()
    return spent, log if recorder is not None else None


def _output(vllm: Any, scheduler: Any, scheduled: Any, num_ranks: int) -> Any:
    """Return a step's output: one token for whoever has all of its tokens, all jobs reported."""
    names = list(scheduled.num_scheduled_tokens)
    sampled = []
    for name in names:
        request = scheduler.requests[name]
        whole = request.num_computed_tokens >= request.num_tokens
        sampled.append([97] if whole else [])
    jobs = {
        request.store_job_id: num_ranks
        for request in scheduled.kv_connector_metadata.requests
        if request.can_save
    }
    metadata = vllm.store_data.MooncakeStoreWorkerMetadata(completed_saves=jobs)
    return vllm.outputs.ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=sampled,
        kv_connector_output=vllm.outputs.KVConnectorOutput(kv_connector_worker_meta=metadata),
    )


def main() -> None:
    """Measure, and print one line a workload."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=48)
    options = parser.parse_args()
    print("workload       passes  plain us/pass  recorded  monitored  log bytes/pass")
    with tempfile.TemporaryDirectory() as folder:
        for workload in WORKLOADS:
            config = config_of(workload, options.requests)
            best: dict[str, list[float]] = {}
            size = 0
            for _ in range(options.rounds):
                for mode in MODES:
                    spent, log = run(config, mode, Path(folder))
                    best[mode] = [
                        min(pair) for pair in zip(spent, best.get(mode, spent), strict=True)
                    ]
                    if mode == "recorded" and log is not None:
                        size = log.stat().st_size
                        assert check_log(str(log)).verdict is Verdict.HOLDS
            total = {mode: sum(seconds) for mode, seconds in best.items()}
            passes = len(best["plain"]) - 1
            print(
                f"{workload.name:14} {passes:6} {total['plain'] / passes * 1e6:14.0f}"
                f"  {total['recorded'] / total['plain']:8.3f}"
                f"  {total['monitored'] / total['plain']:9.3f}  {size / passes:14.0f}"
            )


if __name__ == "__main__":
    main()
