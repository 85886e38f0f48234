"""How short the reducer gets, fault by fault, beside the shortest failing run that is known.

    python benchmarks/reducer.py [--only NAME]... [--fresh] [--page docs/reference/reduction.md]

Every fault of the torch engine and every broken rule of the model is found by fuzzing, as it
comes, and the run is reduced. Then a breadth-first search looks for a shorter run: in the scope
that the reducer arrived at, within a bound, in that scope with one more step in flight, which
can save the actions that drain the first, and for a broken rule in the scope that it names as
well, completely. What is measured is kept in ``out/reducer.json``, so that a run that was
interrupted goes on where it stopped (``--fresh`` begins again). The page is written once all is
measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import attrs

from cowtail.harness import ModelTarget, Target, TorchTarget
from cowtail.harness.fuzz import fuzz
from cowtail.harness.lockstep import Finding, Kind
from cowtail.harness.reducer import reduce, shortest
from cowtail.harness.tours import tour
from cowtail.spec.broken_rules import BROKEN_RULES, broken_rule
from cowtail.spec.checks import check_scope
from cowtail.spec.exploration import ViolationKind
from cowtail.spec.files import write_text
from cowtail.spec.scopes import SCOPES, scope_named

SEED = 1
FIND_EXAMPLES = 400
"""Examples in which fuzzing looks for a fault; the tour of its own scope is the second resort."""

TOUR_STEPS = 20_000
SEARCH_ACTIONS = 20_000
"""Actions on the target that the search for a shorter run may take."""

KEPT = Path("out/reducer.json")


@attrs.frozen
class Row:
    """One fault. Lengths are in actions, 0 where there is none; ``seconds`` are the reducer's.

    ``searched``: "complete" if no shorter run exists in the reduced scope, else "bounded";
    ``ahead``: it was also looked for with one more step in flight.
    ``note`` says why there is nothing to compare.
    """

    target: str
    fault: str
    found: int = 0
    reduced: int = 0
    shortest: int = 0
    searched: str = ""
    target_actions: int = 0
    seconds: float = 0.0
    note: str = ""
    ahead: bool = False

    @property
    def ratio(self) -> float:
        """How many times as long as the shortest known run the reduced one is."""
        return self.reduced / self.shortest


def measure(target: Target, scope_hint: str) -> Row:
    """Find a fault, reduce what was found, and look for something shorter."""
    (fault,) = target.faults
    finding = _find(target, scope_hint)
    if finding is None:
        return Row(target.name, fault, note="not found by fuzzing or by the tour of its scope")
    if finding.divergence.kind is Kind.NO_DRAIN:
        return Row(target.name, fault, len(finding.actions), note="never comes to rest: no run")
    started = time.perf_counter()
    reduced = reduce(finding.scope, finding.actions, target)
    seconds = time.perf_counter() - started
    length = len(reduced.actions)
    search = shortest(
        reduced.scope, target, max_length=length - 1, max_target_actions=SEARCH_ACTIONS
    )
    known = [length]
    if search.found is not None:
        known.append(len(search.found.actions))
    ahead = attrs.evolve(
        reduced.scope,
        max_steps_in_flight=reduced.scope.max_steps_in_flight + 1,
        defer_frees=reduced.scope.defer_frees or reduced.scope.loads,
    )
    search_ahead = shortest(ahead, target, max_length=length - 1, max_target_actions=SEARCH_ACTIONS)
    if search_ahead.found is not None:
        known.append(len(search_ahead.found.actions))
    if isinstance(target, ModelTarget):
        known += _explored(fault)
    return Row(
        target.name,
        fault,
        len(finding.actions),
        length,
        min(known),
        "complete" if search.complete else "bounded",
        reduced.target_actions,
        seconds,
        ahead=True,
    )


def _find(target: Target, scope_hint: str) -> Finding | None:
    found = fuzz(target, seed=SEED, max_examples=FIND_EXAMPLES).finding
    if found is None and scope_hint in SCOPES:
        found = tour(SCOPES[scope_hint], target, max_steps=TOUR_STEPS).finding
    return found


def _explored(rule: str) -> list[int]:
    """Return the length of the explorer's shortest trace in the rule's scope, if it has one.

    Not that to a state from which rest is lost, or to a cycle: nothing shows there yet.
    """
    with broken_rule(rule):
        violation = check_scope(scope_named(BROKEN_RULES[rule].scope)).violation
    shows = (ViolationKind.INVARIANT, ViolationKind.STEP_INVARIANT)
    return [len(violation.path)] if violation is not None and violation.kind in shows else []


def page(rows: list[Row]) -> str:
    """Return the table as a Markdown page."""
    compared = [row for row in rows if not row.note]
    ratios = [row.ratio for row in compared]
    seconds = [row.seconds for row in compared]
    exact = sum(row.reduced == row.shortest for row in compared)
    worst = max(compared, key=lambda row: (row.ratio, row.reduced))
    slowest = max(compared, key=lambda row: row.seconds)
    lines = [
        "# How short reduced traces are",
        "",
        "Written by `python benchmarks/reducer.py`. Each fault is found by fuzzing and the run is "
        "reduced until no single",
        "action can be left out. Beside it: the shortest run known, from a breadth-first search of "
        "the reduced scope",
        "(*complete*: there is no shorter one in that scope; *bounded*: "
        f"{SEARCH_ACTIONS:,} actions on the target were tried) and, for",
        "rules of the model, of the scope that the rule names. Lengths are in actions.",
        "",
        f"{len(compared)} faults: {exact} reduced to the shortest run known. Reduced against "
        f"shortest: median {statistics.median(ratios):.2f} times, worst {worst.ratio:.2f} times "
        f"({worst.fault}, {worst.reduced} against {worst.shortest}). Time of the reducer: median "
        f"{statistics.median(seconds):.1f} s, worst {slowest.seconds:.1f} s ({slowest.fault}).",
        "",
        "| fault | target | found after | reduced to | shortest known | search | actions | s |",
        "|---|---|---:|---:|---:|---|---:|---:|",
        *(
            f"| `{row.fault}` | {row.target} | {row.found:,} | {row.reduced} | {row.shortest} "
            f"| {row.searched} | {row.target_actions:,} | {row.seconds:.1f} |"
            for row in compared
        ),
        "",
    ]
    ahead = [f"`{row.fault}`" for row in compared if row.ahead]
    if ahead:
        lines += [f"Searched with one more step in flight as well: {', '.join(ahead)}.", ""]
    left_out = [f"- `{row.fault}` ({row.target}): {row.note}" for row in rows if row.note]
    if left_out:
        lines += ["Nothing to compare:", "", *left_out, ""]
    return "\n".join(lines)


def main() -> None:
    """Measure what is not measured yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="only this fault; no page is written")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--page", type=Path, default=Path("docs/reference/reduction.md"))
    arguments = parser.parse_args()
    from cowtail.impl.torch_engine.faults import FAULTS

    wanted: list[tuple[Target, str]] = [
        *((TorchTarget((fault.name,)), fault.scope_hint) for fault in FAULTS.values()),
        *((ModelTarget((rule.name,)), rule.scope) for rule in BROKEN_RULES.values()),
    ]
    if arguments.only:
        wanted = [each for each in wanted if each[0].faults[0] in arguments.only]
    kept = {}
    if KEPT.exists() and not arguments.fresh:
        kept = {
            (each["target"], each["fault"]): Row(**each) for each in json.loads(KEPT.read_text())
        }
    for target, hint in wanted:
        name = (target.name, target.faults[0])
        if name not in kept or arguments.only:
            kept[name] = measure(target, hint)
            write_text(KEPT, json.dumps([attrs.asdict(row) for row in kept.values()]) + "\n")
        print(kept[name], flush=True)
    if not arguments.only:
        rows = [kept[target.name, target.faults[0]] for target, _ in wanted]
        write_text(arguments.page, page(rows))
        print(f"wrote {arguments.page}")


if __name__ == "__main__":
    main()
