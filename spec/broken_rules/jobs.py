"""Mistakes about store jobs: pins, reports, offsets, and how far a save goes."""

from __future__ import annotations

import attrs

from cowtail.models import (
    block_pool,
    boundaries,
    connector,
    scheduler,
    workers,
)
from cowtail.models.actions import JobOutcome
from cowtail.models.observations import Effects, StoreEntry
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import (
    DeviceStep,
    JobMeta,
    OpenPass,
    PinnedJob,
    RankWorker,
    State,
    Tracker,
    with_rank,
)
from cowtail.models.transition import Transition
from cowtail.models.workers import Wanted
from cowtail.spec.broken_rules.rule import BrokenRule, broken

_emit_job = connector.emit_job
_consider_save = connector.consider_save
_considered_saves = connector._considered_saves
_build_metadata = connector.build_metadata
_end_pass = scheduler.end_pass
_run_job = workers.run_job
_saved_after = workers.saved_after


def _forget_every_rank(pin: PinnedJob, rank: int) -> tuple[int, ...]:
    return ()


def _forget_no_rank(pin: PinnedJob, rank: int) -> tuple[int, ...]:
    return pin.ranks_owed


def _emit_without_pin(
    scope: Scope, state: State, save: connector.SaveRequest
) -> tuple[State, JobMeta | None]:
    emitted, job = _emit_job(scope, state, save)
    return attrs.evolve(emitted, pool=state.pool, pins=state.pins), job


def _emit_pinning_only_the_state(
    scope: Scope, state: State, save: connector.SaveRequest
) -> tuple[State, JobMeta | None]:
    emitted, job = _emit_job(scope, state, save)
    if job is None or job.save_to:
        return emitted, job
    pin = emitted.pins[-1]
    kept = tuple(put.block for put in save.mamba_puts)
    pool = block_pool.free(emitted.pool, [b for b in pin.blocks if b not in kept])
    partial = attrs.evolve(pin, blocks=kept)
    return attrs.evolve(emitted, pool=pool, pins=(*emitted.pins[:-1], partial)), job


def _emit_counting_blocks_twice(
    scope: Scope, state: State, save: connector.SaveRequest
) -> tuple[State, JobMeta | None]:
    emitted, job = _emit_job(scope, state, save)
    if job is None:
        return emitted, job
    pin = emitted.pins[-1]
    twice = attrs.evolve(pin, blocks=pin.blocks + pin.blocks[:1])
    pool = block_pool.touch(emitted.pool, pin.blocks[:1])
    return attrs.evolve(emitted, pool=pool, pins=(*emitted.pins[:-1], twice)), job


def _save_rounds_up(
    scope: Scope, spec: RequestSpec, index: int, tracker: Tracker
) -> tuple[Tracker, connector.SaveRequest | None]:
    tracker, save = _consider_save(scope, spec, index, tracker)
    if save is not None and save.completed % boundaries.lcm_block_size(scope):
        save = attrs.evolve(save, save_to=save.save_to + boundaries.lcm_block_size(scope))
    return tracker, save


def _save_lags_one_lcm(
    scope: Scope, spec: RequestSpec, index: int, tracker: Tracker
) -> tuple[Tracker, connector.SaveRequest | None]:
    tracker, save = _consider_save(scope, spec, index, tracker)
    if save is not None:
        lagging = max(save.save_to - boundaries.lcm_block_size(scope), 0)
        save = attrs.evolve(save, save_to=lagging)
    return tracker, save


def _decode_is_saved_too(
    scope: Scope, state: State, opened: OpenPass, trackers: list[Tracker | None]
) -> list[connector.SaveRequest]:
    unbounded = [None if t is None else attrs.evolve(t, prefill_end=10**6) for t in trackers]
    saves = _considered_saves(scope, state, opened, unbounded)
    for index, tracker in enumerate(unbounded):
        old = trackers[index]
        if tracker is not None and old is not None and index not in opened.admitted:
            tracker = attrs.evolve(tracker, prefill_end=old.prefill_end)
        trackers[index] = tracker
    return saves


def _failed_put_moves_the_offset(
    scope: Scope, state: State, rank: int, job: JobMeta, wanted: list[Wanted]
) -> list[StoreEntry]:
    return []


def _tail_moves_the_offset(worker: RankWorker, job: JobMeta) -> tuple[int, ...]:
    reached = max((put.boundary for put in job.puts), default=0)
    return _saved_after(worker, job if job.save_to else attrs.evolve(job, save_to=reached))


def _failed_tail_moves_the_offset(
    scope: Scope, state: State, rank: int, outcome: JobOutcome
) -> Transition:
    worker = state.ranks[rank]
    done = _run_job(scope, state, rank, outcome)
    if outcome is JobOutcome.OK or worker.queue[0].save_to:
        return done
    saved = _tail_moves_the_offset(worker, worker.queue[0])
    moved = attrs.evolve(done.state.ranks[rank], saved=saved)
    return attrs.evolve(done, state=with_rank(done.state, rank, moved))


def _retired_jobs_are_forgotten(rank: RankWorker, step: DeviceStep) -> RankWorker:
    queue = tuple(job for job in rank.queue if job.request not in step.preempted)
    return attrs.evolve(rank, queue=queue + step.jobs)


def _metadata_without_tails(
    scope: Scope, state: State, opened: OpenPass
) -> connector.BuiltMetadata:
    built = _build_metadata(scope, attrs.evolve(state, queued_tails=()), opened)
    kept = attrs.evolve(built.state, queued_tails=state.queued_tails)
    return attrs.evolve(built, state=kept)


def _ends_are_told_for_ever(scope: Scope, state: State) -> Transition:
    done = _end_pass(scope, state)
    untold = attrs.evolve(done.state, untold_finished=state.untold_finished)
    return attrs.evolve(done, state=untold)


def _failed_job_stays_queued(
    scope: Scope, state: State, rank: int, outcome: JobOutcome
) -> Transition:
    if outcome is JobOutcome.FAILED:
        return Transition(state, Effects(), ("put failed",))
    return _run_job(scope, state, rank, outcome)


RULES: tuple[BrokenRule, ...] = (
    broken(
        "offset_moves_without_put",
        "K08",
        "A put that did not happen still moves the durable offset.",
        "lone_producer",
        "S11",
        (workers, "put_entries", _failed_put_moves_the_offset),
    ),
    broken(
        "tail_moves_the_offset",
        "",
        "A tail that was put moves the durable offset of normal saves.",
        "lone_producer",
        "S11",
        (workers, "saved_after", _tail_moves_the_offset),
    ),
    broken(
        "failed_tail_moves_the_offset",
        "K08",
        "A tail that could not be put moves the durable offset of normal saves.",
        "lone_producer",
        "S11",
        (workers, "run_job", _failed_tail_moves_the_offset),
    ),
    broken(
        "job_not_pinned",
        "K19",
        "A job is queued without a reference on its blocks.",
        "lone_producer",
        "S9",
        (connector, "emit_job", _emit_without_pin),
    ),
    broken(
        "only_the_state_pinned",
        "K19",
        "A handoff-only job pins its state, and not the attention blocks beside it.",
        "lone_producer",
        "S9",
        (connector, "emit_job", _emit_pinning_only_the_state),
    ),
    broken(
        "block_pinned_twice",
        "K25",
        "A job lists a block twice and takes two references for it.",
        "lone_producer",
        "S1",
        (connector, "emit_job", _emit_counting_blocks_twice),
    ),
    broken(
        "pin_released_after_first_rank",
        "K33",
        "The first rank's report releases the job's blocks.",
        "lone_producer",
        "T2",
        (connector, "strike_off", _forget_every_rank),
    ),
    broken(
        "pin_never_released",
        "",
        "Reports are consumed and no rank is struck off.",
        "lone_producer",
        "S15",
        (connector, "strike_off", _forget_no_rank),
    ),
    broken(
        "retired_jobs_forgotten",
        "K21",
        "A preempted request's queued jobs vanish from the ranks and are never reported.",
        "async_two_steps",
        "S15",
        (workers, "receive_metadata", _retired_jobs_are_forgotten),
    ),
    broken(
        "tails_never_flushed",
        "K28",
        "Tails registered at finish wait for a flush that no pass performs.",
        "lone_producer",
        "T9",
        (connector, "build_metadata", _metadata_without_tails),
    ),
    broken(
        "ends_told_for_ever",
        "",
        "Every pass tells the workers again which requests have finished.",
        "lone_producer",
        "L1",
        (scheduler, "end_pass", _ends_are_told_for_ever),
    ),
    broken(
        "failed_job_retried_for_ever",
        "",
        "A job whose put fails stays at the head of its queue until it succeeds.",
        "lone_producer",
        "L2",
        (workers, "run_job", _failed_job_stays_queued),
    ),
    broken(
        "save_one_lcm_late",
        "",
        "Normal saves stop one LCM short of what is computed.",
        "unequal_blocks",
        "L6",
        (connector, "consider_save", _save_lags_one_lcm),
    ),
    broken(
        "save_rounds_up",
        "K23",
        "The prefix save covers a block whose last slots were never computed.",
        "async_two_steps",
        "S8",
        (connector, "consider_save", _save_rounds_up),
    ),
    broken(
        "decode_saved",
        "",
        "Normal saves go on past the end of prefill.",
        "cow_decode",
        "S8",
        (connector, "_considered_saves", _decode_is_saved_too),
    ),
)
"""Every broken rule of this theme."""
