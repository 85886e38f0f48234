"""The scheduler: passes over the requests, steps, outputs, and the ends of requests.

It runs ahead of the device: ``computed`` advances and keys are registered when a chunk is
scheduled, while bytes exist only after the step has run. Which request is scheduled when is the
caller's decision; how far, on which blocks and out of which hit is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from cowtail.impl.torch_engine.chunking import Chunking, Extent
from cowtail.impl.torch_engine.connector_base import Connector, PassResult
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.held import HeldRequests
from cowtail.impl.torch_engine.kv_cache_manager import KVCacheManager
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.loads import LoadAllocator, LoadJob, LoadLedger, Supply
from cowtail.impl.torch_engine.lookup import Hit
from cowtail.impl.torch_engine.policy import SchedulingPolicy
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata
from cowtail.impl.torch_engine.worker_tables import WorkerTables
from cowtail.models.observations import Copy, Effects, Handoff, Load, Status, StoreJob
from cowtail.models.scope import LoadPolicy, Role, Scope

LoadReport = tuple[str, int, bool]
"""A request, a rank, and whether the rank failed to load it."""


@attrs.frozen(eq=False)
class SchedulerOutput:
    """One step: everything that the workers need to run it, and nothing that changes later."""

    chunks: tuple[ScheduledChunk, ...]
    copies: tuple[Copy, ...]
    new_blocks: tuple[int, ...]
    metadata: ConnectorMetadata


@attrs.define(eq=False)
class _Pass:
    """The pass that is open: what was scheduled, in order, and what was taken away."""

    chunks: list[ScheduledChunk] = attrs.field(factory=list)
    loads: list[LoadJob] = attrs.field(factory=list)
    preempted: list[str] = attrs.field(factory=list)

    @property
    def requests(self) -> list[Request]:
        return [chunk.request for chunk in self.chunks]

    @property
    def tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    def scheduled(self, request: Request) -> bool:
        return any(chunk.request is request for chunk in self.chunks)


class Scheduler:
    """Requests, the open pass, and the ids that workers have yet to be told of."""

    def __init__(
        self,
        scope: Scope,
        cache: KVCacheManager,
        connector: Connector,
        chunking: Chunking,
        policy: SchedulingPolicy,
        worker_tables: WorkerTables,
        loads: LoadLedger,
        load_allocator: LoadAllocator,
        held: HeldRequests,
    ) -> None:
        self.scope = scope
        self.cache = cache
        self.connector = connector
        self.chunking = chunking
        self.policy = policy
        self.worker_tables = worker_tables
        self.loads = loads
        self.load_allocator = load_allocator
        self.held = held
        self.layout = CacheLayout.of(scope)
        self.saves = scope.role in (Role.PRODUCER, Role.BOTH)
        self.requests = {spec.name: Request(spec) for spec in scope.requests}
        self._pass: _Pass | None = None
        self._preempted: list[str] = []
        self._finished: list[str] = []
        self._arrivals = 0
        self._admissions = 0

    @property
    def untold(self) -> tuple[str, ...]:
        """Finished requests that the workers were not told of, in order."""
        return tuple(self._finished)

    def request(self, name: str) -> Request:
        """Return a request by name. Raises EngineError for one that is not in the scope."""
        if name not in self.requests:
            raise EngineError(
                f"request {name!r}: not in scope {self.scope.name!r}; use one of "
                f"{', '.join(self.requests)}"
            )
        return self.requests[name]

    def submit(self, name: str) -> None:
        """Queue a new request."""
        request = self.request(name)
        _require(request.status is Status.NEW, request, "was submitted already")
        request.status = Status.WAITING
        self._arrivals += 1
        request.arrival = self._arrivals

    @property
    def running(self) -> list[Request]:
        """The running requests, in the order in which they were last admitted."""
        running = [each for each in self.requests.values() if each.status is Status.RUNNING]
        return sorted(running, key=lambda each: each.admission)

    def begin_pass(self) -> None:
        """Open a pass."""
        if self._pass is not None:
            raise EngineError("begin_pass: a pass is open; end it first")
        self._pass = _Pass()

    def look_up(self, name: str, *, failed: bool) -> None:
        """Take in the answer of a lookup for a request that waits."""
        request = self.request(name)
        self._require_no_pass(f"look_up({name})")
        waits = request.status in (Status.WAITING, Status.PREEMPTED)
        _require(waits, request, f"is {request.status}, not waiting")
        self.connector.look_up(request, failed=failed)

    def expire_lease(self, name: str) -> None:
        """End the lease on what a request's lookup found."""
        self._require_no_pass(f"expire_lease({name})")
        self.connector.expire_lease(self.request(name))

    def admit(self, name: str, *, lookup_failed: bool = False) -> Effects:
        """Look a waiting request up, here and elsewhere, and schedule its first chunk or its load.

        A loaded one is not looked up again: the chunk after its load is scheduled.
        """
        request, current = self.request(name), self._open_pass()
        _require(not current.preempted, request, "waits: this pass preempted another")
        if request.status is Status.LOADED:
            return self._admit_loaded(request)
        waits = request.status in (Status.WAITING, Status.PREEMPTED)
        _require(waits, request, f"is {request.status}, not waiting")
        hit = self.cache.find_hit(request)
        local = self.layout.saved_whole(hit.length)
        supply = self.connector.supply(request, local, failed=lookup_failed)
        if supply is not None and self.is_worth_loading(supply, hit):
            return self._begin_load(request, hit, supply)
        if self.cache.hit_of_this_pass(hit):
            raise EngineError(f"request {name!r} hits a state that this very pass produces")
        if self.cache.copies_unwritten(hit, current.chunks):
            raise EngineError(f"request {name!r} would copy a block that this very pass writes")
        before = request.junction
        request.computed, request.junction = hit.length, hit.junction
        try:
            extent = self._extent(request)
            self.cache.allocate(request, extent, hit)
        except EngineError:
            request.computed, request.junction = 0, before
            raise
        self.connector.admitted(request, None)
        request.status = Status.RUNNING
        chunk = self._schedule(request, extent, admitted=True)
        return Effects(hit=hit.length, chunk=chunk.chunk)

    def is_worth_loading(self, supply: Supply, hit: Hit) -> bool:
        """Whether a connector supplies more than the local cache does, tails included (R13)."""
        return supply.length > hit.length

    def _begin_load(self, request: Request, hit: Hit, supply: Supply) -> Effects:
        """Give a request the blocks that its load will fill; it waits for that, and computes not.

        What the local cache has beyond whole blocks of all groups is loaded too.
        """
        start, end = self.layout.saved_whole(hit.length), supply.length
        waiting = [
            each
            for each in self.requests.values()
            if each.status in (Status.LOADING, Status.LOADED)
        ]
        self.load_allocator.allocate(request, hit, start, end, waiting)
        self.connector.admitted(request, supply)
        self.loads.begin(request.name)
        request.status = Status.LOADING
        request.computed, request.junction = end, hit.junction
        load = Load(request.name, supply.child, start, end)
        tables = self.cache.tables(request.name)
        self._open_pass().loads.append(LoadJob(load, request, tables, supply.present))
        return Effects(hit=start, external=end)

    def _admit_loaded(self, request: Request) -> Effects:
        """Key what was loaded, and schedule the chunk after it."""
        extent = self._extent(request)
        self.cache.allocate_after_load(request, extent)
        request.status = Status.RUNNING
        return Effects(chunk=self._schedule(request, extent, admitted=True).chunk)

    def extend(self, name: str) -> Effects:
        """Schedule the next chunk, or the next token, of a running request."""
        request, current = self.request(name), self._open_pass()
        _require(request.status is Status.RUNNING, request, f"is {request.status}, not running")
        _require(not current.scheduled(request), request, "is scheduled in this pass already")
        _require(request.has_tokens_to_schedule(), request, "has no tokens to schedule")
        in_turn = self.policy.may_extend(request, self.running, current.requests)
        _require(in_turn, request, "is extended before those that were admitted after it")
        extent = self._extent(request)
        self.cache.allocate(request, extent, None)
        return Effects(chunk=self._schedule(request, extent, admitted=False).chunk)

    def _extent(self, request: Request) -> Extent:
        """Return how far the next chunk goes, within what the pass has left of its budget."""
        start, budget = request.computed, self.scope.token_budget - self._open_pass().tokens
        extent = self.chunking.extent(request, start, budget)
        _require(extent.end > start, request, f"has no chunk that may start at {start} now")
        return extent

    def _schedule(self, request: Request, extent: Extent, *, admitted: bool) -> ScheduledChunk:
        if admitted:
            self._admissions += 1
            request.admission = self._admissions
        tables = self.cache.tables(request.name)
        samples = extent.end - extent.drafts == request.known + request.placeholders
        chunk = ScheduledChunk(
            request,
            request.computed,
            extent.end,
            samples,
            admitted,
            request.preemptions,
            self.worker_tables.send(request, tables, admitted=admitted),
            extent.drafts,
            request.accepts(extent.drafts),
            extent.checkpoint,
        )
        request.placeholders += samples + chunk.drafts
        request.drafts = chunk.drafts
        request.computed = chunk.end
        request.in_flight += chunk.length
        self._open_pass().chunks.append(chunk)
        return chunk

    def preempt(self, name: str) -> None:
        """Take a running request's blocks away; it waits for admission again.

        A chunk that the pass has scheduled for it is withdrawn, if the policy does that.
        """
        request, current = self.request(name), self._open_pass()
        _require(request.status is Status.RUNNING, request, f"is {request.status}, not running")
        scheduled = current.scheduled(request)
        may_lose = self.policy.withdraws or not scheduled
        _require(may_lose, request, "is scheduled in this pass already")
        admitted = any(chunk.admitted for chunk in current.chunks)
        _require(not admitted, request, "stays: this pass admitted another")
        is_victim = self.policy.may_preempt(request, self.running)
        _require(is_victim, request, f"stays: {self.scope.policy} preempts another first")
        _require(not current.loads, request, "stays: this pass began a load")
        if scheduled:
            self.withdraw(request)
        current.preempted.append(name)
        self._take_blocks(request)

    def _take_blocks(self, request: Request) -> None:
        """End a life of a running request: it waits, with nothing, and workers will be told."""
        self.cache.free(request)
        self.worker_tables.forget(request)
        request.status = Status.PREEMPTED
        request.computed = request.placeholders = request.drafts = request.junction = 0
        request.preemptions += 1
        self._preempted.append(request.name)
        self.connector.request_preempted(request)

    def withdraw(self, request: Request) -> None:
        """Take a request's chunk out of the pass: what it was to compute is never computed."""
        current = self._open_pass()
        (chunk,) = [each for each in current.chunks if each.request is request]
        current.chunks.remove(chunk)
        request.in_flight -= chunk.length
        self.cache.withdraw(request)

    def reset(self, *, running: bool) -> bool:
        """Empty the prefix cache; return whether that could be done.

        With ``running``, running requests lose their blocks first, the last admitted first.
        """
        self._require_no_pass("reset")
        if running:
            for request in reversed(self.running):
                self._take_blocks(request)
        return self.cache.reset()

    def end_pass(self) -> tuple[SchedulerOutput, Effects]:
        """Close the pass: drain copies and handoffs, build the metadata, make the step."""
        current, record = self._open_pass(), self.cache.record
        copies = record.drain_copies()
        handoffs = record.drain_handoffs()
        scheduled = [chunk.request.name for chunk in current.chunks]
        metadata = self.connector.build_metadata(
            PassResult(
                chunks=tuple(current.chunks),
                handoffs=handoffs,
                requests=self.requests,
                tables={name: self.cache.tables(name) for name in scheduled},
                loads=tuple(current.loads),
                preempted=tuple(self._preempted),
                finished=tuple(self._finished),
            )
        )
        self.cache.fence.step_dispatched()
        self.cache.release_copies(copies)
        record.forget_keys()
        self._pass = None
        self._preempted = []
        self._finished = []
        output = SchedulerOutput(tuple(current.chunks), copies, record.drain_new_blocks(), metadata)
        return output, Effects(
            copies=copies,
            handoffs=handoffs if self.saves else (),
            jobs=tuple(each.job for each in metadata.jobs),
            loads=tuple(each.load for each in metadata.loads),
        )

    def update_from_output(self, output: SchedulerOutput) -> Effects:
        """Process what a step sampled; output of an earlier life of a request is ignored."""
        self.cache.fence.step_processed()
        handoffs: list[Handoff] = []
        jobs: list[StoreJob] = []
        for chunk in output.chunks:
            request = chunk.request
            request.in_flight -= chunk.length
            if request.finished or self.is_stale(chunk) or not chunk.samples:
                continue
            request.outputs += 1 + chunk.accepted
            request.placeholders -= 1 + chunk.drafts
            request.computed -= chunk.drafts - chunk.accepted
            if chunk.drafts:
                request.drafts = 0
            if request.outputs == request.spec.max_tokens:
                self._finish(request, handoffs, jobs)
        return Effects(handoffs=tuple(handoffs), jobs=tuple(jobs))

    def is_stale(self, chunk: ScheduledChunk) -> bool:
        """Whether the request was preempted since the chunk was scheduled."""
        return chunk.life != chunk.request.preemptions

    def abort(self, name: str) -> Effects:
        """End a request in whatever phase it is."""
        request = self.request(name)
        self._require_no_pass(f"abort({name})")
        ended = request.status in (Status.NEW, Status.FINISHED)
        _require(not ended, request, f"is {request.status}: nothing to abort")
        handoffs: list[Handoff] = []
        jobs: list[StoreJob] = []
        if request.status is Status.LOADING:
            self._finish_loading(request)
        else:
            self._finish(request, handoffs, jobs)
        return Effects(handoffs=tuple(handoffs), jobs=tuple(jobs))

    def _finish_loading(self, request: Request) -> None:
        """End a request whose blocks a load is still written into: they stay until it is over."""
        request.status = Status.FINISHED
        self.connector.load_finished(request)
        self.held.hold_for_load(request.name, self.loads.owed(request.name))
        request.junction = 0
        self._finished.append(request.name)

    def _finish(self, request: Request, handoffs: list[Handoff], jobs: list[StoreJob]) -> None:
        """Finalize the tails first, while their blocks are the request's own; then free (R3).

        A request that was never admitted has nothing of either; the workers are told of it
        like of any other. Blocks that a connector saves asynchronously stay until it has.
        """
        request.status = Status.FINISHED
        tails = self.cache.take_finished_tails(request) if self.saves else []
        self.cache.remove_skipped(request)
        tables = self.cache.tables(request.name)
        if tails and self.connector.register_finished_partial_tail(request, tables, tails):
            handoffs.extend(tails)
        delays = self.connector.request_finished(request, tables)
        jobs.extend(self.connector.drain_registered())
        if delays:
            self.held.hold_for_sends(request.name)
        else:
            self.cache.free(request)
        self.worker_tables.forget(request)
        request.junction = 0
        self._finished.append(request.name)

    def update_connector_output(
        self,
        reports: Sequence[tuple[int, int]],
        loads: Sequence[LoadReport] = (),
        sends: Sequence[tuple[str, int]] = (),
    ) -> Effects:
        """Count what ranks are done with: jobs (job, rank), loads, and sends (request, rank)."""
        released = [job for job, rank in reports if self.connector.report(job, rank)]
        for name, rank, failed in loads:
            self._load_reported(self.request(name), rank, failed=failed)
        for name, rank in sends:
            if self.held.done(name, rank):
                self.cache.free(self.request(name))
        return Effects(released=tuple(released))

    def _load_reported(self, request: Request, rank: int, *, failed: bool) -> None:
        """Count one rank's load; after the last one the request may go on, or its blocks may go."""
        entry = self.loads.report(request.name, rank, failed=failed)
        if request.finished:
            if self.held.done(request.name, rank):
                self.cache.free(request)
        elif entry is not None:
            self.connector.load_finished(request)
            if entry.failed:
                self._load_failed(request)
            else:
                request.status = Status.LOADED

    def _load_failed(self, request: Request) -> None:
        """Compute everything, or end: what was loaded is never used (R18).

        Blocks are free at once, because no step has them, and the load is over.
        """
        request.load_failed = True
        if self.scope.load_policy is LoadPolicy.RECOMPUTE:
            self.cache.free_at_once(request)
            request.computed = 0
            request.status = Status.WAITING
            return
        request.status = Status.FINISHED
        request.junction = 0
        self.cache.free(request)
        self._finished.append(request.name)

    def _open_pass(self) -> _Pass:
        if self._pass is None:
            raise EngineError("no pass is open; begin one first")
        return self._pass

    def _require_no_pass(self, action: str) -> None:
        if self._pass is not None:
            raise EngineError(f"{action}: a pass is open; end it first")


def _require(condition: bool, request: Request, otherwise: str) -> None:
    """Raise EngineError, naming the request, unless ``condition`` holds."""
    if not condition:
        raise EngineError(f"request {request.name!r} {otherwise}")
