"""The scheduler: passes over the requests, steps, outputs, and the ends of requests.

It runs ahead of the device: ``computed`` advances and keys are registered when a chunk is
scheduled, while bytes exist only after the step has run. Which request is scheduled when is the
caller's decision; how far, on which blocks and out of which hit is decided here.
"""

from __future__ import annotations

import attrs

from cowtail.impl.torch_engine.chunking import Chunking
from cowtail.impl.torch_engine.connector import StoreConnector
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.kv_cache_manager import KVCacheManager
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata
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
    ) -> None:
        self.scope = scope
        self.cache = cache
        self.connector = connector
        self.chunking = chunking
        self.requests = {spec.name: Request(spec) for spec in scope.requests}
        self._pass: _Pass | None = None
        self._finished: list[str] = []

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
        end = self._chunk_end(request, hit.length)
        request.computed = hit.length
        self.cache.allocate(request, end, hit)
        request.status = Status.RUNNING
        chunk = self._schedule(request, end, admitted=True)
        return Effects(hit=hit.length, chunk=chunk.chunk)

    def extend(self, name: str) -> Effects:
        """Schedule the next chunk, or the next token, of a running request."""
        request, current = self.request(name), self._open_pass()
        _require(request.status is Status.RUNNING, request, f"is {request.status}, not running")
        _require(not current.scheduled(request), request, "is scheduled in this pass already")
        _require(request.has_tokens_to_schedule(), request, "has no tokens to schedule")
        end = self._chunk_end(request, request.computed)
        self.cache.allocate(request, end, None)
        return Effects(chunk=self._schedule(request, end, admitted=False).chunk)

    def _chunk_end(self, request: Request, start: int) -> int:
        end = self.chunking.chunk_end(request, start)
        _require(end > start, request, f"has no chunk that may start at {start} now")
        return end

    def _schedule(self, request: Request, end: int, *, admitted: bool) -> ScheduledChunk:
        samples = end == request.known + request.placeholders
        chunk = ScheduledChunk(
            request,
            request.computed,
            end,
            samples,
            admitted,
            request.preemptions,
            self.cache.tables(request.name),
        )
        request.placeholders += samples
        request.computed = end
        request.in_flight += chunk.length
        self._open_pass().chunks.append(chunk)
        return chunk

    def preempt(self, name: str) -> None:
        """Take a running request's blocks away; it waits for admission again."""
        request, current = self.request(name), self._open_pass()
        _require(request.status is Status.RUNNING, request, f"is {request.status}, not running")
        _require(not current.scheduled(request), request, "is scheduled in this pass already")
        admitted = any(chunk.admitted for chunk in current.chunks)
        _require(not admitted, request, "stays: this pass admitted another")
        self.cache.free(request)
        request.status = Status.PREEMPTED
        request.computed = request.placeholders = 0
        request.preemptions += 1
        current.preempted.append(name)
        self.connector.request_preempted(request)

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
        record.mamba_keys.clear()
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
            request.outputs += 1
            request.placeholders -= 1
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
