"""The scheduler: passes over the requests, steps, outputs, and the ends of requests.

It runs ahead of the device: ``computed`` advances and keys are registered when a chunk is
scheduled, while bytes exist only after the step has run. Which request is scheduled when is the
caller's decision; how far, on which blocks and out of which hit is decided here.
"""

from __future__ import annotations

import attrs

from cowtail.impl.torch_engine.chunking import Chunking, Extent
from cowtail.impl.torch_engine.connector import StoreConnector
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.kv_cache_manager import KVCacheManager
from cowtail.impl.torch_engine.policy import SchedulingPolicy
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata
from cowtail.impl.torch_engine.worker_tables import WorkerTables
from cowtail.models.observations import Copy, Effects, Handoff, Status, StoreJob
from cowtail.models.scope import Scope


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
        connector: StoreConnector,
        chunking: Chunking,
        policy: SchedulingPolicy,
        worker_tables: WorkerTables,
    ) -> None:
        self.scope = scope
        self.cache = cache
        self.connector = connector
        self.chunking = chunking
        self.policy = policy
        self.worker_tables = worker_tables
        self.requests = {spec.name: Request(spec) for spec in scope.requests}
        self._pass: _Pass | None = None
        self._finished: list[str] = []
        self._arrivals = 0
        self._admissions = 0

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

    def admit(self, name: str) -> Effects:
        """Look a waiting request up in the cache and schedule its first chunk."""
        request, current = self.request(name), self._open_pass()
        waits = request.status in (Status.WAITING, Status.PREEMPTED)
        _require(waits, request, f"is {request.status}, not waiting")
        _require(not current.preempted, request, "waits: this pass preempted another")
        hit = self.cache.find_hit(request)
        if self.cache.hit_of_this_pass(hit):
            raise EngineError(f"request {name!r} hits a state that this very pass produces")
        if self.cache.copies_unwritten(hit, current.chunks):
            raise EngineError(f"request {name!r} would copy a block that this very pass writes")
        before = request.junction
        request.computed, request.junction = hit.length, 0
        try:
            extent = self._extent(request)
            self.cache.allocate(request, extent, hit)
        except EngineError:
            request.computed, request.junction = 0, before
            raise
        request.status = Status.RUNNING
        chunk = self._schedule(request, extent, admitted=True)
        return Effects(hit=hit.length, chunk=chunk.chunk)

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
        start, budget = request.computed, self.scope.token_budget
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
            tables,
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
        if scheduled:
            self.withdraw(request)
        self.cache.free(request)
        self.worker_tables.forget(request)
        request.status = Status.PREEMPTED
        request.computed = request.placeholders = request.drafts = request.junction = 0
        request.preemptions += 1
        current.preempted.append(name)
        self.connector.request_preempted(request)

    def withdraw(self, request: Request) -> None:
        """Take a request's chunk out of the pass: what it was to compute is never computed."""
        current = self._open_pass()
        (chunk,) = [each for each in current.chunks if each.request is request]
        current.chunks.remove(chunk)
        request.in_flight -= chunk.length
        self.cache.withdraw(request)

    def end_pass(self) -> tuple[SchedulerOutput, Effects]:
        """Close the pass: drain copies and handoffs, build the metadata, make the step."""
        current, record = self._open_pass(), self.cache.record
        copies = record.drain_copies()
        handoffs = record.drain_handoffs()
        metadata = self.connector.build_metadata(
            current.chunks,
            handoffs,
            self.requests,
            tuple(current.preempted),
            tuple(self._finished),
        )
        self.cache.fence.step_dispatched()
        self.cache.release_copies(copies)
        record.forget_keys()
        self._pass = None
        self._finished = []
        output = SchedulerOutput(tuple(current.chunks), copies, record.drain_new_blocks(), metadata)
        return output, Effects(
            copies=copies,
            handoffs=handoffs if self.connector.saves else (),
            jobs=tuple(each.job for each in metadata.jobs),
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
        if self._pass is not None:
            raise EngineError(f"abort({name}): a pass is open; end it first")
        ended = request.status in (Status.NEW, Status.FINISHED)
        _require(not ended, request, f"is {request.status}: nothing to abort")
        handoffs: list[Handoff] = []
        jobs: list[StoreJob] = []
        self._finish(request, handoffs, jobs)
        return Effects(handoffs=tuple(handoffs), jobs=tuple(jobs))

    def _finish(self, request: Request, handoffs: list[Handoff], jobs: list[StoreJob]) -> None:
        """Finalize the tails first, while their blocks are the request's own; then free (R3).

        A request that was never admitted has nothing of either; the workers are told of it
        like of any other.
        """
        request.status = Status.FINISHED
        tails = self.cache.take_finished_tails(request) if self.connector.saves else []
        self.cache.remove_skipped(request)
        tables = self.cache.tables(request.name)
        job = self.connector.register_finished_tails(request, tables, tails)
        if job is not None:
            handoffs.extend(tails)
            jobs.append(job)
        saved = self.connector.request_finished(request, tables)
        if saved is not None:
            jobs.append(saved)
        self.cache.free(request)
        self.worker_tables.forget(request)
        request.junction = 0
        self._finished.append(request.name)

    def update_connector_output(self, reports: list[tuple[int, int]]) -> Effects:
        """Count reports, (job, rank) each; release what every rank has reported."""
        released = [job for job, rank in reports if self.connector.report(job, rank)]
        return Effects(released=tuple(released))

    def _open_pass(self) -> _Pass:
        if self._pass is None:
            raise EngineError("no pass is open; begin one first")
        return self._pass


def _require(condition: bool, request: Request, otherwise: str) -> None:
    """Raise EngineError, naming the request, unless ``condition`` holds."""
    if not condition:
        raise EngineError(f"request {request.name!r} {otherwise}")
