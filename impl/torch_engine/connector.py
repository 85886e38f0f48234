"""The scheduler's side of the store connector: what is saved, when, and out of which blocks.

Two kinds of progress are kept apart (R19): the *normal save* covers attention blocks up to a
multiple of the LCM, found by position in the job's tables; *boundary puts* name the exact block
that holds a boundary's state (R30), and the attention blocks that a hit there needs besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.request import Request, ScheduledChunk
from cowtail.impl.torch_engine.store_jobs import ConnectorMetadata, JobMetadata, PinLedger
from cowtail.models.observations import NULL_BLOCK, Handoff, Put, StoreJob
from cowtail.models.scope import Role, Scope

Tables = tuple[tuple[int, ...], ...]


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


class StoreConnector:
    """Trackers per request, job ids that are never used again, and the pins of the jobs.

    ``saves``: whether the engine's role hands blocks to the store at all (R3).
    """

    def __init__(self, scope: Scope, pool: BlockPool, ledger: PinLedger) -> None:
        self.scope = scope
        self.layout = CacheLayout.of(scope)
        self.saves = scope.role in (Role.PRODUCER, Role.BOTH)
        self.pool = pool
        self.ledger = ledger
        self.trackers: dict[str, SaveTracker] = {}
        self._finished_jobs: list[JobMetadata] = []
        self._next_job = 0

    @property
    def queued_tails(self) -> tuple[int, ...]:
        """Jobs registered at finish that no metadata has carried yet."""
        return tuple(metadata.job.job for metadata in self._finished_jobs)

    def build_metadata(
        self,
        chunks: Sequence[ScheduledChunk],
        handoffs: Sequence[Handoff],
        requests: dict[str, Request],
        preempted: tuple[str, ...],
        finished: tuple[str, ...],
    ) -> ConnectorMetadata:
        """Turn a pass into jobs, pin their blocks, and append the tails queued at finish (R14).

        ``chunks`` in the order scheduled, with the tables that the step will run on. Does
        nothing without a connector (R17).
        """
        for name in finished:
            self.trackers.pop(name, None)
        for name in preempted:
            if name in self.trackers:
                self.trackers[name] = SaveTracker()
        saves = [save for chunk in chunks if (save := self._track(chunk)) is not None]
        if not self.saves:
            return ConnectorMetadata((), preempted, finished)
        tables = {chunk.request.name: chunk.tables for chunk in chunks}
        self._attach_handoffs(saves, handoffs, requests, tables)
        jobs = [job for save in saves if (job := self._make_job(save)) is not None]
        jobs += self._finished_jobs
        self._finished_jobs = []
        return ConnectorMetadata(tuple(jobs), preempted, finished)

    def _track(self, chunk: ScheduledChunk) -> Save | None:
        """Advance a request's tracker by its chunk; return a save if one is due."""
        request = chunk.request
        if chunk.admitted:
            self.ledger.request_admitted(request)
            tracker = SaveTracker(token_len=chunk.end, prefill_end=request.known)
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
        return Save(request, chunk.tables, tracker.token_len, save_to, publish)

    def _attach_handoffs(
        self,
        saves: list[Save],
        handoffs: Sequence[Handoff],
        requests: dict[str, Request],
        tables: dict[str, Tables],
    ) -> None:
        """Attach each acceptable handoff to its request's save, or to one of its own (R10)."""
        by_request = {save.request.name: save for save in saves}
        for handoff in handoffs:
            if not self.accepts(handoff):
                continue
            save = by_request.get(handoff.request)
            if save is None:
                completed = self.trackers[handoff.request].token_len
                save = Save(requests[handoff.request], tables[handoff.request], completed)
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
        """Return the attention blocks that a hit on the replay boundary needs (R16, R20).

        From the last multiple of the LCM, which the normal save reaches, to the boundary, each
        keyed at its own end; a group is left out where it is not computed that far.
        """
        groups = self.scope.groups
        boundary = self.layout.replay_boundary(save.request.prompt_length)
        tails = [p.boundary for p in states if p.boundary % groups[p.group].block_size]
        if boundary == 0 or not (save.publish or boundary in tails):
            return []
        start = self.layout.saved_whole(boundary)
        puts = []
        for index, group in enumerate(groups):
            if group.is_mamba or boundary > save.completed:
                continue
            size = group.block_size
            for position in self.tail_positions(start, boundary, size):
                if position >= len(save.tables[index]):
                    break
                end = self.tail_end(position, size, boundary)
                puts.append(Put(index, save.tables[index][position], end))
        return puts

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
        """Return the block of every put, then every attention block of ``tables``."""
        blocks = [put.block for put in puts]
        for group, table in zip(self.scope.groups, tables, strict=False):
            if not group.is_mamba:
                blocks.extend(table)
        return blocks

    def register_finished_tails(
        self, request: Request, tables: Tables, tails: Sequence[Handoff]
    ) -> StoreJob | None:
        """Take the tails of a finishing request: pin them at once, queue them (R6).

        Returns None, and pins nothing, if they are not accepted (R7). Raises ValueError if
        tails of one request disagree on the boundary.
        """
        if not self.saves or not tails or not any(tables):
            return None
        if len({tail.boundary for tail in tails}) > 1:
            raise ValueError(
                f"tails of request {request.name!r}: boundaries "
                f"{[tail.boundary for tail in tails]} must be one; hand off one boundary at a time"
            )
        if not all(self.scope.groups[tail.group].is_mamba for tail in tails):
            return None
        if not all(self.accepts(tail) for tail in tails):
            return None
        save = Save(request, tables, completed=request.computed, handoffs=list(tails))
        return self.queue_at_finish(save)

    def queue_at_finish(self, save: Save) -> StoreJob | None:
        """Make a job of a save at finish, pinned at once; the next metadata carries it."""
        metadata = self._make_job(save)
        if metadata is None:
            return None
        self._finished_jobs.append(metadata)
        return metadata.job

    def request_preempted(self, request: Request) -> None:
        """Note, as it happens, that a request loses its blocks: its jobs go on (R15)."""
        self.ledger.request_preempted(request)

    def request_finished(self, request: Request, tables: Tables) -> StoreJob | None:
        """Note that a request finishes: what decode computed is not saved."""
        return None

    def report(self, job: int, rank: int) -> bool:
        """Count one rank's report of a job; return whether its blocks were released."""
        return self.ledger.report(job, rank)
