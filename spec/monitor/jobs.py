"""Store jobs: what they pin, and until when (S9, A14)."""

from __future__ import annotations

from cowtail.spec.monitor.blocks import check_block
from cowtail.spec.monitor.events import Emit, Job, Release, Report
from cowtail.spec.monitor.property import Broken, Property, Subject, Unlikely, block, job, request
from cowtail.spec.monitor.state import Pinned, State, take

PINS_WHAT_IT_READS = Property(
    "S9.reads",
    "a job pins what it reads",
    "A job pins the blocks that it stores or reads from tables, each once, and no others.",
    "domain S9, R6, R8",
)
UNTIL_ALL_REPORTED = Property(
    "S9",
    "pins last until every rank has reported",
    "A pin is not released before every rank has reported the job.",
    "domain S9, R6, R15",
)
NO_LONGER = Property(
    "S9.end",
    "pins end when every rank has reported",
    "When every rank has reported a job, its pin is released in the same call.",
    "domain S9, R6, L2",
)
REPORTS = Property(
    "A14",
    "each rank reports a job once",
    "A job is reported by no more ranks than there are, and not before it has left for them.",
    "domain A14",
)
OF_LIVE_REQUESTS = Property(
    "S8.live",
    "jobs are of live requests",
    "A job is made for a request that is not over, or in the call in which it finishes.",
    "domain S8, A11, R6",
)

PROPERTIES = (PINS_WHAT_IT_READS, UNTIL_ALL_REPORTED, NO_LONGER, REPORTS, OF_LIVE_REQUESTS)


def create(state: State, event: Job) -> None:
    """A job is made, and pins blocks."""
    subjects: list[Subject] = [job(event.job, event.connector), request(event.request)]
    if event.job <= state.last_jobs.get(event.connector, -1):
        raise Unlikely(f"job {event.job} is not numbered after the last one")
    state.last_jobs[event.connector] = event.job
    life = state.requests[event.request]
    if life.finished and not event.at_finish:
        raise Broken(
            OF_LIVE_REQUESTS,
            f"job {event.job} is made for request {event.request}, which is over",
            *subjects,
        )
    for number in event.pins:
        check_block(state, number, "pinned")
    reads = {number for _, number, _ in event.puts}
    if event.reads_tables:
        for group, table in life.tables.items():
            if not state.is_boundary_group(group):
                reads.update(number for number in table if number != state.header.null_block)
    if len(set(event.pins)) != len(event.pins) or set(event.pins) != reads:
        wrong = sorted(set(event.pins) ^ reads) or sorted(
            number for number in set(event.pins) if event.pins.count(number) > 1
        )
        what = "pins" if wrong[0] in event.pins else "reads"
        other = "does not read" if what == "pins" else "does not pin"
        if wrong[0] in reads and wrong[0] in event.pins:
            what, other = "pins", "pins again"
        raise Broken(
            PINS_WHAT_IT_READS,
            f"job {event.job} {what} block {wrong[0]}, which it {other}",
            *subjects,
            block(wrong[0]),
        )
    if event.pins:
        for number in event.pins:
            state.own(number, 1)
            state.pin_counts[number] += 1
        state.pins[event.connector, event.job] = Pinned(
            event.request, tuple(event.pins), state.header.num_ranks
        )


def emit(state: State, event: Emit) -> None:
    """A job leaves for the ranks."""
    if event.job > state.last_jobs.get(event.connector, -1):
        raise Unlikely(f"job {event.job} leaves before it was made")
    pin = state.pins.get((event.connector, event.job))
    if pin is not None:
        pin.emitted = True


def report(state: State, event: Report) -> None:
    """Ranks are done with a job."""
    if event.job > state.last_jobs.get(event.connector, -1):
        raise Broken(
            REPORTS,
            f"job {event.job} is reported, but was never made",
            job(event.job, event.connector),
        )
    pin = state.pins.get((event.connector, event.job))
    if pin is None:
        return  # pins nothing: nobody counts its reports
    subjects = (job(event.job, event.connector), request(pin.request))
    if not pin.emitted:
        raise Broken(REPORTS, f"job {event.job} is reported before it left", *subjects)
    pin.ranks_left -= event.count
    if pin.ranks_left < 0 or event.count < 1:
        raise Broken(
            REPORTS,
            f"job {event.job} is reported by {event.count} more ranks, when "
            f"{pin.ranks_left + event.count} of {state.header.num_ranks} were left",
            *subjects,
        )


def release(state: State, event: Release) -> None:
    """A pin is gone."""
    pin = state.pins.pop((event.connector, event.job), None)
    if pin is None:
        raise Unlikely(f"job {event.job} has no pin to release")
    if pin.ranks_left:
        raise Broken(
            UNTIL_ALL_REPORTED,
            f"the pin of job {event.job} on {list(pin.blocks)} is gone, when {pin.ranks_left} of "
            f"{state.header.num_ranks} ranks had not reported it",
            job(event.job, event.connector),
            request(pin.request),
            *map(block, pin.blocks),
        )
    for number in pin.blocks:
        take(state.pin_counts, number)
        state.own(number, -1)


def settle(state: State) -> None:
    """A call is over: what every rank has reported is no longer pinned."""
    for (connector, number), pin in state.pins.items():
        if not pin.ranks_left:
            raise Broken(
                NO_LONGER,
                f"every rank has reported job {number}, but {list(pin.blocks)} are still pinned",
                job(number, connector),
                request(pin.request),
            )
