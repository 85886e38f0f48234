"""Actions a second of fuzzing in lockstep, beside a Hypothesis state machine that does nothing.

    python benchmarks/lockstep_speed.py [--examples N] [--rounds N]

Both machines have the same rules (one that begins, one that acts), the same number of steps an
example, the same settings and the same source of draws; what differs is what a step does. The
ratio says what lockstep costs over the testing library alone. The three are interleaved, and
medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from cowtail.harness import Target, TorchTarget
from cowtail.harness.draws import BACKEND, register_backend
from cowtail.harness.fuzz import MAX_EXAMPLES, fuzz
from cowtail.harness.scope_strategies import SMALL
from cowtail.spec.scopes import scope_named

SEED = 1


class _Enough(BaseException):
    """Ends the machine that does nothing."""


class Nothing(RuleBasedStateMachine):
    """The rules of the fuzzing machine, without anything behind them."""

    steps = 0
    enough = 0

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Begin an example, unless there were enough steps."""
        if Nothing.steps >= Nothing.enough:
            raise _Enough

    @rule(choice=st.integers(0, 2**32 - 1))
    def act(self, choice: int) -> None:
        """Count."""
        Nothing.steps += 1


def nothing(actions: int) -> float:
    """Return steps a second of the machine that does nothing."""
    register_backend()
    Nothing.steps, Nothing.enough = 0, actions
    settings = hypothesis.settings(
        backend=BACKEND,
        database=None,
        deadline=None,
        max_examples=MAX_EXAMPLES,
        phases=[hypothesis.Phase.generate],
        stateful_step_count=SMALL.steps,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    started = time.perf_counter()
    with contextlib.suppress(_Enough):
        run_state_machine_as_test(hypothesis.seed(SEED)(Nothing), settings=settings)
    return Nothing.steps / (time.perf_counter() - started)


def lockstep(target: Target, examples: int) -> float:
    """Return actions a second of fuzzing in lockstep, drains included."""
    report = fuzz(target, seed=SEED, max_examples=examples)
    if report.finding is not None:
        raise SystemExit(f"{target.name} diverges: {report.finding.divergence.explain()}")
    return report.actions / report.seconds


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=60, help="examples a round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, interleaved")
    arguments = parser.parse_args()
    targets: dict[str, Target] = {"torch": TorchTarget()}
    TorchTarget().open(scope_named("lone_producer")).close()  # loads torch outside the clock
    rates: dict[str, list[float]] = {"nothing": [], **{name: [] for name in targets}}
    for _ in range(arguments.rounds):
        rates["nothing"].append(nothing(arguments.examples * SMALL.steps))
        for name, target in targets.items():
            rates[name].append(lockstep(target, arguments.examples))
    base = statistics.median(rates["nothing"])
    print(f"median of {arguments.rounds} rounds, {arguments.examples} examples each")
    print(f"a state machine that does nothing: {base:,.0f} steps/s")
    for name in targets:
        rate = statistics.median(rates[name])
        print(f"in lockstep with {name}: {rate:,.0f} actions/s, ratio {rate / base:.2f}")


if __name__ == "__main__":
    main()
