"""Stored where lookup looks, by enumeration: what a run finds equals what was expected (R31).

For each small world the model really runs the first request, its jobs and reports, and then
admits each second one, in the local cache, in the store after a reset, and with both. Keys left
behind are compared as well, so that two mistakes cannot cancel out.

``python -m cowtail.harness.hits`` compares everything; ``--every N`` every Nth world.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import sys
import time
from collections.abc import Iterator

import attrs

from cowtail.harness.hit_cases import World, blocks_enough, seconds, worlds
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
from cowtail.models.observations import Effects, Status
from cowtail.models.scope import Lookup, RequestSpec, Role, Scope
from cowtail.models.state import State
from cowtail.spec.expected_hit import Continuation, Second, Sibling, expected_hit
from cowtail.spec.hits.left_behind import Keys, left_behind

FIRST = "first"

_SHOWN = 20

_ASKED_BOTH = 3
"""Of the second requests, how many also meet cache and store together: not every sibling."""


@attrs.frozen
class Disagreement:
    """One world in which a run and the arithmetic differ."""

    world: World
    what: str
    expected: object
    found: object

    def __str__(self) -> str:
        """Print on one line, with the options of ``cowtail hit``."""
        return f"{self.what}: expected {self.expected}, found {self.found}: {self.world}"


@attrs.frozen
class Comparison:
    """How many worlds and lookups were compared, and what differed."""

    worlds: int
    lookups: int
    disagreements: tuple[Disagreement, ...]

    def summary(self) -> str:
        """Return one line with the counts."""
        verdict = f"{len(self.disagreements)} differ" if self.disagreements else "all as expected"
        return f"{self.worlds:,} worlds, {self.lookups:,} lookups compared: {verdict}"


def scope_of(world: World, after: tuple[Second, ...]) -> Scope:
    """Return a scope with the first request and every second one, and room for all they need."""
    first = RequestSpec(FIRST, "a" * world.prompt, world.max_tokens)
    requests = [first]
    for number, second in enumerate(after):
        match second:
            case Sibling(length=length, shared=shared):
                prompt = "a" * shared + "b" * (length - shared)
            case Continuation(added=added):
                prompt = first.tokens + "c" * added
            case _:
                prompt = first.prompt
        requests.append(RequestSpec(str(number), prompt))
    layout = world.layout
    return Scope(
        name="hits",
        groups=layout.groups,
        hash_unit=layout.hash_unit,
        num_blocks=blocks_enough(world, max(len(request.prompt) for request in requests)),
        requests=tuple(requests),
        role=Role.BOTH,
        num_ranks=1,
        token_budget=layout.token_budget,
        retention_interval=layout.retention_interval,
        internal_checkpoints=layout.internal_checkpoints,
        lookup=Lookup.SYNC,
        max_resets=1,
    )


class Run:
    """The model, driven by a scheduler that always does the next thing; keeps the actions."""

    def __init__(self, scope: Scope, state: State | None = None) -> None:
        self.scope = scope
        self.state = lifecycle.initial(scope) if state is None else state
        self.actions: list[Action] = []
        self.effects = Effects()

    def take(self, action: Action) -> Effects:
        """Take one step and remember it."""
        transition = lifecycle.step(self.scope, self.state, action)
        self.state, self.effects = transition.state, transition.effects
        self.actions.append(action)
        return self.effects

    def branch(self) -> Run:
        """Return another run that goes on from here."""
        run = Run(self.scope, self.state)
        run.actions = list(self.actions)
        return run

    def serve(self, name: str) -> None:
        """Run a request alone until it has finished, with all its jobs and reports."""
        index = self.scope.index(name)
        self.take(Submit(name))
        while self.state.requests[index].status is not Status.FINISHED:
            waiting = self.state.requests[index].status is Status.WAITING
            self.take(BeginPass())
            self.take(Admit(name) if waiting else Extend(name))
            self._finish_pass()
        self.take(BeginPass())
        self._finish_pass()

    def _finish_pass(self) -> None:
        for action in (EndPass(), Execute(), UpdateFromOutput()):
            self.take(action)
        for rank in range(len(self.state.ranks)):
            while self.state.ranks[rank].queue:
                self.take(RunJob(rank))
            for job in self.state.ranks[rank].outbox:
                self.take(Report(rank, job))
        if self.state.inbox:
            self.take(UpdateConnectorOutput())

    def find(self, names: tuple[str, ...]) -> list[int]:
        """Submit all of the requests; return what each finds, were it the one admitted next."""
        for name in names:
            self.take(Submit(name))
        self.take(BeginPass())
        found = []
        for name in names:
            effects = self.branch().take(Admit(name))
            found.append(effects.hit or 0 if effects.external is None else effects.external)
        return found


def keys_left(run: Run) -> tuple[Keys, Keys]:
    """Return the lengths keyed in the local cache and in the store, per group."""
    groups = range(len(run.scope.groups))
    local = [key for keys in run.state.pool.keys for key in keys]
    return (
        tuple(frozenset(len(k.prefix) for k in local if k.group == g) for g in groups),
        tuple(frozenset(len(e.prefix) for e in run.state.store if e.group == g) for g in groups),
    )


def compare_world(world: World) -> Iterator[Disagreement | None]:
    """Yield, for each lookup of a world, None or how run and arithmetic differ."""
    after = seconds(world)
    run = Run(scope_of(world, after))
    run.serve(FIRST)
    left = left_behind(world.layout, world.prompt, world.max_tokens)
    for place, kept, wanted in zip(
        ("local", "store"), keys_left(run), (left.local, left.store), strict=True
    ):
        if kept != wanted:
            shown = [[sorted(group) for group in keys] for keys in (wanted, kept)]
            yield Disagreement(world, f"{place} keys", *shown)
    lengths = {
        place: [
            expected_hit(
                world.layout, world.prompt, each, local=local, max_tokens=world.max_tokens
            ).length
            for each in after
        ]
        for place, local in (("local", True), ("store", False))
    }
    lengths["both"] = list(map(max, lengths["local"], lengths["store"]))
    emptied = run.branch()
    emptied.take(Reset())
    starts = {
        "local": Run(attrs.evolve(run.scope, lookup=Lookup.OFF), run.state),
        "store": emptied,
        "both": run,
    }
    for place, start in starts.items():
        asked = len(after) if place != "both" else _ASKED_BOTH
        found_lengths = start.find(tuple(map(str, range(asked))))
        for each, expected, found in zip(after, lengths[place], found_lengths, strict=False):
            differs = Disagreement(world, f"{place} {each}", expected, found)
            yield None if expected == found else differs


def compare(every: int = 1, offset: int = 0) -> Comparison:
    """Compare every ``every``-th world, starting with number ``offset``."""
    count = lookups = 0
    differing: list[Disagreement] = []
    for world in itertools.islice(worlds(), offset, None, every):
        count += 1
        for difference in compare_world(world):
            if difference is not None:
                differing.append(difference)
            lookups += difference is None or not difference.what.endswith("keys")
    return Comparison(count, lookups, tuple(differing))


def compare_in_parallel(every: int, jobs: int) -> Comparison:
    """Compare every ``every``-th world, dealt out to ``jobs`` processes."""
    if jobs == 1:
        return compare(every)
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        offsets = [every * job for job in range(jobs)]
        parts = list(pool.map(compare, [every * jobs] * jobs, offsets))
    return Comparison(
        sum(part.worlds for part in parts),
        sum(part.lookups for part in parts),
        tuple(difference for part in parts for difference in part.disagreements),
    )


def main(arguments: list[str] | None = None) -> int:
    """Compare, print counts and differences; return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m cowtail.harness.hits", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="every Nth world only")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    comparison = compare_in_parallel(options.every, options.jobs)
    for difference in comparison.disagreements[:_SHOWN]:
        print(difference)
    print(f"{comparison.summary()} ({time.perf_counter() - started:.0f} s)")
    return 1 if comparison.disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
