"""What happened in a trace, step by step, as the real objects tell it.

Replays a trace and notes after every action what vLLM decided: what a pass scheduled, copied,
loaded and handed to the store, who was preempted, who finished. Then the objects involved:
requests, blocks and jobs as they were when the property failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from cowtail.harness.findings.trace import VllmTrace
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.composite import carry_out, possible
from cowtail.impl.vllm_engine.device import NULL_BLOCK
from cowtail.impl.vllm_engine.memory import show
from cowtail.impl.vllm_engine.multi import number, requests_of
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import Action, SchedulePass

_GROUPS = ("attention", "Mamba")
MAX_LINES = 60
"""Lines of a story; what is beyond is left out from the middle, and counted."""


@attrs.frozen
class Story:
    """A replayed trace: its lines, the tables of objects, and the violation, if there was one."""

    lines: tuple[str, ...]
    objects: tuple[str, ...]
    violation: Violation | None


class _Narrator:
    """Carries actions out in a session, and takes down what they did."""

    def __init__(self, session: Session) -> None:
        self.lines: list[str] = []
        self._session = session
        self._do = session.do
        self._finished: set[str] = set()
        self._empty_passes = 0
        session.do = self._narrated  # type: ignore[method-assign]

    def _narrated(self, action: Action) -> None:
        steps = len(self._session.steps)
        try:
            self._do(action)
        finally:
            passed = isinstance(action, SchedulePass) and len(self._session.steps) > steps
            told = self._pass() if passed else []
            for name, request in self._session.requests.items():
                if request.is_finished() and name not in self._finished:
                    self._finished.add(name)
                    told.append(f"{name} is finished ({request.status.name})")
            self._tell(action, told)

    def _tell(self, action: Action, told: list[str]) -> None:
        """Add a line; passes that schedule nothing, and what follows them, are told once."""
        if told == [_NOTHING]:
            self._empty_passes += 1
        elif told or action.name in ("submit", "abort"):
            self._empty_passes = 0
        if self._empty_passes > 1:
            if self._empty_passes == 2 and told:
                self.lines.append("   … passes that schedule nothing, again and again")
            return
        self.lines.append(f"{action}" + (f": {'; '.join(told)}" if told else ""))

    def _pass(self) -> list[str]:
        scheduled = self._session.steps[-1].scheduled
        told = [f"{name} is preempted" for name in sorted(scheduled.preempted_req_ids or ())]
        told += [
            f"copy block {copy.src_block_id} to {copy.dst_block_id}"
            for copy in scheduled.kv_cache_block_copies or ()
        ]
        starts = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        cached = scheduled.scheduled_cached_reqs
        running = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, count in scheduled.num_scheduled_tokens.items():
            start = starts.get(name, running.get(name, 0))
            what = "resumes at" if name in cached.resumed_req_ids else "goes on at"
            told.append(
                f"{name} {'is admitted at' if name in starts else what} token {start} and computes "
                f"{count}, in {self._tables(name)}"
            )
        for child, request in requests_of(scheduled.kv_connector_metadata):
            if request.load_spec is not None:
                told.append(
                    f"{request.req_id} loads {request.load_spec.kvpool_cached_tokens} tokens from "
                    f"the store into {_shown_tables(request.block_ids)}"
                )
            if (
                request.can_save
                and number(child, request.store_job_id) in self._session.ledger.jobs
            ):
                job = self._session.ledger.jobs[number(child, request.store_job_id)]
                told.append(
                    f"job {request.store_job_id} of {request.req_id} reads blocks "
                    f"{list(job.blocks)}"
                )
        return told or [_NOTHING]

    def _tables(self, name: str) -> str:
        return _shown_tables(self._session.view.tables(name))


_NOTHING = "schedules nothing"


def _shown_tables(tables: Sequence[Sequence[int]]) -> str:
    return " and ".join(
        f"{name} {list(table)}" for name, table in zip(_GROUPS, tables, strict=False)
    )


def tell(trace: VllmTrace) -> Story:
    """Replay a trace on the installed release, and tell it."""
    session = Session(trace.config)
    narrator = _Narrator(session)
    violation = None
    try:
        for wanted in trace.actions:
            if (action := possible(session, wanted)) is not None:
                carry_out(session, action)
        if session.actions:
            narrator.lines.append("then everything runs to rest:")
        session.drain()
    except Violation as raised:
        violation = raised
    return Story(_clipped(narrator.lines), tuple(_objects(session)), violation)


def _clipped(lines: list[str]) -> tuple[str, ...]:
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    half = MAX_LINES // 2
    left_out = f"   … {len(lines) - 2 * half} lines are left out"
    return (*lines[:half], left_out, *lines[-half:])


def _objects(session: Session) -> list[str]:
    """Return the requests, blocks and jobs of a session, one line each."""
    lines = []
    for name, request in session.requests.items():
        lines.append(
            f"request {name}: {request.status.name}, {request.num_tokens} tokens, "
            f"{request.num_computed_tokens} computed, {_shown_tables(session.view.tables(name))}"
        )
    keys = session.view.block_keys()
    for block, references in session.view.references().items():
        held = session.memories[0].page(block)
        content = show(held) if isinstance(held, str) else f"slots up to {show(_last(held))}"
        if block != NULL_BLOCK and (references or block in keys or content != "nothing"):
            prefixes = sorted(
                {len(session.prefixes.get(key[:-4], "")) for key in keys.get(block, ())}
            )
            keyed = f", keyed at {', '.join(map(str, prefixes))} tokens" if prefixes else ""
            lines.append(f"block {block}: {references} references{keyed}; rank 0 holds {content}")
    for job, owed in session.ledger.jobs.items():
        left = f"ranks {owed.ranks} have not reported" if owed.ranks else "reported by all ranks"
        lines.append(f"job {job} of {owed.request}: blocks {list(owed.blocks)}, {left}")
    for (name, _), (block, boundary) in session.view.markers().items():
        lines.append(f"marker of {name}: block {block}, at {boundary} tokens")
    return lines


def _last(slots: Sequence[Any]) -> str:
    return next((slot for slot in reversed(slots) if slot), "")
