"""Actions that stand for several, so that a reduced trace reads in the steps that people think in.

``step()`` is a pass, its execution and the processing of its output, one after another;
``run_to_rest()`` lets everything go on, fairly, until nothing is left to do.

>>> fold((Submit("a"), SchedulePass(), Execute(), UpdateFromOutput(), SchedulePass()))
(submit(a), step(), schedule_pass())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import (
    Action,
    Execute,
    Report,
    SchedulePass,
    Submit,
    UpdateFromOutput,
)

__all__ = ["RunToRest", "Submit", "WholeStep", "carry_out", "fold"]


@attrs.frozen(repr=False)
class WholeStep(Action):
    """A pass, then its execution, then its output is processed; what is not possible is left."""

    name: ClassVar[str] = "step"


@attrs.frozen(repr=False)
class RunToRest(Action):
    """Everything goes on until nothing is left to do, and L2 is checked: a drain in between."""

    name: ClassVar[str] = "run_to_rest"


_PARTS: tuple[Action, ...] = (SchedulePass(), Execute(), UpdateFromOutput())


def fold(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Return ``actions`` with each pass that is executed and processed at once as one step."""
    folded: list[Action] = []
    for action in actions:
        folded.append(action)
        if tuple(folded[-len(_PARTS) :]) == _PARTS:
            folded[-len(_PARTS) :] = [WholeStep()]
    return tuple(folded)


def possible(session: Session, action: Action) -> Action | None:
    """Return the action, or its nearest kin, as far as it is possible now; None if it is not.

    Job numbers follow from what happened before, so where a job's report is not possible, that
    of the rank's first finished job takes its place.
    """
    match action:
        case RunToRest():
            return None if session.is_quiescent else action
        case WholeStep():
            parts = any(session.why_not(part) is None for part in _PARTS)
            return action if parts else None
        case Report(rank, _) if session.why_not(action) is not None:
            if rank < len(session.ranks) and session.ranks[rank].outbox:
                return Report(rank, session.ranks[rank].outbox[0])
            return None
    return action if session.why_not(action) is None else None


def carry_out(session: Session, action: Action) -> None:
    """Carry out an action that is possible, whole or of several. Raises Violation."""
    match action:
        case RunToRest():
            session.drain()
        case WholeStep():
            for part in _PARTS:
                if session.why_not(part) is None:
                    session.do(part)
        case _:
            session.do(action)
