"""Scheduling policies: in which order running requests go on, and which of them gives way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cowtail.impl.torch_engine.request import Request
from cowtail.models.scope import Policy


class SchedulingPolicy:
    """The policy of a scope. ``ANY`` leaves both to the caller.

    Running requests are given in the order in which they were last admitted.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def may_extend(
        self, request: Request, running: Sequence[Request], scheduled: Iterable[Request]
    ) -> bool:
        """Whether ``request`` may be extended after those that the pass has ``scheduled``."""
        if self.policy is Policy.ANY:
            return True
        place = running.index(request)
        return all(running.index(each) < place for each in scheduled)

    def may_preempt(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether ``request`` is the one that gives way."""
        return self.policy is Policy.ANY or request is self.victim(running)

    def victim(self, running: Sequence[Request]) -> Request:
        """Return who gives way: the last running one, or the least urgent and latest submitted."""
        if self.policy is Policy.PRIORITY:
            return max(running, key=lambda each: (each.spec.priority, each.arrival))
        return running[-1]

    @property
    def withdraws(self) -> bool:
        """Whether a request gives way even when the pass has scheduled it already."""
        return self.policy is Policy.PRIORITY
