"""Attaching to a scheduler: its calls, and what they decide about requests."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable
from typing import Any

from cowtail.impl.vllm_recorder.connector import (
    ConnectorHooks,
    connector_names,
    hit_alignment,
    store_schedulers,
)
from cowtail.impl.vllm_recorder.managers import TableHooks
from cowtail.impl.vllm_recorder.pool import PoolHooks
from cowtail.impl.vllm_recorder.recorder import Recorder, place

FORMAT = 1
"""The version of the format that is written."""


class SchedulerHooks:
    """The hooks of one ``Scheduler``, and of what is below it."""

    def __init__(self, recorder: Recorder, scheduler: Any, versions: tuple[str, str]) -> None:
        """Attach. ``versions`` are cowtail's and vLLM's, for the header."""
        self._recorder = recorder
        self._scheduler = scheduler
        self._step = 0
        self._steps: dict[int, int] = {}
        self._began = self._now = time.monotonic()
        self._names: list[str] = []
        self._requests = "[]"
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        sides = store_schedulers(scheduler.connector) if scheduler.connector is not None else []
        recorder.line(_header(scheduler, managers, sides, versions))
        self._pool = PoolHooks(recorder, scheduler.kv_cache_manager.block_pool)
        TableHooks(recorder, scheduler.kv_cache_manager, managers)
        sizes = {manager.kv_cache_group_id: manager.block_size for manager in managers}
        self._connectors = [ConnectorHooks(recorder, number, side, sizes) for number, side in sides]
        hooks = recorder.hooks
        hooks.before(scheduler, "_preempt_request", self._preempted)
        hooks.before(scheduler, "_free_request", self._finished)
        hooks.before(scheduler, "_update_from_kv_xfer_finished", self._loaded)
        for name in ("_free_request_blocks", "_free_cow_retained_blocks", "_drain_deferred_frees"):
            if hasattr(scheduler, name):
                hooks.wrap(scheduler, name, self._deferring)
        self._call("add_request", before=self._submitted)
        self._call("schedule", after=self._scheduled)
        self._call("update_from_output", before=self._updated)
        self._call("finish_requests")
        self._call("reset_prefix_cache")
        hooks.after(scheduler, "shutdown", lambda _: recorder.close())
        atexit.register(recorder.close)
        recorder.flush()

    # Calls

    def _call(
        self,
        name: str,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        """Wrap a call into the scheduler: when the outermost one is over, books are settled."""
        recorder = self._recorder
        guarded = recorder.hooks.guarded

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                recorder.depth += 1
                if before is not None:
                    guarded(before, *args, **kwargs)
                try:
                    result = original(*args, **kwargs)
                except Exception as error:
                    recorder.depth -= 1
                    guarded(self._raised, name, error)
                    raise
                recorder.depth -= 1
                if after is not None:
                    guarded(after, result)
                if not recorder.depth and recorder.hooks.active:
                    wanted = self._settle(name)
                    if wanted is not None:
                        raise wanted
                return result

            return call

        recorder.hooks.wrap(self._scheduler, name, wrap)

    def _settle(self, call: str) -> Exception | None:
        """Say how the blocks are that the call has used, and write; return what to raise."""
        recorder = self._recorder
        try:
            for connector in self._connectors:
                connector.settle()
            recorder.end_keys()
            if recorder.operations or recorder.rekeyed:
                recorder.line(
                    f'{{"event":"settled","call":"{call}","free":{self._pool.free_count()},'
                    f"{self._pool.references()},{self._pool.keys()}}}"
                )
                recorder.operations = 0
                recorder.used.clear()
                recorder.rekeyed.clear()
            return recorder.call_over(self._now)
        except Exception as error:
            recorder.fail(error)
            return None

    def _raised(self, call: str, error: Exception) -> None:
        where = place(error).replace("\\", "/").replace('"', "'")
        self._recorder.line(f'{{"event":"raised","call":"{call}","error":"{where}"}}')
        self._recorder.flush()

    # Requests

    def _submitted(self, request: Any) -> None:
        if request.request_id not in self._scheduler.requests:
            self._recorder.introduce(request.request_id, request.num_prompt_tokens)

    def _preempted(self, request: Any, *_: Any, **__: Any) -> None:
        number = self._recorder.number(request.request_id)
        self._recorder.line(f'{{"event":"preempt","request":{number}}}')
        self._recorder.operations += 1

    def _finished(self, request: Any, *_: Any, **__: Any) -> None:
        number = self._recorder.number(request.request_id)
        self._recorder.line(
            f'{{"event":"finish","request":{number},"status":"{request.status.name}"}}'
        )
        self._recorder.operations += 1

    def _loaded(self, output: Any) -> None:
        for request_id in sorted(output.finished_recving or ()):
            number = self._recorder.number(request_id)
            self._recorder.line(f'{{"event":"loaded","request":{number}}}')
            self._recorder.operations += 1

    def _deferring(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Follow the queue of frees that wait for the steps in flight."""
        frees = self._scheduler.deferred_frees

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before = list(frees)
            result = original(*args, **kwargs)
            if len(frees) != len(before):
                self._recorder.hooks.guarded(self._deferred, before)
            return result

        return wrapped

    def _deferred(self, before: list[Any]) -> None:
        frees = self._scheduler.deferred_frees
        added = len(frees) > len(before)
        entries = list(frees)[len(before) :] if added else before[: len(before) - len(frees)]
        for _, blocks in entries:
            numbers = [block.block_id for block in blocks if not block.is_null]
            if numbers:
                self._recorder.line(
                    f'{{"event":"{"defer" if added else "undefer"}","blocks":{numbers}}}'
                )
                self._recorder.used.update(numbers)
                self._recorder.operations += 1

    # Passes

    def _scheduled(self, output: Any) -> None:
        number = self._recorder.number
        new = [number(request.req_id) for request in output.scheduled_new_reqs]
        names = [request.req_id for request in output.scheduled_new_reqs]
        starts = [request.num_computed_tokens for request in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        names += cached.req_ids
        starts += cached.num_computed_tokens
        if new or names != self._names:  # the same from pass to pass, most of the time
            self._names = names
            self._requests = str(list(map(self._recorder.numbers.__getitem__, names)))
        tokens = list(map(output.num_scheduled_tokens.__getitem__, names))
        resumed = sorted(map(number, cached.resumed_req_ids))
        preempted = sorted(map(number, output.preempted_req_ids or ()))
        finished = sorted(map(number, output.finished_req_ids))
        self._now = time.monotonic()
        at_ms = int((self._now - self._began) * 1000)
        self._recorder.line(
            f'{{"event":"schedule","step":{self._step},"at_ms":{at_ms},'
            f'"requests":{self._requests},"starts":{starts},"tokens":{tokens},'
            f'"new":{new},"resumed":{resumed},"preempted":{preempted},"finished":{finished}}}'
        )
        self._steps[id(output)] = self._step
        self._step += 1
        for name in output.finished_req_ids:
            if name not in self._scheduler.requests:
                self._recorder.forget(name)
        if finished:
            self._recorder.operations += 1

    def _updated(self, output: Any, *_: Any, **__: Any) -> None:
        step = self._steps.pop(id(output), None)
        if step is not None:
            self._recorder.line(f'{{"event":"update","step":{step}}}')


def _header(
    scheduler: Any, managers: Any, sides: list[tuple[int, Any]], versions: tuple[str, str]
) -> str:
    pool = scheduler.kv_cache_manager.block_pool
    config = scheduler.vllm_config
    transfer = config.kv_transfer_config
    return json.dumps(
        {
            "event": "log",
            "format": FORMAT,
            "cowtail": versions[0],
            "vllm": versions[1],
            "pid": os.getpid(),
            "role": "engine core",
            "scheduler": type(scheduler).__name__,
            "kv_role": (transfer.kv_role if transfer is not None else None) or "none",
            "connectors": connector_names(scheduler.connector),
            "num_blocks": pool.num_gpu_blocks,
            "null_block": pool.null_block.block_id,
            "num_ranks": config.parallel_config.world_size,
            "hit_alignment": hit_alignment(sides[0][1]) if sides else 0,
            "groups": [[_kind(manager), manager.block_size] for manager in managers],
            "defers_frees": bool(getattr(scheduler, "defer_block_free", False)),
        }
    )


def _kind(manager: Any) -> str:
    """Return the model's name of a group's kind; that of its class where the model has none."""
    spec = type(manager.kv_cache_spec).__name__
    if spec == "MambaSpec":
        mode = manager.kv_cache_spec.mamba_cache_mode
        return "mamba" if mode == "align" else f"mamba_{mode}"
    kinds = {"FullAttentionSpec": "full_attention", "SlidingWindowSpec": "sliding_window"}
    return kinds.get(spec, spec)
