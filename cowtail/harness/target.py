"""What an implementation must offer to be held to the model: one small protocol.

A target opens a session for a scope; a session carries out actions and answers with
observations. The model is its own target, so that a trace can be replayed on it with every
invariant checked after every action, and so that the harness can be tried on broken rules.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import warnings
from typing import Protocol

import attrs

from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import Effects, Observation
from cowtail.models.scope import Scope
from cowtail.spec.broken_rules import broken_rule, broken_rules_named
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.step_invariants import STEP_PROPERTIES


class Level(enum.StrEnum):
    """How much of a target is compared with the model."""

    EXACT = "exact"
    CONTRACT = "contract"
    SAFETY = "safety"


class PropertyViolated(Exception):
    """A named property fails in a session's own state."""

    def __init__(self, identifier: str, name: str, reason: str) -> None:
        super().__init__(f"{identifier} ({name}) fails: {reason}")
        self.identifier = identifier


class Session(Protocol):
    """One run of an implementation in one scope."""

    def perform(self, action: Action) -> None:
        """Carry out ``action``; whatever it raises is a divergence."""

    def observe(self) -> Observation:
        """Return what can be observed now, with the effects of the last action."""

    def close(self) -> None:
        """Give back what the session holds."""


class Target(Protocol):
    """An implementation, with the faults that it is started with."""

    @property
    def name(self) -> str:
        """The name by which the command line and traces call the target."""

    @property
    def level(self) -> Level:
        """How much of its observations must equal the model's."""

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults that every session is started with."""

    @property
    def refusal(self) -> type[Exception] | None:
        """What exactly a session raises, changing nothing, for an action that is not possible.

        None promises nothing, and nothing is sent that is not possible.
        """

    def open(self, scope: Scope) -> Session:
        """Start a session in which nothing has been submitted."""


@attrs.frozen
class ModelTarget:
    """The model as a target. Its faults are names of broken rules (``spec.broken_rules``)."""

    faults: tuple[str, ...] = ()
    name: str = "model"
    level: Level = Level.EXACT
    refusal: type[Exception] | None = NotEnabled

    def open(self, scope: Scope) -> ModelSession:
        """Start a session. Raises ValueError for broken rules unknown or at odds."""
        broken_rules_named(self.faults)
        return ModelSession(scope, self.faults)


class ModelSession:
    """The model running by itself, every property judged after every action.

    The broken rules are in force only while this session acts, so that the model it is compared
    with keeps to the rules.
    """

    def __init__(self, scope: Scope, faults: tuple[str, ...]) -> None:
        self._scope = scope
        self._faults = faults
        self._state = lifecycle.initial(scope)
        self._effects = Effects()

    def perform(self, action: Action) -> None:
        """Take one step. Raises PropertyViolated, NotEnabled or LifecycleError."""
        with contextlib.ExitStack() as broken:
            for fault in self._faults:
                broken.enter_context(broken_rule(fault))
            before = self._state
            transition = lifecycle.step(self._scope, before, action)
            self._state, self._effects = transition.state, transition.effects
            for invariant in PROPERTIES:
                reason = invariant.check(self._scope, self._state)
                if reason:
                    raise PropertyViolated(invariant.identifier, invariant.name, reason)
            for rule in STEP_PROPERTIES:
                reason = rule.check(self._scope, before, action, self._state, transition.events)
                if reason:
                    raise PropertyViolated(rule.identifier, rule.name, reason)

    def observe(self) -> Observation:
        """Return the model's observation."""
        return lifecycle.observe(self._scope, self._state, self._effects)

    def close(self) -> None:
        """Do nothing: a state is a value."""


@functools.cache
def load_torch() -> None:
    """Import torch, on demand because it takes seconds, for tensors that are tiny.

    One thread, because more only cost; and no warning that NumPy, which nobody uses, is missing.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        import torch
    torch.set_num_threads(1)


@attrs.frozen
class TorchTarget:
    """The torch engine on ``device``, started with ``faults`` (``impl.torch_engine.faults``)."""

    faults: tuple[str, ...] = ()
    device: str = "cpu"
    name: str = "torch"
    level: Level = Level.EXACT

    @property
    def refusal(self) -> type[Exception]:
        """An engine refuses with an EngineError; one of its subclasses says that it is broken."""
        load_torch()
        from cowtail.impl.torch_engine import EngineError

        return EngineError

    def open(self, scope: Scope) -> TorchSession:
        """Start an engine.

        Raises ValueError for an unknown fault and DeviceNotAvailable where there is no such device.
        """
        load_torch()
        from cowtail.impl.torch_engine import TorchEngine

        return TorchSession(TorchEngine(scope, device=self.device, faults=self.faults))


class _Engine(Protocol):
    def perform(self, action: Action) -> Effects: ...

    def observe(self) -> Observation: ...


class TorchSession:
    """One torch engine."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def perform(self, action: Action) -> None:
        """Carry out ``action`` on the engine, which raises EngineError if it cannot."""
        self._engine.perform(action)

    def observe(self) -> Observation:
        """Return the engine's observation."""
        return self._engine.observe()

    def close(self) -> None:
        """Do nothing: tensors go with the engine."""
