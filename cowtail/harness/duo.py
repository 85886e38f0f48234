"""Two engines and one store: a producer puts, a consumer finds, loads and goes on from there.

Each engine is in lockstep with a model of its own. The engines share a real store object; the
models share what it holds: a state is a value, so the store is copied across after each action.
Whatever else the engines have (blocks, leases, queues, budgets) is their own.

A lease of either engine protects its entries: the store asks nobody who evicts. A reset of the
store by one of them leaves the other with answers about entries that are gone, and its loads
fail, as they should.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from types import TracebackType

import attrs
import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from cowtail.harness.draws import BACKEND, register_backend
from cowtail.harness.fuzz import MAX_EXAMPLES, choose
from cowtail.harness.lockstep import (
    MAX_DRAIN_ACTIONS,
    Diverged,
    Divergence,
    Lockstep,
    loaded_requests,
    next_to_drain,
)
from cowtail.harness.scope_strategies import SMALL, Feature, Paces, Profile, draw_paces, draw_scope
from cowtail.harness.target import Level, Session, TorchSession, load_torch
from cowtail.models import lifecycle, store_lookup
from cowtail.models.actions import Action, Evict
from cowtail.models.scope import STORE, Lookup, Role, Scope
from cowtail.models.transition import Transition

PRODUCER, CONSUMER = 0, 1
"""The two engines, by position."""

HEAD_STARTS = (0, 20, 60, 100)
"""For how many moments the producer may go first: else there is seldom anything to be found."""

Scopes = tuple[Scope, Scope]
"""The producer's and the consumer's scope."""

_SHARED = ("groups", "hash_unit", "requests", "num_ranks")
"""What two engines with one store must agree on, lest a key of one mean something else to the
other."""


@attrs.frozen
class Step:
    """One action of one of the engines."""

    engine: int
    action: Action

    def __repr__(self) -> str:
        """Print as ``consumer: admit(a)``."""
        return f"{('producer', 'consumer')[self.engine]}: {self.action!r}"


@attrs.frozen
class _TorchWithStore:
    """The torch engine as a target, on a store that others have as well."""

    store: object
    faults: tuple[str, ...]
    device: str
    name: str = "torch"
    level: Level = Level.EXACT
    refusal: type[Exception] | None = None

    def open(self, scope: Scope) -> Session:
        from cowtail.impl.torch_engine import TorchEngine
        from cowtail.impl.torch_engine.store import StoreBase

        assert isinstance(self.store, StoreBase)
        engine = TorchEngine(scope, device=self.device, faults=self.faults, store=self.store)
        return TorchSession(engine)


class Duo:
    """A producer and a consumer in lockstep with their models, sharing a store.

    Use as a context manager, or call ``close``. Once diverged, a duo is of no further use.
    Raises ValueError if the scopes do not agree on what both mean by a key.
    """

    def __init__(
        self,
        scopes: Scopes,
        *,
        faults: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
        device: str = "cpu",
    ) -> None:
        for field in _SHARED:
            first, second = (getattr(scope, field) for scope in scopes)
            if first != second:
                raise ValueError(
                    f"{field} {first!r} and {second!r}: engines that share a store need the same; "
                    "change one of them"
                )
        load_torch()
        from cowtail.impl.torch_engine.store import InMemoryStore

        store = InMemoryStore()
        self.scopes = scopes
        self.steps: list[Step] = []
        self.pairs = tuple(
            Lockstep(scope, _TorchWithStore(store, names, device))
            for scope, names in zip(scopes, faults, strict=True)
        )

    def __enter__(self) -> Duo:
        """Return the duo."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close both sessions."""
        self.close()

    def close(self) -> None:
        """Close both sessions."""
        for pair in self.pairs:
            pair.close()

    def enabled(self, engine: int) -> tuple[Action, ...]:
        """Return what one engine's model allows now; nothing that the other leases is evicted."""
        other, scope = self.pairs[1 - engine], self.scopes[1 - engine]
        leased = store_lookup.leased_keys(scope, other.state)
        return tuple(
            action
            for action in self.pairs[engine].enabled()
            if not (isinstance(action, Evict) and (action.group, action.prefix) in leased)
        )

    def perform(self, engine: int, action: Action) -> Transition:
        """Take an action on one of the engines, in lockstep. Raises what Lockstep raises."""
        self.steps.append(Step(engine, action))
        pair, other = self.pairs[engine], self.pairs[1 - engine]
        transition = pair.perform(action)
        if transition.state.store is not other.state.store:
            other.share_store(transition.state.store)
        return transition

    def drain(self, engine: int) -> None:
        """Bring one of the engines to rest. Raises Diverged, also if that takes too long."""
        pair = self.pairs[engine]
        for _ in range(MAX_DRAIN_ACTIONS):
            loaded = loaded_requests(pair.scope, pair.state)
            action = next_to_drain(self.enabled(engine), loaded)
            if action is None:
                break
            self.perform(engine, action)
        if not lifecycle.is_quiescent(pair.scope, pair.state):
            pair.drain()  # says that it is not at rest


@attrs.frozen
class DuoReport:
    """What a run of duos did and found; ``seconds`` is all that differs between equal runs.

    ``events`` counts what happened in the producers and in the consumers. A finding is the
    divergence with its scopes and the steps that led to it, the last one included.
    """

    seed: int
    examples: int
    actions: int
    events: tuple[dict[str, int], dict[str, int]]
    seconds: float
    finding: tuple[Scopes, tuple[Step, ...], Divergence] | None


def draw_scopes(rng: random.Random, profile: Profile = SMALL) -> Scopes:
    """Return two scopes for engines that share a store: one saves, the other looks up."""
    scope = draw_scope(rng, profile, frozenset({Feature.LOOKUP}))
    scope = attrs.evolve(scope, foreign=(), children=(STORE,))
    producer = attrs.evolve(
        scope,
        name="producer",
        role=rng.choice((Role.PRODUCER, Role.PRODUCER, Role.BOTH)),
        lookup=rng.choice((Lookup.OFF, Lookup.SYNC)),
    )
    consumer = attrs.evolve(
        scope, name="consumer", role=rng.choice((Role.CONSUMER, Role.CONSUMER, Role.BOTH))
    )
    return producer, consumer


class _Stop(BaseException):
    """Ends the run. Not an Exception, because Hypothesis would take one for a failed example."""


class _Run:
    """One run: its bound, its counts, and what it found."""

    def __init__(
        self, profile: Profile, faults: tuple[tuple[str, ...], tuple[str, ...]], max_examples: int
    ) -> None:
        self.profile = profile
        self.faults = faults
        self.max_examples = max_examples
        self.examples = self.actions = 0
        self.events: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.finding: tuple[Scopes, tuple[Step, ...], Divergence] | None = None

    def count(self, duo: Duo) -> None:
        self.actions += len(duo.steps)
        for events, pair in zip(self.events, duo.pairs, strict=True):
            events.update(pair.events)
        duo.close()

    def found(self, duo: Duo, error: Diverged) -> None:
        self.count(duo)
        self.finding = duo.scopes, tuple(duo.steps), error.divergence
        raise _Stop from error


class _DuoLife(RuleBasedStateMachine):
    """The state machine that Hypothesis runs: one rule, which takes one action of one engine."""

    run: _Run

    def __init__(self) -> None:
        super().__init__()
        self.duo: Duo | None = None

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        """Draw two scopes and how eager everybody is in them."""
        if self.run.examples >= self.run.max_examples:
            raise _Stop
        self.run.examples += 1
        rng = random.Random(seed)
        self.duo = Duo(draw_scopes(rng, self.run.profile), faults=self.run.faults)
        self.paces: tuple[Paces, Paces] = (draw_paces(rng), draw_paces(rng))
        self.head_start = rng.choice(HEAD_STARTS)
        self.moment = 0

    @rule(choice=st.integers(0, 2**32 - 1), first=st.integers(PRODUCER, CONSUMER))
    def act(self, choice: int, first: int) -> None:
        """Take an action of one engine; of the other, if that one has nothing to do."""
        duo = self.duo
        assert duo is not None
        self.moment += 1
        if self.moment <= self.head_start:
            first = PRODUCER
        for engine in (first, 1 - first):
            enabled = duo.enabled(engine)
            if enabled:
                self._take(duo, engine, choose(enabled, self.paces[engine], self.moment, choice))
                return

    def _take(self, duo: Duo, engine: int, action: Action) -> None:
        try:
            duo.perform(engine, action)
        except Diverged as error:
            self.duo = None
            self.run.found(duo, error)

    def teardown(self) -> None:
        """Bring both to rest, the producer first."""
        duo, self.duo = self.duo, None
        if duo is None or self.run.finding is not None:
            return
        for engine in (PRODUCER, CONSUMER):
            try:
                duo.drain(engine)
            except Diverged as error:
                self.run.found(duo, error)
        self.run.count(duo)


def fuzz_duos(
    *,
    seed: int,
    max_examples: int,
    profile: Profile = SMALL,
    faults: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
) -> DuoReport:
    """Fuzz producers and consumers that share a store, on the torch engine.

    ``faults``: those of the producer's engine, and those of the consumer's. The same seed and
    number of examples give the same run.
    """
    register_backend()
    started = time.perf_counter()
    run = _Run(profile, faults, max_examples)
    machine = type("DuoLife", (_DuoLife,), {"run": run})
    settings = hypothesis.settings(
        backend=BACKEND,
        database=None,
        deadline=None,
        max_examples=MAX_EXAMPLES,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        stateful_step_count=2 * profile.steps,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with contextlib.suppress(_Stop):
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=settings)
    counts = tuple(dict(sorted(events.items())) for events in run.events)
    return DuoReport(
        seed,
        run.examples,
        run.actions,
        (counts[PRODUCER], counts[CONSUMER]),
        time.perf_counter() - started,
        run.finding,
    )
