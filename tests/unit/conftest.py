"""A run of the model by hand, for the tests that tell one story each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cowtail.models import lifecycle
from cowtail.models.actions import (
    Action,
    BeginPass,
    EndPass,
    Execute,
    Report,
    ReportLoad,
    RunJob,
    RunLoad,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.observations import Effects, Observation
from cowtail.models.scope import Scope
from cowtail.models.state import Request, State


class ModelRun:
    """The state of the model, and the effects and events of the last action."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.state: State = lifecycle.initial(scope)
        self.effects = Effects()
        self.events: tuple[str, ...] = ()

    def do(self, *actions: Action) -> ModelRun:
        for action in actions:
            transition = lifecycle.step(self.scope, self.state, action)
            self.state, self.effects = transition.state, transition.effects
            self.events = transition.events
        return self

    def one_pass(self, *inner: Action) -> ModelRun:
        return self.do(BeginPass(), *inner, EndPass())

    def device(self) -> ModelRun:
        return self.do(Execute(), UpdateFromOutput())

    def run_jobs(self) -> ModelRun:
        """Let every rank run what is queued, report it, and let the scheduler consume it."""
        for rank in range(self.scope.num_ranks):
            while self.state.ranks[rank].queue:
                self.do(RunJob(rank))
            for job in self.state.ranks[rank].outbox:
                self.do(Report(rank, job))
        return self.do(UpdateConnectorOutput()) if self.state.inbox else self

    def run_loads(self) -> ModelRun:
        """Let every rank load what is queued, report it, and let the scheduler consume it."""
        for rank in range(self.scope.num_ranks):
            while self.state.ranks[rank].loads:
                self.do(RunLoad(rank))
            for index, _ in self.state.ranks[rank].loaded:
                self.do(ReportLoad(rank, self.scope.requests[index].name))
        return self.do(UpdateConnectorOutput())

    def enabled(self) -> tuple[Action, ...]:
        return lifecycle.enabled(self.scope, self.state)

    def observe(self) -> Observation:
        return lifecycle.observe(self.scope, self.state, self.effects)

    def request(self, name: str = "a") -> Request:
        return self.state.requests[self.scope.index(name)]

    def stored(self, rank: int = 0) -> set[tuple[int, str]]:
        """Return group and prefix of what one rank has stored."""
        return {(entry.group, entry.prefix) for entry in self.state.store if entry.rank == rank}


@pytest.fixture
def start() -> Callable[[Scope], ModelRun]:
    """Return what begins a run of the model in a scope."""
    return ModelRun
