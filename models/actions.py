"""The alphabet: what the environment, the scheduler, the device and the ranks can do.

The explorer enumerates actions, Hypothesis draws them, a target carries them out, a trace
lists them, a diagram labels its edges with them. An action's ``name`` is the name of the
implementation's own event. Submitted, done on the device, reported and consumed by the
scheduler are four different moments, hence four actions.

>>> Admit("a")
admit(a)
>>> RunJob(rank=1, outcome=JobOutcome.FAILED)
run_job(1, failed)
"""

from __future__ import annotations

import enum
from typing import ClassVar

import attrs


class JobOutcome(enum.StrEnum):
    """How the store answers the puts of one job on one rank."""

    OK = "ok"
    FAILED = "failed"


@attrs.frozen(repr=False)
class Action:
    """Base of all actions; ``name`` is the event's name in traces and diagrams."""

    name: ClassVar[str] = "action"

    def __repr__(self) -> str:
        """Print as a reader would write it: ``report(rank=1, job=0)``."""
        values = [getattr(self, field.name) for field in attrs.fields(type(self))]
        shown = [str(v.value if isinstance(v, enum.Enum) else v) for v in values if v is not False]
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
    """Within a pass: a waiting or preempted request looks up the cache and gets its first chunk."""

    name: ClassVar[str] = "admit"
    request: str


@attrs.frozen(repr=False)
class Extend(Action):
    """Within a pass: a running request gets its next chunk, or its next decode token."""

    name: ClassVar[str] = "extend"
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


ACTIONS: tuple[type[Action], ...] = (
    Submit,
    Abort,
    BeginPass,
    Admit,
    Extend,
    Preempt,
    EndPass,
    SchedulePass,
    Execute,
    UpdateFromOutput,
    RunJob,
    Report,
    UpdateConnectorOutput,
)
"""Every kind of action, in the order in which the docs list them."""
