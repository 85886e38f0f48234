"""Letting everything run to its end, and telling a livelock from a workload that is slow.

An action makes *progress* if a rank does or answers something, if a report reaches the scheduler,
or if tokens are on their way: a pass scheduled some, or a step in flight has some. A drain that
meets a bound, on actions or on passes in a row without progress, is not called stuck at once.
Its actions are replayed in a new engine, which may go on for twice both bounds: only where that
does not come to rest either is the drain reported (L2). Beyond the first bounds the replay
compares the whole state between steps with all that went before; where it recurs, the drain
goes round for ever, since scheduler and environment are deterministic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from cowtail.impl.vllm_engine.checks import SAFETY, Violation
from cowtail.impl.vllm_engine.config import RunLoad
from cowtail.impl.vllm_engine.pair import as_written
from cowtail.impl.vllm_engine.whole_state import whole_state
from cowtail.models.actions import (
    Action,
    Execute,
    JobOutcome,
    LookUp,
    Report,
    RunJob,
    SchedulePass,
    UpdateConnectorOutput,
    UpdateFromOutput,
)

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.session import Session

DRAIN_BOUND = 2000
"""The most actions that a drain may take before it is replayed with twice as many."""
EMPTY_PASS_BOUND = 20
"""The most passes in a row without progress before a drain is replayed with twice as many."""
OF_RANKS = (RunJob, RunLoad, Report, LookUp)
"""What ranks do, or answer."""


@attrs.define
class Drain:
    """A drain under way: how far it may go, and how far it has gone.

    ``recurs_after``: the number of actions after which the whole state came again, None if it
    did not, or was not compared.
    """

    session: Session
    bound: int = DRAIN_BOUND
    empty_bound: int = EMPTY_PASS_BOUND
    actions: int = 0
    empty_passes: int = 0
    recurs_after: int | None = None
    _seen: dict[object, int] = attrs.field(factory=dict)

    def run(self, compare_after: int | None = None) -> bool:
        """Go on until all is at rest or a bound is met; return whether all is at rest.

        ``compare_after``: compare states from this number of actions on. Raises Violation.
        """
        session = self.session
        while not session.is_quiescent:
            if self.actions >= self.bound or self.empty_passes > self.empty_bound:
                return False
            action = self._next()
            engine, taken = session.engine_of(action)
            if isinstance(taken, SchedulePass):
                self._look(compare_after)
            session.do(action)
            self.actions += 1
            if _progressed(engine, taken):
                self.empty_passes = 0
            elif isinstance(taken, SchedulePass):
                self.empty_passes += 1
        return True

    def _next(self) -> Action:
        """Return the next action of a fair environment: ranks first, then device, then passes."""
        for action in self.session.choices():
            if isinstance(action, OF_RANKS) and not _fails(action):
                return action
        engine = stuck(self.session)
        for action in (UpdateConnectorOutput(), UpdateFromOutput(), Execute(), SchedulePass()):
            if engine.why_not(action) is None:
                break
        return action if engine is self.session else as_written(self.session.config, action)

    def _look(self, compare_after: int | None) -> None:
        if compare_after is None or self.actions < compare_after:
            return
        if any(engine.steps for engine in self.session.engines):
            return
        state = whole_state(self.session)
        if self.recurs_after is None and state in self._seen:
            self.recurs_after = self.actions - self._seen[state]
        self._seen.setdefault(state, self.actions)

    def __str__(self) -> str:
        text = f"{self.actions} actions (bound {self.bound})"
        if self.empty_passes > self.empty_bound:
            text += f", the last {self.empty_passes} passes empty (bound {self.empty_bound})"
        return text


def stuck(session: Session) -> Session:
    """Return the first engine of a session that is not at rest; the session's own if all are."""
    return next((each for each in session.engines if not each.is_quiescent_itself), session)


def _progressed(engine: Session, action: Action) -> bool:
    if not isinstance(action, SchedulePass | Execute | UpdateFromOutput):
        return True
    return any(step.scheduled.num_scheduled_tokens for step in engine.steps)


def run_to_end(session: Session, bound: int = DRAIN_BOUND) -> None:
    """Run everything to rest; twice as far as ``bound`` if a replay comes to rest by then.

    Counts "slow drains" in the session's statistics: those that took more than the bounds.
    Raises Violation: L2 if a replay that goes twice as far does not come to rest either.
    """
    drain = Drain(session, bound)
    if drain.run():
        return
    first = str(drain)
    replayed = Drain(_replay(session, drain.actions), 2 * bound, 2 * EMPTY_PASS_BOUND)
    at_rest = replayed.run(compare_after=drain.actions)
    drain.bound, drain.empty_bound = replayed.bound, replayed.empty_bound
    if at_rest and drain.run():
        session.statistics["slow drains"] += 1
        return
    if at_rest:
        beyond = f"a replay comes to rest after {replayed.actions} actions, this engine does not"
    else:
        beyond = f"replayed, neither after {replayed}"
    if replayed.recurs_after is not None:
        beyond += f"; its whole state comes again every {replayed.recurs_after} actions, for ever"
    session.blamed = stuck(session)
    left = "; ".join(session.blamed.view.leftovers(each.worker for each in session.blamed.ranks))
    raise Violation("L2", f"not quiescent after {first}; {beyond}: {left}")


def _replay(session: Session, drained: int) -> Session:
    """Return a new session that has done all that this one did before its drain, unchecked."""
    again = session.again(unchecked=[prop.identifier for prop in SAFETY])
    again.do_all(*session.actions[: len(session.actions) - drained])
    return again


def _fails(action: Action) -> bool:
    match action:
        case RunJob(_, outcome):
            return outcome is JobOutcome.FAILED
        case RunLoad(_, failed) | LookUp(_, failed):
            return failed
    return False
