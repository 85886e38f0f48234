"""The torch KV-cache engine: scheduler, cache, connector, workers and store, action by action.

>>> from cowtail.models.actions import Admit, BeginPass, EndPass, Execute, Submit
>>> from cowtail.models.scope import RequestSpec, Scope, full_attention, mamba
>>> scope = Scope(name="tiny", groups=(full_attention(2), mamba(2)), hash_unit=1,
...               num_blocks=8, requests=(RequestSpec("a", "abc"),))
>>> engine = TorchEngine(scope)
>>> for action in (Submit("a"), BeginPass(), Admit("a"), EndPass(), Execute()):
...     effects = engine.perform(action)
>>> engine.observe().memory[1]
('a', 'ab')
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import attrs

from cowtail.impl.torch_engine.assembly import build_connector, build_worker
from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.block_table import PassRecord
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.faults import parts_with
from cowtail.impl.torch_engine.foreign import ForeignEngine
from cowtail.impl.torch_engine.forward import StepPlanner
from cowtail.impl.torch_engine.kv_cache_manager import KVCacheManager
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.memory import PagedMemory
from cowtail.impl.torch_engine.observer import Inboxes, Observer
from cowtail.impl.torch_engine.policy import SchedulingPolicy
from cowtail.impl.torch_engine.scheduler import LoadReport, Scheduler, SchedulerOutput
from cowtail.impl.torch_engine.scripted_store import ScriptedStore
from cowtail.impl.torch_engine.store import InMemoryStore
from cowtail.impl.torch_engine.store_base import StoreBase
from cowtail.impl.torch_engine.store_protocol import StoreKey
from cowtail.impl.torch_engine.streams import Event, StreamKind, require_device
from cowtail.impl.torch_engine.true_contents import TrueContents
from cowtail.impl.torch_engine.worker import Worker
from cowtail.models import actions
from cowtail.models.actions import Action
from cowtail.models.observations import Effects, Observation
from cowtail.models.scope import GroupKind, Scope


@attrs.define(eq=False)
class _Step:
    """A step in flight. ``events``: when each rank has run it."""

    output: SchedulerOutput
    events: list[Event]
    executed: bool = False


class TorchEngine:
    """An engine for one scope, in which nothing has been submitted.

    ``device`` is "cpu" or "cuda"; block metadata stays on the CPU. ``faults`` are names of
    ``faults.FAULTS``. ``payload_width`` is the number of float32 values in a slot.
    ``streams`` says when device work takes effect; with "deferred" it is when ``execute``
    and ``run_job`` say so. ``store`` is the external store, one in memory if None; engines of
    one scope may share it, and whoever made it closes it.

    Raises ValueError for an unknown fault or device, DeviceNotAvailable for CUDA without a GPU.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        device: str = "cpu",
        faults: Collection[str] = (),
        payload_width: int = 8,
        streams: StreamKind = StreamKind.DEFERRED,
        store: StoreBase | None = None,
    ) -> None:
        if payload_width < 1:
            raise ValueError(f"payload_width={payload_width}: must be 1 or more; raise it")
        where = require_device(device)
        if streams is StreamKind.CUDA and device != "cuda":
            raise ValueError(f"streams 'cuda' with device {device!r}: use device cuda")
        parts = parts_with(faults)
        self.scope = scope
        self.pool: BlockPool = parts.pool(scope.num_blocks)
        layout = CacheLayout.of(scope)
        lookup = parts.lookup(layout)
        fence = parts.fence(self.pool, defers=scope.defer_frees)
        managers = {
            GroupKind.FULL_ATTENTION: parts.attention,
            GroupKind.SLIDING_WINDOW: parts.window,
            GroupKind.MAMBA: parts.mamba,
        }
        retention = parts.retention(layout, scope.retention_interval)
        cache = KVCacheManager(scope, self.pool, managers, PassRecord(), retention, lookup, fence)
        self.store: StoreBase = InMemoryStore() if store is None else store
        client = ScriptedStore(self.store)
        self.scheduler: Scheduler = parts.scheduler(
            scope,
            cache,
            build_connector(scope, parts, self.pool, lookup, client),
            parts.chunking(scope),
            SchedulingPolicy(scope.policy),
            parts.worker_tables(len(scope.groups)),
            parts.load_ledger(scope.num_ranks),
            parts.load_allocator(scope, cache),
            parts.held(scope.num_ranks),
        )
        contents = [TrueContents(scope, rank, payload_width) for rank in range(scope.num_ranks)]
        self.foreign = ForeignEngine(scope, self.store, contents)
        self.workers: list[Worker] = [
            build_worker(
                scope,
                parts,
                rank,
                PagedMemory(scope.num_blocks, scope.slots_per_block, payload_width, where),
                client,
                each,
                streams,
            )
            for rank, each in enumerate(contents)
        ]
        self._planner = StepPlanner(scope, where, parts.states)
        self._steps: deque[_Step] = deque()
        self._inbox: list[tuple[int, int]] = []
        self._load_inbox: list[LoadReport] = []
        self._send_inbox: list[tuple[str, int]] = []
        self._effects = Effects()
        self._observer = Observer(self.scheduler, self.workers, self.store)

    def perform(self, action: Action) -> Effects:
        """Carry out ``action`` and return what it did, beyond moving state.

        Raises EngineError, saying why, for an action that is not possible now, and its subclass
        ConservationError where bookkeeping turns out to be broken.
        """
        self._effects = self._perform(action)
        return self._effects

    def observe(self) -> Observation:
        """Return everything that can be observed now, with the effects of the last action."""
        inboxes = Inboxes(
            tuple(self._inbox),
            tuple((name, rank) for name, rank, _ in self._load_inbox),
            tuple(self._send_inbox),
        )
        return self._observer.observe(len(self._steps), inboxes, self._effects)

    def _perform(self, action: Action) -> Effects:
        scheduler = self.scheduler
        effects = Effects()
        match action:
            case actions.Submit(request=name):
                scheduler.submit(name)
            case actions.Abort(request=name):
                effects = scheduler.abort(name)
            case actions.BeginPass():
                self._begin_pass()
            case actions.Admit(request=name, lookup_failed=failed):
                effects = scheduler.admit(name, lookup_failed=failed)
            case actions.Extend(request=name):
                effects = scheduler.extend(name)
            case actions.Preempt(request=name):
                scheduler.preempt(name)
            case actions.EndPass():
                effects = self._end_pass()
            case actions.Execute():
                self._execute()
            case actions.UpdateFromOutput():
                effects = self._update_from_output()
            case actions.RunJob(rank=rank, outcome=outcome):
                effects = Effects(puts=self._worker(rank).run_job(outcome))
            case actions.Report(rank=rank, job=job, again=again):
                self._worker(rank).take_report(job, again=again)
                self._inbox = sorted([*self._inbox, (job, rank)])
            case actions.UpdateConnectorOutput():
                effects = self._update_connector_output()
            case _:
                effects = self._perform_elsewhere(action)
        return effects

    def _perform_elsewhere(self, action: Action) -> Effects:
        """Carry out what has to do with lookups, loads, other engines, and resets."""
        scheduler = self.scheduler
        match action:
            case actions.LookUp(request=name, failed=failed):
                scheduler.look_up(name, failed=failed)
            case actions.ExpireLease(request=name):
                scheduler.expire_lease(name)
            case actions.RunLoad(rank=rank, outcome=result):
                self._worker(rank).loads.run(failed=result is actions.LoadOutcome.FAILED)
            case actions.ReportLoad(rank=rank, request=name):
                failed = self._worker(rank).loads.take_report(name)
                self._load_inbox = sorted([*self._load_inbox, (name, rank, failed)])
            case actions.FinishSend(rank=rank, child=child, request=name):
                if self._worker(rank).sends.finish(name, child):
                    self._send_inbox = sorted([*self._send_inbox, (name, rank)])
            case actions.ForeignPut(request=name):
                self.foreign.put(scheduler.request(name))
            case actions.Evict(rank=rank, group=group, prefix=prefix):
                self._evict(StoreKey(rank, group, prefix))
            case actions.Reset(running=running, store=store):
                return Effects(reset=self._reset(running=running, store=store))
            case _:
                raise EngineError(f"{action}: the engine does not choose what to schedule")
        return Effects()

    def _evict(self, key: StoreKey) -> None:
        try:
            self.store.evict(key)
        except KeyError:
            raise EngineError(f"{key}: not in the store; evict a key that is") from None

    def _reset(self, *, running: bool, store: bool) -> bool:
        """Reset the prefix cache, and with ``store`` what is outside too, whatever came of it."""
        done = self.scheduler.reset(running=running)
        if store:
            self.scheduler.connector.reset_cache()
            self.store.remove_all(force=True)
        return done

    def _worker(self, rank: int) -> Worker:
        if not 0 <= rank < len(self.workers):
            raise EngineError(f"rank {rank}: must be below {len(self.workers)}; choose another")
        return self.workers[rank]

    def _begin_pass(self) -> None:
        limit = self.scope.max_steps_in_flight
        if len(self._steps) >= limit:
            raise EngineError(f"begin_pass: {limit} steps are in flight; process an output first")
        self.scheduler.begin_pass()

    def _end_pass(self) -> Effects:
        """Dispatch the step: its device work goes to every rank's compute stream.

        Its loads are queued at once: they do not wait for the device.
        """
        output, effects = self.scheduler.end_pass()
        inputs = self._planner.plan(output)
        events = [worker.submit_step(inputs) for worker in self.workers]
        for load in output.metadata.loads:
            for worker in self.workers:
                worker.loads.enqueue(load)
        self._steps.append(_Step(output, events))
        return effects

    def _execute(self) -> None:
        """Wait for the oldest step that has not run; then its jobs reach every rank's queue."""
        step = next((step for step in self._steps if not step.executed), None)
        if step is None:
            raise EngineError("execute: every step has run; end a pass first")
        for worker, event in zip(self.workers, step.events, strict=True):
            event.wait()
            worker.start_jobs(step.output.metadata, event)
        step.executed = True

    def _update_from_output(self) -> Effects:
        if not self._steps or not self._steps[0].executed:
            raise EngineError("update_from_output: no step has run; execute one first")
        return self.scheduler.update_from_output(self._steps.popleft().output)

    def _update_connector_output(self) -> Effects:
        if not (self._inbox or self._load_inbox or self._send_inbox):
            raise EngineError("update_connector_output: nothing was reported; report a job first")
        reports, self._inbox = self._inbox, []
        loads, self._load_inbox = self._load_inbox, []
        sends, self._send_inbox = self._send_inbox, []
        return self.scheduler.update_connector_output(reports, loads, sends)
