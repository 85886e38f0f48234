"""What the store's connector does: lookups, jobs with their pins, reports, loads."""

from __future__ import annotations

from typing import Any

from cowtail.impl.vllm_recorder.recorder import Recorder

_PUTS = ("boundary_puts", "boundary_state_offloads")
"""Field of ``ReqMeta`` that lists what is stored under an explicit hash, newest name first."""


def store_schedulers(connector: Any) -> list[tuple[int, Any]]:
    """Return the scheduler sides of the store's connectors below ``connector``, numbered."""
    children = getattr(connector, "_connectors", None) or [connector]
    sides = [getattr(child, "connector_scheduler", None) for child in children]
    return [(number, side) for number, side in enumerate(sides) if hasattr(side, "_pinned_saves")]


def connector_names(connector: Any) -> list[str]:
    """Return the classes of the connectors below ``connector``: their scheduler sides'."""
    if connector is None:
        return []
    children = getattr(connector, "_connectors", None) or [connector]
    return [
        type(getattr(child, "connector_scheduler", None) or child).__name__ for child in children
    ]


def hit_alignment(side: Any) -> int:
    """Return what hits in the store are multiples of, in tokens."""
    return int(side._hash_block_size if side.enable_partial_hash_hits else side._block_size)


class ConnectorHooks:
    """The hooks of the scheduler side of one store connector."""

    def __init__(
        self, recorder: Recorder, number: int, side: Any, block_sizes: dict[int, int]
    ) -> None:
        """Attach. ``block_sizes`` are those of the groups, in tokens."""
        self._recorder = recorder
        self._number = number
        self._side = side
        self._block_sizes = block_sizes
        self._groups: Any = getattr(side, "_store_group_ids", sorted(block_sizes))
        self._pinned: set[int] = set()
        hooks = recorder.hooks
        hooks.after(side, "get_num_new_matched_tokens", self._looked_up)
        hooks.after(side, "build_connector_meta", self._built)
        if hasattr(side, "register_finished_partial_tail"):
            hooks.after(side, "register_finished_partial_tail", self._registered)
        hooks.before(side, "update_connector_output", self._reported)

    def _looked_up(
        self, result: tuple[int | None, bool], request: Any, num_computed_tokens: int
    ) -> None:
        external = "null" if result[0] is None else int(result[0])
        self._recorder.line(
            f'{{"event":"lookup","request":{self._recorder.number(request.request_id)},'
            f'"connector":{self._number},"num_tokens":{request.num_tokens},'
            f'"local":{num_computed_tokens},"external":{external}}}'
        )

    def _built(self, meta: Any, *_: Any) -> None:
        for request in meta.requests:
            if request.can_save:
                job = request.store_job_id
                if job not in self._pinned or job not in self._side._pinned_saves:
                    self._job(request)
                self._recorder.line(f'{{"event":"emit","job":{job},"connector":{self._number}}}')
            spec = request.load_spec
            if spec is not None and spec.can_load:
                self._load(request, spec)

    def _registered(self, _: bool, request: Any, *__: Any) -> None:
        meta = self._side._finished_partial_tail_metas.get(request.request_id)
        if meta is not None:
            self._job(meta, request)

    def _job(self, meta: Any, finishing: Any = None) -> None:
        job = meta.store_job_id
        puts = next((getattr(meta, name) for name in _PUTS if hasattr(meta, name)), None)
        groups = self._groups
        shown = [[groups[group], block, tokens] for group, block, tokens in puts or ()]
        pins = self._side._pinned_saves.get(job, ((), 0))[0]
        if pins:
            self._pinned.add(job)
        reads_tables = bool(meta.token_len_chunk) or not hasattr(meta, _PUTS[0])
        prefill_end = getattr(meta, "prefill_end_tokens", None) or meta.num_prompt_tokens
        computed = finishing.num_computed_tokens if finishing is not None else 0
        in_flight = finishing.num_in_flight_tokens if finishing is not None else 0
        self._recorder.line(
            f'{{"event":"job","job":{job},"connector":{self._number},'
            f'"request":{self._recorder.number(meta.req_id)},"puts":{shown},'
            f'"pins":{list(pins)},"save_to":{meta.token_len_chunk},'
            f'"reads_tables":{"true" if reads_tables else "false"},"prefill_end":{prefill_end},'
            f'"at_finish":{"true" if finishing is not None else "false"},'
            f'"computed":{computed},"in_flight":{in_flight}}}'
        )
        self._recorder.operations += 1

    def _load(self, request: Any, spec: Any) -> None:
        """Take down the blocks that a load fills: those from the aligned local hit on."""
        lcm = self._side._block_size
        start = spec.vllm_cached_tokens // lcm * lcm
        blocks = [
            block
            for group, table in zip(self._groups, request.block_ids, strict=True)
            for block in table[start // self._block_sizes[group] :]
            if block
        ]
        self._recorder.line(
            f'{{"event":"load","request":{self._recorder.number(request.req_id)},'
            f'"connector":{self._number},"blocks":{blocks}}}'
        )

    def _reported(self, output: Any) -> None:
        meta = getattr(output, "kv_connector_worker_meta", None)
        for job, count in (getattr(meta, "completed_saves", None) or {}).items():
            self._recorder.line(
                f'{{"event":"report","job":{job},"connector":{self._number},"count":{count}}}'
            )
            self._recorder.operations += 1

    def settle(self) -> None:
        """Take down the pins that are gone, whoever released them."""
        pinned = self._side._pinned_saves
        if self._pinned <= pinned.keys():
            return
        for job in sorted(job for job in self._pinned if job not in pinned):
            self._pinned.discard(job)
            self._recorder.line(f'{{"event":"release","job":{job},"connector":{self._number}}}')
            self._recorder.operations += 1
