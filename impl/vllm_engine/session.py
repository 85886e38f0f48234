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

import contextlib
import functools
import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

import attrs

from cowtail.impl.vllm_engine.build import build, build_request
from cowtail.impl.vllm_engine.checks import QUIESCENCE, Violation, check
from cowtail.impl.vllm_engine.config import EngineConfig, OfPeer, RunLoad
from cowtail.impl.vllm_engine.device import NULL_BLOCK, Device, why_not_under_key
from cowtail.impl.vllm_engine.draining import DRAIN_BOUND, OF_RANKS, run_to_end
from cowtail.impl.vllm_engine.ledger import Ledger, Step
from cowtail.impl.vllm_engine.memory import Memory, show
from cowtail.impl.vllm_engine.multi import number, one_report
from cowtail.impl.vllm_engine.pair import as_written, for_peer
from cowtail.impl.vllm_engine.promises import PROMISES
from cowtail.impl.vllm_engine.ranks import Rank, build_ranks
from cowtail.impl.vllm_engine.store import Entry, Store
from cowtail.impl.vllm_engine.supply import longest_supply
from cowtail.impl.vllm_engine.surface import surface
from cowtail.impl.vllm_engine.view import View
from cowtail.models.actions import (
    Abort,
    Action,
    Evict,
    Execute,
    JobOutcome,
    LookUp,
    Report,
    Reset,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import Role

_ASIDE = (*OF_RANKS, Evict, Execute)
"""What reaches device, ranks and store only: nothing of the scheduler, nor of its connector."""
_RESET_REFUSED = "Failed to reset KV cache even when all the running requests"
"""How the complaint of a reset begins that preempted what ran, and found blocks held still."""


class NotPossible(Exception):
    """An action is not possible now; the message says why."""


class InOrder(set[str]):
    """A set that is gone through in the order of its names, the same in every run."""

    def __iter__(self) -> Iterator[str]:
        """Go through the names, sorted."""
        return iter(sorted(super().__iter__()))


class Watcher(Protocol):
    """Somebody beside a session: told of every action, before it and once it has been checked."""

    def before(self, action: Action) -> None:
        """Get ready for an action."""

    def after(self, action: Action) -> None:
        """Look at what the action did. Raises Violation."""


MakesWatcher = Callable[["Session"], Watcher | None]

_MAKES_WATCHER: ContextVar[MakesWatcher | None] = ContextVar("_MAKES_WATCHER", default=None)


@contextlib.contextmanager
def watched_by(make_watcher: MakesWatcher) -> Iterator[None]:
    """Give every session that is built meanwhile a watcher of its own, replays included."""
    token = _MAKES_WATCHER.set(make_watcher)
    try:
        yield
    finally:
        _MAKES_WATCHER.reset(token)


class Session:
    """One engine and its ranks. Every action is followed by a check of all properties."""

    def __init__(
        self,
        config: EngineConfig,
        store: Store | None = None,
        *,
        unchecked: Collection[str] = (),
        partner: Session | None = None,
    ) -> None:
        """Build the engine; run ``config.stored`` through a producer first if there are any.

        ``store`` is that of an earlier session, or a new one. ``unchecked`` are identifiers of
        properties to leave out: for measuring what a release does that is known to violate them.
        ``partner`` is the first of two engines, where this is the second.
        Raises VllmNotInstalled.
        """
        self.config = config
        self.unchecked = frozenset(unchecked)
        self._found = None if store is None else store.copy()
        self.store = Store() if store is None else store
        self.prefixes = self.store.prefixes
        if config.stored:
            run_in_turn(Session(filling(config), self.store, unchecked=unchecked))
        self._built = build(config)
        self.scheduler = self._built.scheduler
        self.lookup = self._built.lookups[0]
        self.view = View(self.scheduler)
        slots = max(config.attention_sizes)
        self.memories = [Memory(slots) for _ in range(config.num_ranks)]
        self.device = Device(config, self.memories)
        self.ranks = build_ranks(config, self._built, self.store, self.memories, self._check_put)
        for child, lookup in enumerate(self._built.lookups):
            lookup.ask = functools.partial(self._ask_store, child)
        vllm = surface()
        self._aggregator = vllm.connector_utils.KVOutputAggregator(config.num_ranks)
        self.requests: dict[str, Any] = {}
        self.steps: list[Step] = []
        self.ledger = Ledger(config, self.view, self.memories, self.prefixes)
        self.statistics = self.ledger.statistics
        self.actions: list[Action] = []
        self.drain_began: int | None = None
        self.last_reset: bool | None = None
        self.seen_true: object = None
        make_watcher = _MAKES_WATCHER.get()
        self.partner = partner
        self.peer: Session | None = None
        if config.peer is not None:
            self.peer = Session(config.peer, self.store, unchecked=unchecked, partner=self)
            self.partner = self.peer
        self.blamed: Session = self
        self.watcher = None if make_watcher is None else make_watcher(self)

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
        return self.is_quiescent_itself and (self.peer is None or self.peer.is_quiescent_itself)

    @property
    def is_quiescent_itself(self) -> bool:
        """Whether that is so of this engine, whatever its peer does."""
        return (
            not self.steps
            and not self.scheduler.has_requests()
            and all(rank.is_idle for rank in self.ranks)
        )

    @property
    def engines(self) -> tuple[Session, ...]:
        """This engine, and the one beside it on the same store if there is one."""
        return (self,) if self.partner is None else (self, self.partner)

    @property
    def all_statistics(self) -> Counter[str]:
        """The statistics of this engine and its peer."""
        return self.statistics + (Counter() if self.peer is None else self.peer.statistics)

    def engine_of(self, action: Action) -> tuple[Session, Action]:
        """Return the engine that an action is of, and the action as that engine takes it."""
        theirs = for_peer(self.config, action)
        return (self, action) if theirs is None or self.peer is None else (self.peer, theirs)

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
        for name in self.lookup.asked():
            candidates += [LookUp(name), LookUp(name, failed=True)]
        candidates += [*self._possible_evictions(), *self._possible_resets()]
        possible = [action for action in candidates if self.why_not(action) is None]
        if self.peer is not None:
            possible += [as_written(self.config, action) for action in self.peer.choices()]
        return tuple(possible)

    def why_not(self, action: Action) -> str | None:
        """Return why an action is not possible now; None if it is."""
        engine, action = self.engine_of(action)
        if engine is not self:
            return engine.why_not(action)
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
            case LookUp(request):
                if request not in self.lookup.asked():
                    return f"no lookup for {request} waits for its answer"
                if self.requests[request].is_finished():
                    return f"{request} is finished"
            case Evict(rank, group, prefix):
                if self.statistics[Evict.name] >= self.config.max_evictions:
                    return f"max_evictions={self.config.max_evictions} are spent"
                if all(entry != Entry(rank, group, prefix) for _, entry in self.store.entries()):
                    return f"rank {rank} has stored nothing under {prefix!r} in group {group}"
            case Reset():
                return self._why_no_reset(action)
            case OfPeer():
                return "there is no second engine"
            case _:
                return f"{action.name} is decided by the scheduler itself"
        return None

    def _possible_evictions(self) -> list[Action]:
        if self.statistics[Evict.name] >= self.config.max_evictions:
            return []
        entries = [entry for _, entry in self.store.entries()]
        return [Evict(entry.rank, entry.group, entry.prefix) for entry in entries]

    def _possible_resets(self) -> list[Action]:
        if self.statistics[Reset.name] >= self.config.max_resets:
            return []
        return [Reset(running, store) for running in (False, True) for store in (False, True)]

    def _why_no_reset(self, action: Reset) -> str | None:
        """Return why caches cannot be reset now: the real one asks its caller for as much."""
        if self.statistics[Reset.name] >= self.config.max_resets:
            return f"max_resets={self.config.max_resets} are spent"
        if self.steps and self.config.max_steps_in_flight == 1:
            return "a step is in flight: a synchronous engine is asked between its steps"
        if action.store and (self.ranks[0].next_job is not None or self.lookup.has_lookups):
            return "rank 0 has jobs queued, or lookups are under way"
        if action.store and any(rank.next_load is not None for rank in self.ranks):
            return "a load is under way"
        return None

    def _why_not_on(self, rank: Rank, action: Action) -> str | None:
        match action:
            case RunJob():
                if rank.next_job is None:
                    return f"rank {rank.index} has no job"
                job = number(rank.child, rank.next_job.store_job_id)
                if any(step.output is None and job in step.jobs for step in self.steps):
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
        engine, action = self.engine_of(action)
        if engine is not self:
            with self._blaming(engine):
                engine.do(action)
            return
        self.statistics[action.name] += 1
        if self.watcher is not None:
            self.watcher.before(action)
        if not isinstance(action, _ASIDE):
            self.view.look_again()
        try:
            self._carry_out(action)
        except Exception as error:
            raise Violation("A", f"{action} raised {_place(error)}") from error
        self.ledger.note_finished(self.requests)
        if isinstance(action, SchedulePass | UpdateFromOutput | UpdateConnectorOutput):
            self.ledger.note_markers(self.requests)
        check(self, aside=isinstance(action, _ASIDE))
        if self.watcher is not None:
            self.watcher.after(action)

    @contextlib.contextmanager
    def _blaming(self, engine: Session) -> Iterator[None]:
        """Note that it is the other engine in which a property fails."""
        try:
            yield
        except Violation:
            self.blamed = engine
            raise

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
                self._run_load(self.ranks[index], code)
            case Report(index, job):
                self.ranks[index].outbox.remove(job)
                self.ranks[index].reported_jobs.append(job)
            case LookUp(request, failed):
                self.lookup.answer(request, failed)
            case Evict(rank, group, prefix):
                self.store.evict(Entry(rank, group, prefix))
            case Reset(running, store):
                self._reset(running, store)

    def _run_load(self, rank: Rank, code: int | None) -> None:
        transport = rank.transport
        missed = transport.missed
        self.statistics["failed gets"] += rank.run_load(code)
        self.statistics["loads by a second connector"] += rank.child
        self.statistics["gets of what was evicted"] += transport.missed - missed
        if self.partner is not None:
            written = [self.store.authors.get(key) for key in transport.read]
            theirs = any(author is memory for author in written for memory in self.partner.memories)
            self.statistics["loads of what the other engine stored"] += theirs

    def _ask_store(self, child: int, num_tokens: int, block_hashes: Any) -> Any:
        """Let the release look up, and hold what it finds to what the store has (S12)."""
        answer = self.ranks[child * self.config.num_ranks].worker.lookup(num_tokens, block_hashes)
        if self.config.window or not surface().release.boundary_below_prompt:
            return answer  # windows, and what older releases find at a prompt's end: not worked out
        hashed = self.prefixes[bytes(block_hashes[-1])] if block_hashes else ""
        # Only the length of what comes after the last hash matters.
        asked = hashed + "\0" * (num_tokens - len(hashed))
        entries = [entry for _, entry in self.store.of_child(child).entries()]
        keys = {(entry.rank, entry.group, entry.prefix) for entry in entries}
        held = longest_supply(self.config, keys, asked)
        if answer.hit_length != held:
            self.ledger.wrong_lookups.append(
                f"a lookup of {num_tokens} tokens finds {answer.hit_length}, but the store has "
                f"{held} of them on every rank"
            )
        return answer

    def _reset(self, running: bool, store: bool) -> None:
        """Reset caches. One with running requests that finds blocks held is refused by raising."""
        filled = bool(self.store.values)
        try:
            self.last_reset = bool(self.scheduler.reset_prefix_cache(running, store))
        except RuntimeError as error:
            if not str(error).startswith(_RESET_REFUSED):
                raise
            self.last_reset = False
            store = False
        self.ledger.note_reset(self.last_reset)
        if store and filled:
            self.ledger.note_store_reset(self.store.values)

    def _submit(self, name: str) -> None:
        request = build_request(
            self.config.request(name), len(self.requests), self._built.hash_block_size
        )
        self.requests[name] = request
        self.scheduler.add_request(request)
        self._learn_prefixes(request)

    def _schedule(self) -> None:
        before = dict(self.view.key_map())
        untold = self.view.untold_preemptions()
        try:
            scheduled = self.scheduler.schedule()
        finally:
            self.view.look_again()
            resumed = {name for name in untold if any(self.view.tables(name))}
            self.ledger.resumed_at_once |= resumed
        self.steps.append(self.ledger.note_pass(scheduled, self.steps))
        self.ledger.note_keys(before, scheduled)
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
        self.ledger.note_executed(step)

    def _update(self, with_reports: bool) -> None:
        vllm = surface()
        step = self.steps.pop(0)
        if with_reports:
            for rank in self.ranks:
                index = rank.index % self.config.num_ranks
                self.ledger.note_reported(index, rank.reported_jobs)
            outputs = [
                vllm.outputs.ModelRunnerOutput(
                    req_ids=[],
                    req_id_to_index={},
                    kv_connector_output=one_report(
                        [each.take_reports() for each in self.ranks[index :: self.config.num_ranks]]
                    ),
                )
                for index in range(self.config.num_ranks)
            ]
            reports = self._aggregator.aggregate(outputs).kv_connector_output
            # Sets have no order of their own; which request comes first decides which of its
            # blocks is taken next.
            reports.finished_recving = InOrder(reports.finished_recving or ())
            if surface().release.failed_loads_by_request:
                reports.failed_recving = InOrder(reports.failed_recving)
            step.output.kv_connector_output = reports
            self.statistics["loads done"] += len(reports.finished_recving or ())
            failed = reports.invalid_block_ids
            if surface().release.failed_loads_by_request:
                failed = reports.failed_recving
            self.statistics["loads failed"] += len(failed)
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

    def _check_put(self, key: str, block: int, memory: Memory) -> str | None:
        group = int(key.split("@group:")[1].split("@")[0])
        prefix = self.prefixes.get(bytes.fromhex(key.rsplit("@", 1)[1]))
        if block == NULL_BLOCK:
            return f"the null block is stored under {key}"
        if prefix is None:
            return f"block {block} is stored under the hash of no request's prefix"
        why = why_not_under_key(self.config, memory, block, group, prefix)
        return None if why is None else f"the key at {show(prefix)} is stored wrong: {why}"

    # Draining

    def drain(self, bound: int = DRAIN_BOUND) -> None:
        """Let everything run to its end; check L2, and what is promised at rest.

        ``bound`` is on actions; a drain that meets it is replayed with twice as many, see
        ``draining.py``. Raises Violation if a property fails on the way, or no end is reached.
        """
        self.drain_began = len(self.actions)
        run_to_end(self, bound)
        for engine in self.engines:
            with self._blaming(engine):
                engine.check_at_rest()

    def check_at_rest(self) -> None:
        """Check L2, and what is promised at rest, of this engine. Raises Violation."""
        for prop in (QUIESCENCE, *PROMISES):
            if prop.identifier not in self.unchecked and (why := prop.why_not(self)) is not None:
                raise Violation(prop.identifier, why)

    def again(self, *, unchecked: Collection[str]) -> Session:
        """Return a new session on what this one began with, without a watcher."""
        store = None if self._found is None else self._found.copy()
        with watched_by(lambda _: None):
            return Session(self.config, store, unchecked=unchecked)


def _place(error: Exception) -> str:
    """Return an exception with the innermost place it was raised at, as one line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    module = place_in_release(frame.filename)
    message = str(error) or frame.line
    return f"{type(error).__name__} in {frame.name} ({module}:{frame.lineno}): {message}"


def place_in_release(path: str) -> str:
    """Return a path of vLLM's code as it is below the folder that holds the package.

    >>> place_in_release("/opt/cache/vllm/0.29.0/vllm/v1/core/block_pool.py")
    'vllm/v1/core/block_pool.py'
    """
    _, package, inner = path.rpartition("/vllm/")
    return package[1:] + inner


def filling(config: EngineConfig) -> EngineConfig:
    """Return the producer, with room to spare, that fills the store with ``config.stored``."""
    blocks = sum(config.blocks_for(request) for request in config.stored)
    return attrs.evolve(
        config,
        requests=config.stored,
        stored=(),
        peer_requests=(),
        role=Role.PRODUCER,
        num_blocks=blocks + 1,
        max_steps_in_flight=1,
    )


def run_in_turn(session: Session) -> None:
    """Run every request of a session to rest, one after another."""
    for request in session.config.requests:
        session.do(Submit(request.name))
        session.drain()
