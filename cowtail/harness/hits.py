"""Stored where lookup looks, by enumeration: what a run finds equals what was expected (R31).

In each small world the model really runs the first request, its jobs and reports, and then admits
each second one: in the local cache, in the store after a reset, and with both. The keys left
behind are compared as well, so that two mistakes cannot cancel out. With ``--target torch`` the
engine does it, and only what is found is compared. R28's prompts run at their true scale.

``python -m cowtail.harness.hits`` takes every world, ``--every N`` every Nth.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import sys
import time
from collections.abc import Iterator

import attrs

from cowtail.harness.hit_cases import TRUE_SCALE, World, seconds, worlds
from cowtail.harness.hit_run import (
    Place,
    Run,
    found_by_model,
    found_by_target,
    keys_left,
    served,
)
from cowtail.harness.target import Target, TorchTarget
from cowtail.spec.expected_hit import Second, expected_hit
from cowtail.spec.hits.left_behind import left_behind

_SHOWN = 20
"""Disagreements that are printed; all are counted."""

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


def compare_world(
    world: World, target: Target | None = None, at_most: int | None = None
) -> tuple[int, list[Disagreement]]:
    """Return how many lookups were compared in a world, and what differed; the model by default.

    ``at_most``: so many second requests in each place.
    """
    run = served(world)
    differing = list(_keys_that_differ(world, run)) if target is None else []
    count = 0
    for place in Place:
        asked = seconds(world)[: _ASKED_BOTH if place is Place.BOTH else None][:at_most]
        if target is None:
            found = found_by_model(run, place, len(asked))
        else:
            found = [found_by_target(run, world, place, n, target) for n in range(len(asked))]
        for second, length in zip(asked, found, strict=True):
            count += 1
            expected = _expected(world, place, second)
            if length != expected:
                differing.append(Disagreement(world, f"{place} {second}", expected, length))
    return count, differing


def _keys_that_differ(world: World, run: Run) -> Iterator[Disagreement]:
    left = left_behind(world.layout, world.prompt, world.max_tokens)
    for what, expected, found in zip(
        ("keys in the cache", "keys in the store"),
        (left.local, left.store),
        keys_left(run),
        strict=True,
    ):
        if expected != found:
            shown = [[sorted(lengths) for lengths in keys] for keys in (expected, found)]
            yield Disagreement(world, what, *shown)


def _expected(world: World, place: Place, second: Second) -> int:
    """Return what is expected; with cache and store, the longer of both is used (R13)."""
    lengths = [
        expected_hit(
            world.layout, world.prompt, second, local=local, max_tokens=world.max_tokens
        ).length
        for local, without in ((True, Place.STORE), (False, Place.LOCAL))
        if place is not without
    ]
    return max(lengths)


def compare_at_true_scale(target: Target | None = None) -> Comparison:
    """Compare what resends of R28's prompts find."""
    counts, differing = zip(*(compare_world(w, target, 1) for w in TRUE_SCALE), strict=True)
    return Comparison(len(TRUE_SCALE), sum(counts), tuple(itertools.chain(*differing)))


def compare(every: int = 1, offset: int = 0, target: Target | None = None) -> Comparison:
    """Compare every ``every``-th world, starting with number ``offset``."""
    count = lookups = 0
    differing: list[Disagreement] = []
    for world in itertools.islice(worlds(), offset, None, every):
        compared, found = compare_world(world, target)
        count += 1
        lookups += compared
        differing += found
    return Comparison(count, lookups, tuple(differing))


def compare_in_parallel(every: int, jobs: int, target: Target | None = None) -> Comparison:
    """Compare every ``every``-th world, dealt out to ``jobs`` processes."""
    if jobs == 1:
        return compare(every, target=target)
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        offsets = [every * job for job in range(jobs)]
        parts = list(pool.map(compare, [every * jobs] * jobs, offsets, [target] * jobs))
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
    parser.add_argument("--target", choices=("model", "torch"), default="model", help="who runs")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    target = TorchTarget() if options.target == "torch" else None
    true_scale = compare_at_true_scale(target)
    small = compare_in_parallel(options.every, options.jobs, target)
    for difference in (*true_scale.disagreements, *small.disagreements)[:_SHOWN]:
        print(difference)
    print(f"true scale: {true_scale.summary()}")
    print(f"{small.summary()} on {options.target} ({time.perf_counter() - started:.0f} s)")
    return 1 if true_scale.disagreements or small.disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
