"""The scheduler's side of the store connector: what is saved, when, and out of which blocks.

Two kinds of progress are kept apart (R19): the *normal save* covers attention blocks up to a
multiple of the LCM, found by position in the job's tables; *boundary puts* name the exact block
that holds a boundary's state (R30), and the attention blocks that a hit there needs besides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.connector_base import Connector, PassResult
from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.loads import Supply
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.store_jobs import (
    ConnectorMetadata,
    JobMetadata,
    PinLedger,
    Tables,
)
from cowtail.impl.torch_engine.store_lookup import HeldAnswers, StoreLookup
from cowtail.impl.torch_engine.store_protocol import RPC_FAILED
from cowtail.models.observations import NULL_BLOCK, Handoff, Pin, Put, StoreJob
from cowtail.models.scope import Lookup, Role, Scope


@attrs.define(eq=False)
class SaveTracker:
    """How far a request's tokens are known to the connector, and saved. Lengths in tokens."""

    token_len: int = 0
    num_saved: int = 0
    prefill_end: int = 0
    tail_sent: bool = False


@attrs.define(eq=False)
class Save:
    """What one pass saves of one request; ``save_to`` 0 is a handoff and nothing else."""

    request: Request
    tables: Tables
    completed: int
    save_to: int = 0
    publish: bool = False
    handoffs: list[Handoff] = attrs.field(factory=list)


class StoreConnector(Connector):
    """Trackers per request, job ids that are never used again, and the pins of the jobs.

    ``child``: the position of the store among the connectors. ``saves``: whether the engine's
    role hands blocks to the store at all (R3).
    """

    def __init__(
        self,
        scope: Scope,
        child: int,
        pool: BlockPool,
        ledger: PinLedger,
        lookup: StoreLookup,
        answers: HeldAnswers,
    ) -> None:
        super().__init__(child)
        self.scope = scope
        self.layout = CacheLayout.of(scope)
        self.saves = scope.role in (Role.PRODUCER, Role.BOTH)
        self.pool = pool
        self.ledger = ledger
        self.lookup = lookup
        self.answers = answers
        self.trackers: dict[str, SaveTracker] = {}
        self._finished_jobs: list[JobMetadata] = []
        self._registered: list[StoreJob] = []
        self._next_job = 0

    @property
    def queued_tails(self) -> tuple[int, ...]:
        """Jobs registered at finish that no metadata has carried yet."""
        return tuple(metadata.job.job for metadata in self._finished_jobs)

    def drain_registered(self) -> tuple[StoreJob, ...]:
        """Return, once, the jobs registered at finish."""
        drained, self._registered = tuple(self._registered), []
        return drained

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins of jobs that some rank has not reported."""
        return self.ledger.pins()

    def look_up(self, request: Request, *, failed: bool) -> None:
        """Hold the store's answer, as it is at this moment, until the request is admitted."""
        if self.scope.lookup is not Lookup.ASYNC or not self.asks(request):
            super().look_up(request, failed=failed)
        self.answers.hold(request, self._ask(request, failed=failed))

    def expire_lease(self, request: Request) -> None:
        """Let the lease of the request's lookup run out."""
        self.answers.expire(request.name)

    def found(self, name: str) -> int | None:
        """Return the tokens of the answer that a request holds."""
        answer = self.answers.get(name)
        return answer.length if answer is not None else None

    def leased(self, name: str) -> bool:
        """Whether a request has a lease on what it found."""
        return self.answers.leased(name)

    def supply(self, request: Request, beyond: int, *, failed: bool) -> Supply | None:
        """Return the answer that the request holds, or look it up now.

        Raises EngineError if the answer of an asynchronous lookup has not come.
        """
        if not self.asks(request):
            return None
        if self.scope.lookup is Lookup.SYNC:
            answer = self._ask(request, failed=failed)
        else:
            held = self.answers.get(request.name)
            if held is None:
                raise EngineError(f"request {request.name!r} holds no answer; look it up first")
            answer = held
        return answer if answer.length > beyond else None

    def asks(self, request: Request) -> bool:
        """Whether the store is asked at all.

        Not for less than a hit can be, and not again for a request whose load has failed.
        """
        long_enough = request.known >= self.layout.alignment
        return self.scope.lookup is not Lookup.OFF and long_enough and not request.load_failed

    def _ask(self, request: Request, *, failed: bool) -> Supply:
        if failed:
            with self.lookup.store.answering(checks=RPC_FAILED):
                return self.lookup.find(request)
        return self.lookup.find(request)

    def admitted(self, request: Request, winner: Supply | None) -> None:
        """Use the request's answer up, whoever won."""
        loads = winner is not None and winner.child == self.child
        self.answers.use(request.name, loads=loads)

    def load_finished(self, request: Request) -> None:
        """End the lease of what was loaded."""
        self.answers.drop(request.name)

    def reset_cache(self) -> None:
        """Drop every answer: the store is emptied."""
        self.answers.drop_all()

    def build_metadata(self, result: PassResult) -> ConnectorMetadata:
        """Turn a pass into jobs, pin their blocks, and append the tails queued at finish (R14)."""
        for name in result.finished:
            self.trackers.pop(name, None)
        for name in result.preempted:
            if name in self.trackers:
                self.trackers[name] = SaveTracker()
        saves = [
            save
            for chunk in result.chunks
            if (save := self._track(chunk, result.tables)) is not None
        ]
        metadata = super().build_metadata(result)
        if not self.saves:
            return metadata
        self._attach_handoffs(saves, result)
        jobs = [job for save in saves if (job := self._make_job(save)) is not None]
        jobs += self._finished_jobs
        self._finished_jobs = []
        return attrs.evolve(metadata, jobs=tuple(jobs))

    def _track(self, chunk: ScheduledChunk, tables: Mapping[str, Tables]) -> Save | None:
        """Advance a request's tracker by its chunk; return a save if one is due."""
        request = chunk.request
        if chunk.admitted:
            self.ledger.request_admitted(request)
            token_len = min(chunk.end, request.known)
            tracker = SaveTracker(token_len=token_len, prefill_end=request.known)
            self.trackers[request.name] = tracker
        else:
            tracker = self.trackers[request.name]
            if chunk.start >= tracker.prefill_end:
                return None  # decode is not saved
            tracker.token_len += min(request.known - tracker.token_len, chunk.length)
        save_to = self.layout.saved_whole(tracker.token_len)
        publish = (
            self.layout.partial_hits
            and not tracker.tail_sent
            and request.prompt_length <= tracker.token_len
        )
        if save_to <= tracker.num_saved and not publish:
            return None
        tracker.num_saved = save_to
        tracker.tail_sent |= publish
        return Save(request, tables[request.name], tracker.token_len, save_to, publish)

    def _attach_handoffs(self, saves: list[Save], result: PassResult) -> None:
        """Attach each acceptable handoff to its request's save, or to one of its own (R10)."""
        by_request = {save.request.name: save for save in saves}
        for handoff in result.handoffs:
            if not self.accepts(handoff):
                continue
            save = by_request.get(handoff.request)
            if save is None:
                name, completed = handoff.request, self.trackers[handoff.request].token_len
                save = Save(result.requests[name], result.tables[name], completed)
                by_request[handoff.request] = save
                saves.append(save)
            save.handoffs.append(handoff)

    def accepts(self, handoff: Handoff) -> bool:
        """Whether a handoff may be stored: a known request, a real block, in prefill (R7)."""
        tracker = self.trackers.get(handoff.request)
        return (
            tracker is not None
            and handoff.boundary <= tracker.prefill_end
            and handoff.block != NULL_BLOCK
        )

    def _make_job(self, save: Save) -> JobMetadata | None:
        """Give a save its puts, its id and its pins; None if it has nothing to store."""
        states = [Put(h.group, self.state_block(h, save.tables), h.boundary) for h in save.handoffs]
        puts = (*self.attention_tail_puts(save, states), *states)
        if not puts and save.save_to == 0:
            return None
        blocks = self.blocks_to_pin(puts, save.tables if save.save_to else ())
        job = StoreJob(self._next_job, save.request.name, puts, save.save_to, blocks)
        self._next_job += 1
        self.ledger.pin(job.job, save.request, blocks)
        return JobMetadata(job, save.request, save.tables)

    def state_block(self, handoff: Handoff, tables: Tables) -> int:
        """Return the block to store: the one handed over, never one found by position (R30)."""
        return handoff.block

    def attention_tail_puts(self, save: Save, states: Sequence[Put]) -> list[Put]:
        """Return the attention blocks that a hit on the replay boundary needs (R16, R20, R26).

        From the last multiple of the LCM, which the normal save reaches, to where the group's
        proof of the boundary ends, each keyed at its own end.
        """
        groups = self.scope.groups
        boundary = self.layout.replay_boundary(save.request.prompt_length)
        tails = [p.boundary for p in states if p.boundary % groups[p.group].block_size]
        if boundary == 0 or not (save.publish or boundary in tails):
            return []
        start = self.layout.saved_whole(boundary)
        puts = []
        for index, group in enumerate(groups):
            if group.is_mamba:
                continue
            proof = self.proof_end(index, boundary, save.completed)
            size, table = group.block_size, save.tables[index]
            puts += [
                Put(index, table[position], self.tail_end(position, size, proof))
                for position in self.tail_positions(start, proof, size)
                if position < len(table) and table[position] != NULL_BLOCK
            ]
        return puts

    def proof_end(self, group: int, boundary: int, completed: int) -> int:
        """Return how far a group is stored for a hit on ``boundary``; 0: not at all (R25, R26).

        Up to the margin that lookups will drop, if that is computed. If not, up to the boundary:
        a save that comes before its proof has a state inside a block, whatever other groups'
        blocks end there.
        """
        proof = boundary + self.layout.margin(group)
        if proof <= completed:
            return proof
        return boundary if boundary <= completed else 0

    def tail_positions(self, start: int, boundary: int, block_size: int) -> range:
        """Return the positions of the blocks from ``start`` to ``boundary``, a partial one too."""
        return range(start // block_size, math.ceil(boundary / block_size))

    def tail_end(self, position: int, block_size: int, boundary: int) -> int:
        """Return the last token that a tail block is stored for: never past the boundary."""
        return min((position + 1) * block_size, boundary)

    def blocks_to_pin(self, puts: Sequence[Put], tables: Tables) -> tuple[int, ...]:
        """Return the blocks of puts and of attention tables, each once, as first seen (R8)."""
        return tuple(dict.fromkeys(self.blocks_used(puts, tables)))

    def blocks_used(self, puts: Sequence[Put], tables: Tables) -> list[int]:
        """Return the block of every put, then every real attention block of ``tables``."""
        blocks = [put.block for put in puts]
        for group, table in zip(self.scope.groups, tables, strict=False):
            if not group.is_mamba:
                blocks.extend(block for block in table if block != NULL_BLOCK)
        return blocks

    def register_finished_partial_tail(
        self, request: Request, tables: Tables, tails: Sequence[Handoff]
    ) -> bool:
        """Take the tails of a finishing request: pin them at once, queue them (R6).

        Returns False, and pins nothing, if they are not accepted (R7). Raises ValueError if
        tails of one request disagree on the boundary.
        """
        if not self.saves or not tails or not any(tables):
            return False
        if len({tail.boundary for tail in tails}) > 1:
            raise ValueError(
                f"tails of request {request.name!r}: boundaries "
                f"{[tail.boundary for tail in tails]} must be one; hand off one boundary at a time"
            )
        if not all(self.scope.groups[tail.group].is_mamba for tail in tails):
            return False
        if not all(self.accepts(tail) for tail in tails):
            return False
        save = Save(request, tables, completed=request.computed, handoffs=list(tails))
        return self.queue_at_finish(save)

    def queue_at_finish(self, save: Save) -> bool:
        """Make a job of a save at finish, pinned at once; the next metadata carries it."""
        metadata = self._make_job(save)
        if metadata is None:
            return False
        self._finished_jobs.append(metadata)
        self._registered.append(metadata.job)
        return True

    def request_preempted(self, request: Request) -> None:
        """Note, as it happens, that a request loses its blocks: its jobs go on (R15)."""
        self.ledger.request_preempted(request)

    def request_finished(self, request: Request, tables: Tables) -> int:
        """Drop the answer and the lease of a finishing request; its jobs keep their own blocks."""
        self.answers.drop(request.name)
        return 0

    def report(self, job: int, rank: int) -> bool:
        """Count one rank's report of a job; return whether its blocks were released."""
        return self.ledger.report(job, rank)
