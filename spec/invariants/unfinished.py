"""Which jobs may still run."""

from __future__ import annotations

from collections.abc import Iterator

from cowtail.models.state import JobMeta, State


def unfinished_jobs(state: State) -> Iterator[JobMeta]:
    """Yield every job that some rank has yet to take off its queue, retired ones included."""
    seen: set[int] = set()
    shipped = [job for step in state.steps for job in step.jobs]
    queued = [job for rank in state.ranks for job in rank.queue]
    for job in (*state.queued_tails, *shipped, *queued):
        if job.job not in seen:
            seen.add(job.job)
            yield job


def jobs_to_run(state: State) -> Iterator[JobMeta]:
    """Yield the unfinished jobs that will really read their blocks."""
    return (job for job in unfinished_jobs(state) if job.live)
