"""One world, really run: a first request with its jobs and reports, then each second one.

The driver takes the next thing that there is to do, always in the same order; it decides nothing
that could change what is found.
"""

from __future__ import annotations

import enum

import attrs

from cowtail.harness.hit_cases import World, blocks_enough, seconds
from cowtail.harness.target import Target
from cowtail.models import lifecycle
from cowtail.models.actions import (
    Action,
    Admit,
    BeginPass,
    EndPass,
    Execute,
    Extend,
    Report,
    Reset,
    RunJob,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.observations import Effects, Key, Status
from cowtail.models.scope import Lookup, RequestSpec, Role, Scope
from cowtail.models.state import State
from cowtail.spec.expected_hit import Continuation, Second, Sibling
from cowtail.spec.hits.left_behind import Keys

FIRST = "first"


class Place(enum.StrEnum):
    """Where a second request looks: in the cache, in the store after a reset, or in both."""

    LOCAL = "local"
    STORE = "store"
    BOTH = "both"


def scope_of(world: World, place: Place) -> Scope:
    """Return a scope with the first request and every second one, and room for all they need."""
    first = RequestSpec(FIRST, "a" * world.prompt, world.max_tokens)
    prompts = [_prompt(first, second) for second in seconds(world)]
    layout = world.layout
    return Scope(
        name="hits",
        groups=layout.groups,
        hash_unit=layout.hash_unit,
        num_blocks=blocks_enough(world, max(map(len, prompts))),
        requests=(first, *(RequestSpec(str(i), prompt) for i, prompt in enumerate(prompts))),
        role=Role.BOTH,
        num_ranks=1,
        token_budget=layout.token_budget,
        retention_interval=layout.retention_interval,
        internal_checkpoints=layout.internal_checkpoints,
        lookup=Lookup.OFF if place is Place.LOCAL else Lookup.SYNC,
        max_resets=1,
    )


def _prompt(first: RequestSpec, second: Second) -> str:
    match second:
        case Sibling(length=length, shared=shared):
            return "a" * shared + "b" * (length - shared)
        case Continuation(added=added):
            return first.tokens + "c" * added
        case _:
            return first.prompt


class Run:
    """The model, from a state on; it remembers the actions that were taken."""

    def __init__(
        self, scope: Scope, state: State | None = None, actions: tuple[Action, ...] = ()
    ) -> None:
        self.scope = scope
        self.state = lifecycle.initial(scope) if state is None else state
        self.actions = list(actions)

    def take(self, *actions: Action) -> Effects:
        """Take steps; return the effects of the last one."""
        effects = Effects()
        for action in actions:
            transition = lifecycle.step(self.scope, self.state, action)
            self.state, effects = transition.state, transition.effects
            self.actions.append(action)
        return effects

    def go_on(self, scope: Scope) -> Run:
        """Return another run that goes on from here, in a scope that looks up elsewhere."""
        return Run(scope, self.state, tuple(self.actions))

    def serve(self, name: str) -> None:
        """Run a request alone until it has finished, with all its jobs and reports."""
        index = self.scope.index(name)
        self.take(Submit(name))
        while (status := self.state.requests[index].status) is not Status.FINISHED:
            self.take(BeginPass(), Admit(name) if status is Status.WAITING else Extend(name))
            self._finish_pass()
        self.take(BeginPass())  # the workers are told that it has finished
        self._finish_pass()

    def _finish_pass(self) -> None:
        self.take(EndPass(), Execute(), UpdateFromOutput())
        for rank in range(len(self.state.ranks)):
            while self.state.ranks[rank].queue:
                self.take(RunJob(rank))
            for job in self.state.ranks[rank].outbox:
                self.take(Report(rank, job))
        if self.state.inbox:
            self.take(UpdateConnectorOutput())


def served(world: World) -> Run:
    """Return a run in which the first request of a world has finished."""
    run = Run(scope_of(world, Place.BOTH))
    run.serve(FIRST)
    return run


def keys_left(run: Run) -> tuple[Keys, Keys]:
    """Return the lengths keyed in the local cache and in the store, per group."""
    local = [key for keys in run.state.pool.keys for key in keys]
    stored = [Key(entry.group, entry.prefix) for entry in run.state.store]
    groups = range(len(run.scope.groups))
    of_cache, of_store = (
        tuple(frozenset(len(key.prefix) for key in keys if key.group == group) for group in groups)
        for keys in (local, stored)
    )
    return of_cache, of_store


def found_by_model(run: Run, place: Place, asked: int) -> list[int]:
    """Return what each of the first ``asked`` second requests finds, were it admitted next."""
    start = run.go_on(
        attrs.evolve(run.scope, lookup=Lookup.OFF if place is Place.LOCAL else Lookup.SYNC)
    )
    if place is Place.STORE:
        start.take(Reset())
    start.take(*(Submit(str(number)) for number in range(asked)), BeginPass())
    return [
        tokens_found(start.go_on(start.scope).take(Admit(str(number)))) for number in range(asked)
    ]


def found_by_target(run: Run, world: World, place: Place, number: int, target: Target) -> int:
    """Return what one second request finds on a target that repeats the run from its start."""
    actions = [*run.actions, *([Reset()] if place is Place.STORE else [])]
    actions += [Submit(str(number)), BeginPass(), Admit(str(number))]
    session = target.open(scope_of(world, place))
    try:
        for action in actions:
            session.perform(action)
        return tokens_found(session.observe().effects)
    finally:
        session.close()


def tokens_found(effects: Effects) -> int:
    """Return how many tokens an admission found, in cache or store."""
    return effects.hit or 0 if effects.external is None else effects.external
