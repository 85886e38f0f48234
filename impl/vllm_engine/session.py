"""The driver: one real engine, moved one action at a time and checked after each.

>>> session = Session(EngineConfig(requests=(RequestSpec("a", "x" * 44),)))  # doctest: +SKIP
>>> session.do_all(Submit("a"), SchedulePass(), Execute(), UpdateFromOutput())  # doctest: +SKIP

The scheduler decides what a pass schedules. A pass also dispatches its step, as the engine does
when it launches it: metadata reaches the ranks, loads and store jobs are queued. Loads may run
from then on; a store job waits until its step has been executed, like the event it waits for.

Real vLLM hears reports only with the output of a step, after it has processed the output.
Hence ``UpdateFromOutput`` processes the oldest executed step without reports, and
``UpdateConnectorOutput`` processes it *with* all that have arrived. An idle engine that still
has pins keeps scheduling empty steps for that; so does ``SchedulePass`` here.

A report that comes twice is refused: completions are counts per job, taken from the sending
thread exactly once, so no working rank can produce one. (Fed by hand, it would release a pin
early: the counts cannot tell one rank from another.)
"""

from __future__ import annotations

import pickle
import traceback
from collections import Counter
from typing import Any

import attrs

from cowtail.impl.vllm_engine.build import build, build_request
from cowtail.impl.vllm_engine.checks import QUIESCENCE, Violation, check
from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.device import MAMBA, NULL_BLOCK, Device, why_not_under_key
from cowtail.impl.vllm_engine.memory import Memory, show
from cowtail.impl.vllm_engine.ranks import Rank, build_ranks
from cowtail.impl.vllm_engine.store import Store
from cowtail.impl.vllm_engine.surface import surface
from cowtail.impl.vllm_engine.view import View
from cowtail.models.actions import (
    Abort,
    Action,
    Execute,
    JobOutcome,
    Report,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import Role

DRAIN_BOUND = 2000
"""The most actions that a drain may take before it is reported as not reaching quiescence."""
EMPTY_PASS_BOUND = 20
"""The most passes in a row that may schedule nothing, in a drain, with every rank idle."""


class NotPossible(Exception):
    """An action is not possible now; the message says why."""


@attrs.define
class Step:
    """A scheduled step; ``output`` is None until the device has run it.

    ``touched`` are the blocks that it copies or writes.
    """

    scheduled: Any
    touched: frozenset[int]
    output: Any = None


@attrs.define
class OwedJob:
    """A store job as its metadata describes it: blocks it reads, ranks that have yet to report."""

    request: str
    blocks: tuple[int, ...]
    ranks: list[int]


class Session:
    """One engine and its ranks. Every action is followed by a check of all properties."""

    def __init__(self, config: EngineConfig, store: Store | None = None) -> None:
        """Build the engine; run ``config.stored`` through a producer first if there are any.

        ``store`` is that of an earlier session, or a new one. Raises VllmNotInstalled.
        """
        self.config = config
        self.store = Store() if store is None else store
        self.prefixes = self.store.prefixes
        if config.stored:
            _fill(config, self.store)
        self._built = build(config)
        self.scheduler = self._built.scheduler
        self.view = View(self.scheduler)
        self.memories = [Memory(config.attention_block_size) for _ in range(config.num_ranks)]
        self.device = Device(config, self.memories)
        self.ranks = build_ranks(config, self._built, self.store, self.memories, self._check_put)
        vllm = surface()
        self._aggregator = vllm.connector_utils.KVOutputAggregator(config.num_ranks)
        self.requests: dict[str, Any] = {}
        self.steps: list[Step] = []
        self.jobs: dict[int, OwedJob] = {}
        self.wrong_handoffs: list[str] = []
        self.repeated_handoffs: list[str] = []
        self.racing_loads: list[str] = []
        self.statistics: Counter[str] = Counter()
        self.actions: list[Action] = []
        self.drain_began: int | None = None
        self._generations: Counter[str] = Counter()
        self._handed_off: set[tuple[str, int, int, int]] = set()
        self._job_steps: dict[int, Step] = {}
        self._outlived: set[int] = set()

    # What is possible

    @property
    def has_unexecuted_step(self) -> bool:
        """Whether a scheduled step has yet to be run by the device."""
        return any(step.output is None for step in self.steps)

    @property
    def is_quiescent(self) -> bool:
        """Whether the engine would stop stepping, and no rank has anything left to do.

        Reports may be on their way still: of jobs that pin nothing, for which nobody waits.
        """
        return (
            not self.steps
            and not self.scheduler.has_requests()
            and all(rank.is_idle for rank in self.ranks)
        )

    def choices(self) -> tuple[Action, ...]:
        """Return the actions that are possible now, in a fixed order."""
        candidates: list[Action] = []
        for request in self.config.requests:
            candidates += [Submit(request.name), Abort(request.name)]
        candidates += [SchedulePass(), Execute(), UpdateFromOutput(), UpdateConnectorOutput()]
        for rank in self.ranks:
            candidates += [RunJob(rank.index), RunJob(rank.index, JobOutcome.FAILED)]
            candidates += [RunLoad(rank.index), RunLoad(rank.index, failed=True)]
            candidates += [Report(rank.index, job) for job in rank.outbox]
        return tuple(action for action in candidates if self.why_not(action) is None)

    def why_not(self, action: Action) -> str | None:
        """Return why an action is not possible now; None if it is."""
        match action:
            case Submit(request):
                known = any(request == spec.name for spec in self.config.requests)
                if not known or request in self.requests:
                    return f"{request} is unknown, or submitted already"
            case Abort(request):
                if request not in self.requests or self.requests[request].is_finished():
                    return f"{request} is not submitted, or finished"
            case SchedulePass():
                if len(self.steps) >= self.config.max_steps_in_flight:
                    return f"{len(self.steps)} steps are in flight already"
                if not self.scheduler.has_requests():
                    return "the scheduler has nothing to do"
            case Execute():
                if not self.has_unexecuted_step:
                    return "no step waits for the device"
            case UpdateFromOutput():
                if not self.steps or self.steps[0].output is None:
                    return "no step has been executed"
            case UpdateConnectorOutput():
                if not any(rank.has_reports for rank in self.ranks):
                    return "no report has arrived"
                if not self.steps or self.steps[0].output is None:
                    return "reports travel with the output of a step, and none has been executed"
            case RunJob(index) | RunLoad(index) | Report(index):
                if index >= len(self.ranks):
                    return f"there is no rank {index}"
                return self._why_not_on(self.ranks[index], action)
            case _:
                return f"{action.name} is decided by the scheduler itself"
        return None

    def _why_not_on(self, rank: Rank, action: Action) -> str | None:
        match action:
            case RunJob():
                if rank.next_job is None:
                    return f"rank {rank.index} has no job"
                if self._job_steps[rank.next_job.store_job_id].output is None:
                    return f"the step of rank {rank.index}'s next job has not been executed"
            case RunLoad():
                if rank.next_load is None:
                    return f"rank {rank.index} has no load"
            case Report(_, job, again):
                if again:
                    return "a rank takes each completion from its thread once: it cannot repeat it"
                if job not in rank.outbox:
                    return f"rank {rank.index} is not done with job {job}, or has reported it"
        return None

    # Actions

    def do(self, action: Action) -> None:
        """Carry out one action and check every property.

        Raises NotPossible, or Violation. An exception out of vLLM is a violation ("A").
        """
        if (why := self.why_not(action)) is not None:
            raise NotPossible(f"{action}: {why}")
        self.actions.append(action)
        self.statistics[action.name] += 1
        try:
            self._carry_out(action)
        except Exception as error:
            raise Violation("A", f"{action} raised {_place(error)}") from error
        self._count_outlived()
        check(self)

    def do_all(self, *actions: Action) -> None:
        """Carry out actions one after another; raises what :meth:`do` raises."""
        for action in actions:
            self.do(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Submit(request):
                self._submit(request)
            case Abort(request):
                status = surface().request.RequestStatus.FINISHED_ABORTED
                self.scheduler.finish_requests(request, status)
            case SchedulePass():
                self._schedule()
            case Execute():
                self._execute(next(step for step in self.steps if step.output is None))
            case UpdateFromOutput():
                self._update(with_reports=False)
            case UpdateConnectorOutput():
                self._update(with_reports=True)
            case RunJob(index, outcome):
                failing = outcome is JobOutcome.FAILED
                code = self.config.failure_code if failing else None
                self.statistics["failed puts"] += self.ranks[index].run_job(code)
            case RunLoad(index, failed):
                code = self.config.failure_code if failed else None
                self.statistics["failed gets"] += self.ranks[index].run_load(code)
            case Report(index, job):
                self.ranks[index].outbox.remove(job)
                self.ranks[index].reported_jobs.append(job)

    def _submit(self, name: str) -> None:
        request = build_request(
            self.config.request(name), len(self.requests), self._built.hash_block_size
        )
        self.requests[name] = request
        self.scheduler.add_request(request)
        self._learn_prefixes(request)

    def _schedule(self) -> None:
        scheduled = self.scheduler.schedule()
        self.statistics["empty steps"] += not scheduled.num_scheduled_tokens
        self._note_loads(scheduled)
        step = Step(scheduled, self._touched(scheduled))
        self.steps.append(step)
        for name in sorted(scheduled.preempted_req_ids or ()):
            self._generations[name] += 1
            self.statistics["preemptions"] += 1
            waiting = any(job.request == name and job.ranks for job in self.jobs.values())
            self.statistics["preemptions with a job in flight"] += waiting
        self._note_jobs(step)
        # Ranks are processes of their own: each gets a copy, as pickling would make it.
        metadata = pickle.dumps(scheduled.kv_connector_metadata)
        for rank in self.ranks:
            scheduled.kv_connector_metadata = pickle.loads(metadata)
            rank.dispatch(scheduled)

    def _execute(self, step: Step) -> None:
        vllm = surface()
        sampled = self.device.run(step.scheduled)
        step.output = vllm.outputs.ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: index for index, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
        )
        for request in step.scheduled.kv_connector_metadata.requests:
            self._check_contents(request)

    def _update(self, with_reports: bool) -> None:
        vllm = surface()
        step = self.steps.pop(0)
        if with_reports:
            for rank in self.ranks:
                for job in rank.reported_jobs:
                    self.jobs[job].ranks.remove(rank.index)
            outputs = [
                vllm.outputs.ModelRunnerOutput(
                    req_ids=[], req_id_to_index={}, kv_connector_output=rank.take_reports()
                )
                for rank in self.ranks
            ]
            reports = self._aggregator.aggregate(outputs).kv_connector_output
            step.output.kv_connector_output = reports
            self.statistics["loads done"] += len(reports.finished_recving or ())
            self.statistics["loads failed"] += len(reports.failed_recving)
        self.scheduler.update_from_output(step.scheduled, step.output)
        for request in self.requests.values():
            self._learn_prefixes(request)

    # What the properties need to know

    def _learn_prefixes(self, request: Any) -> None:
        """Note which prefix each of a request's hashes stands for; check what it has sampled."""
        tokens = "".join(chr(token) for token in request.all_token_ids)
        script = self.config.request(request.request_id).tokens
        if tokens != script[: len(tokens)]:
            self.device.wrong.append(
                f"{request.request_id} has the tokens {show(tokens)}: not what was sampled"
            )
        unit = self.config.hash_unit
        for index, block_hash in enumerate(request.block_hashes):
            self.prefixes.setdefault(bytes(block_hash), tokens[: (index + 1) * unit])

    def _touched(self, scheduled: Any) -> frozenset[int]:
        """Return the blocks that a step copies or writes, as the tables are after its pass."""
        touched = set()
        for copy in scheduled.kv_cache_block_copies or ():
            touched |= {copy.src_block_id, copy.dst_block_id}
        for name, num_tokens in scheduled.num_scheduled_tokens.items():
            end = self.requests[name].num_computed_tokens
            attention, states = self.view.tables(name)
            size = self.config.attention_block_size
            touched.update(attention[(end - num_tokens) // size : (end - 1) // size + 1])
            touched.add(states[(end - 1) // self.config.mamba_block_size])
        return frozenset(touched)

    def _note_loads(self, scheduled: Any) -> None:
        """Check that no load of this pass goes where an earlier, unexecuted step still works."""
        for request in scheduled.kv_connector_metadata.requests:
            if request.load_spec is None:
                continue
            loaded = self._load_destinations(request)
            for step in self.steps:
                if step.output is None and (both := sorted(loaded & step.touched)):
                    self.racing_loads.append(
                        f"{request.req_id} loads into {both}, which a step that the device has "
                        "not run yet copies or writes"
                    )

    def _load_destinations(self, request: Any) -> set[int]:
        """Return the blocks that a load fills: those from the aligned local hit on."""
        lcm = self.config.lcm_block_size
        start = request.load_spec.vllm_cached_tokens // lcm * lcm
        sizes = (self.config.attention_block_size, self.config.mamba_block_size)
        return {
            block
            for table, size in zip(request.block_ids, sizes, strict=True)
            for block in table[start // size :]
            if block != NULL_BLOCK
        }

    def _note_jobs(self, step: Step) -> None:
        """Take down the jobs that a step carries, and check what is handed to them (S7, S10)."""
        references = self.view.references()
        for request in step.scheduled.kv_connector_metadata.requests:
            if not request.can_save:
                continue
            job = request.store_job_id
            puts = self._boundary_puts(request)
            blocks = {put.block_id for put in puts}
            if request.token_len_chunk:
                for group, table in enumerate(request.block_ids):
                    if group != MAMBA:
                        blocks.update(block for block in table if block != NULL_BLOCK)
            self.jobs[job] = OwedJob(
                request.req_id, tuple(sorted(blocks)), list(range(self.config.num_ranks))
            )
            self._job_steps[job] = step
            for put in puts:
                self._note_put(request, put, references, step)

    def _note_put(self, request: Any, put: Any, references: dict[int, int], step: Step) -> None:
        name = request.req_id
        what = f"block {put.block_id} of {name} at {put.num_tokens} tokens"
        if put.block_id == NULL_BLOCK:
            self.wrong_handoffs.append(f"{what} is the null block")
        elif not references[put.block_id]:
            self.wrong_handoffs.append(f"{what} is handed off without a reference")
        if put.group_id != MAMBA:
            return
        if put.num_tokens > request.prefill_end_tokens:
            self.wrong_handoffs.append(
                f"{what} is past the end of prefill, {request.prefill_end_tokens}"
            )
        handoff = (name, self._generations[name], put.group_id, put.num_tokens)
        if handoff in self._handed_off:
            self.repeated_handoffs.append(f"{what} is handed off a second time")
        self._handed_off.add(handoff)
        if put.num_tokens % self.config.mamba_block_size:
            finished = name in step.scheduled.finished_req_ids
            self.statistics[f"tails handed off {'at finish' if finished else 'by CoW'}"] += 1

    def _boundary_puts(self, request: Any) -> list[Any]:
        return getattr(request, surface().release.boundary_puts) or []

    def _check_contents(self, request: Any) -> None:
        """Compare a job's boundary blocks with their hashes, its step having been executed."""
        for put in self._boundary_puts(request):
            index = put.num_tokens // self.config.hash_unit - 1
            if index >= len(request.block_hashes):
                continue
            prefix = self.prefixes[bytes(request.block_hashes[index])]
            for rank, memory in enumerate(self.memories):
                why = why_not_under_key(self.config, memory, put.block_id, put.group_id, prefix)
                if why is not None:
                    self.wrong_handoffs.append(f"{request.req_id} on rank {rank}: {why}")

    def _check_put(self, key: str, block: int, memory: Memory) -> str | None:
        group = int(key.split("@group:")[1].split("@")[0])
        prefix = self.prefixes.get(bytes.fromhex(key.rsplit("@", 1)[1]))
        if block == NULL_BLOCK:
            return f"the null block is stored under {key}"
        if prefix is None:
            return f"block {block} is stored under the hash of no request's prefix"
        why = why_not_under_key(self.config, memory, block, group, prefix)
        return None if why is None else f"the key at {show(prefix)} is stored wrong: {why}"

    def _count_outlived(self) -> None:
        for job, owed in self.jobs.items():
            if owed.ranks and owed.blocks and self.requests[owed.request].is_finished():
                self._outlived.add(job)
        self.statistics["pins outliving requests"] = len(self._outlived)

    # Draining

    def drain(self, bound: int = DRAIN_BOUND) -> None:
        """Let everything run to its end, in at most ``bound`` actions, and check L2.

        Raises Violation if a property fails on the way, or if the bound is not enough.
        """
        self.drain_began = len(self.actions)
        empty_passes = 0
        for _ in range(bound):
            if self.is_quiescent or empty_passes > EMPTY_PASS_BOUND:
                break
            action = self._next_to_drain()
            self.do(action)
            if not isinstance(action, SchedulePass | Execute | UpdateFromOutput) or any(
                step.scheduled.num_scheduled_tokens for step in self.steps
            ):
                empty_passes = 0
            elif isinstance(action, SchedulePass):
                empty_passes += 1
        if not self.is_quiescent:
            after = f"{len(self.actions) - self.drain_began} actions (bound {bound})"
            if empty_passes > EMPTY_PASS_BOUND:
                after += f", the last {empty_passes} passes empty (bound {EMPTY_PASS_BOUND})"
            raise Violation(
                "L2", f"not quiescent after {after}: {'; '.join(self.view.leftovers())}"
            )
        if (why := QUIESCENCE.why_not(self)) is not None:
            raise Violation("L2", why)

    def _next_to_drain(self) -> Action:
        """Return the next action of a fair environment: ranks first, then device, then passes."""
        for action in self.choices():
            if isinstance(action, RunJob | RunLoad | Report) and not _fails(action):
                return action
        for action in (UpdateConnectorOutput(), UpdateFromOutput(), Execute()):
            if self.why_not(action) is None:
                return action
        return SchedulePass()


def _fails(action: Action) -> bool:
    match action:
        case RunJob(_, outcome):
            return outcome is JobOutcome.FAILED
        case RunLoad(_, failed):
            return failed
    return False


def _place(error: Exception) -> str:
    """Return an exception with the innermost place it was raised at, as one line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    module = frame.filename.partition("site-packages/")[2] or frame.filename
    message = str(error) or frame.line
    return f"{type(error).__name__} in {frame.name} ({module}:{frame.lineno}): {message}"


def _fill(config: EngineConfig, store: Store) -> None:
    """Run ``config.stored`` through a producer with room to spare, one after another."""
    blocks = sum(config.blocks_for(request) for request in config.stored)
    producer = Session(
        attrs.evolve(
            config,
            requests=config.stored,
            stored=(),
            role=Role.PRODUCER,
            num_blocks=blocks + 1,
            max_steps_in_flight=1,
        ),
        store,
    )
    for request in config.stored:
        producer.do(Submit(request.name))
        producer.drain()
