"""The alphabet: what the environment, the scheduler, the device and the ranks can do.

The explorer enumerates actions, Hypothesis draws them, a target carries them out, a trace
lists them, a diagram labels its edges with them. An action's ``name`` is the name of the
implementation's own event. Submitted, done on the device, reported and consumed by the
scheduler are four different moments, hence four actions.

>>> Admit("a")
admit(a)
>>> RunJob(rank=1, outcome=JobOutcome.FAILED), Reset(store=True)
(run_job(1, failed), reset(False, True))
"""

from __future__ import annotations

import enum
from typing import ClassVar

import attrs


class JobOutcome(enum.StrEnum):
    """How the store answers one job on one rank.

    ``FAILED``: every put that is needed fails. ``PARTIAL``: of the puts of one batch the
    first succeeds, the others fail. ``NO_SPACE``: they fail because the store is full.
    ``CHECK_FAILED``: the existence check before them raises.
    """

    OK = "ok"
    FAILED = "failed"
    PARTIAL = "partial"
    NO_SPACE = "no_space"
    CHECK_FAILED = "check_failed"


class LoadOutcome(enum.StrEnum):
    """How the store answers the gets of one load on one rank; a missing key fails in any case."""

    OK = "ok"
    FAILED = "failed"


@attrs.frozen(repr=False)
class Action:
    """Base of all actions; ``name`` is the event's name in traces and diagrams."""

    name: ClassVar[str] = "action"

    def __repr__(self) -> str:
        """Print as a reader would write it, what is false at the end left out: ``report(1, 0)``."""
        values = [getattr(self, field.name) for field in attrs.fields(type(self))]
        while values and values[-1] is False:
            values.pop()
        shown = [str(v.value if isinstance(v, enum.Enum) else v) for v in values]
        return f"{self.name}({', '.join(shown)})"


@attrs.frozen(repr=False)
class Submit(Action):
    """The environment submits a request: it waits for admission."""

    name: ClassVar[str] = "submit"
    request: str


@attrs.frozen(repr=False)
class Abort(Action):
    """The environment aborts a request in whatever phase it is; the finish path runs."""

    name: ClassVar[str] = "abort"
    request: str


@attrs.frozen(repr=False)
class BeginPass(Action):
    """A scheduling pass opens."""

    name: ClassVar[str] = "begin_pass"


@attrs.frozen(repr=False)
class Admit(Action):
    """Within a pass: a waiting request looks up cache and store, and gets its first chunk.

    Or its blocks, if it has to wait for a load; or, its load complete, the chunk after it.
    ``lookup_failed``: the store, looked up at once, answers with an error.
    """

    name: ClassVar[str] = "admit"
    request: str
    lookup_failed: bool = False


@attrs.frozen(repr=False)
class Promote(Action):
    """Within a pass: the scheduler comes to a request whose load is over, and takes note of it.

    Its blocks are keyed, or taken back if the load failed. Only of engines that do not settle a
    load when the last rank has reported it (see ``behaviours``).
    """

    name: ClassVar[str] = "promote"
    request: str


@attrs.frozen(repr=False)
class SpendAnswer(Action):
    """Within a pass: a request whose lookup was answered cannot be admitted, and is to ask again.

    Only of engines that keep no answer for another pass (see ``behaviours``).
    """

    name: ClassVar[str] = "spend_answer"
    request: str


@attrs.frozen(repr=False)
class Extend(Action):
    """Within a pass: a running request gets its next chunk, or its next decode token."""

    name: ClassVar[str] = "extend"
    request: str


@attrs.frozen(repr=False)
class Shed(Action):
    """Within a pass: a running request does not fit, and gives back what it has left behind.

    Only of engines that do so before they know whether it fits (see ``behaviours``).
    """

    name: ClassVar[str] = "shed"
    request: str


@attrs.frozen(repr=False)
class Preempt(Action):
    """Within a pass, before any admission: a running request loses its blocks and waits again."""

    name: ClassVar[str] = "preempt"
    request: str


@attrs.frozen(repr=False)
class EndPass(Action):
    """The pass closes: copies and handoffs are drained, jobs are pinned, a step is dispatched."""

    name: ClassVar[str] = "end_pass"


@attrs.frozen(repr=False)
class SchedulePass(Action):
    """A whole pass whose decisions are the implementation's own (targets that schedule)."""

    name: ClassVar[str] = "schedule_pass"


@attrs.frozen(repr=False)
class Execute(Action):
    """The device runs the oldest step that it has not run; its jobs reach every rank's queue."""

    name: ClassVar[str] = "execute"


@attrs.frozen(repr=False)
class UpdateFromOutput(Action):
    """The scheduler processes the output of the oldest step, which has run."""

    name: ClassVar[str] = "update_from_output"


@attrs.frozen(repr=False)
class RunJob(Action):
    """A rank carries out the store job at the head of its queue."""

    name: ClassVar[str] = "run_job"
    rank: int
    outcome: JobOutcome = JobOutcome.OK


@attrs.frozen(repr=False)
class Report(Action):
    """A rank reports a job that it is done with. ``again``: it will report it once more."""

    name: ClassVar[str] = "report"
    rank: int
    job: int
    again: bool = False


@attrs.frozen(repr=False)
class UpdateConnectorOutput(Action):
    """The scheduler consumes every report that has arrived, and releases what is complete."""

    name: ClassVar[str] = "update_connector_output"


@attrs.frozen(repr=False)
class LookUp(Action):
    """The answer of an asynchronous lookup arrives for a waiting request. ``failed``: an error."""

    name: ClassVar[str] = "look_up"
    request: str
    failed: bool = False


@attrs.frozen(repr=False)
class ExpireLease(Action):
    """The lease that a lookup took on the entries that it found runs out."""

    name: ClassVar[str] = "expire_lease"
    request: str


@attrs.frozen(repr=False)
class RunLoad(Action):
    """A rank carries out the load at the head of its queue."""

    name: ClassVar[str] = "run_load"
    rank: int
    outcome: LoadOutcome = LoadOutcome.OK


@attrs.frozen(repr=False)
class ReportLoad(Action):
    """A rank reports that it is done with the load of a request, well or not."""

    name: ClassVar[str] = "report_load"
    rank: int
    request: str


@attrs.frozen(repr=False)
class FinishSend(Action):
    """On one rank, one child has sent the blocks of a finished request to where it saves them."""

    name: ClassVar[str] = "finish_send"
    rank: int
    child: int
    request: str


@attrs.frozen(repr=False)
class ForeignPut(Action):
    """Another engine, sharing the store, puts all that a producer puts for a request's prompt."""

    name: ClassVar[str] = "foreign_put"
    request: str


@attrs.frozen(repr=False)
class Evict(Action):
    """The store evicts one entry of one rank."""

    name: ClassVar[str] = "evict"
    rank: int
    group: int
    prefix: str


@attrs.frozen(repr=False)
class Reset(Action):
    """The prefix cache is reset. ``running``: running requests are preempted first.

    ``store``: the connector's cache is reset too, and with it the store.
    """

    name: ClassVar[str] = "reset"
    running: bool = False
    store: bool = False


ACTIONS: tuple[type[Action], ...] = (
    Submit,
    Abort,
    BeginPass,
    Admit,
    SpendAnswer,
    Promote,
    Extend,
    Shed,
    Preempt,
    EndPass,
    SchedulePass,
    Execute,
    UpdateFromOutput,
    RunJob,
    Report,
    UpdateConnectorOutput,
    LookUp,
    ExpireLease,
    RunLoad,
    ReportLoad,
    FinishSend,
    ForeignPut,
    Evict,
    Reset,
)
"""Every kind of action, in the order in which the docs list them."""
