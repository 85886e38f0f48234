"""What checking costs on real vLLM: actions a second at each level, as ratios to the bare loop.

    .venv-vllm/bin/python benchmarks/vllm_speed.py [--rounds 5] [--episodes 40]

Episodes are drawn and run once; then their actions are replayed, in interleaved rounds: bare (the
real scheduler, connector and ranks on symbolic memory, and nothing else), with the properties of
the safety level after every action, and with the model following as well. Processor seconds; of
several rounds the median.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from unittest import mock

from cowtail.harness.contract import contract_level
from cowtail.impl.vllm_engine import session as sessions
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.episodes import draw_config, run_episode
from cowtail.impl.vllm_engine.ledger import Ledger
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import Action

Episode = tuple[EngineConfig, list[Action]]


def drawn(episodes: int) -> list[Episode]:
    """Return configurations and actions of episodes in which nothing fails, without a store."""
    found: list[Episode] = []
    number = 0
    while len(found) < episodes:
        rng = random.Random(f"speed/{number}")
        number += 1
        config = draw_config(rng)
        if config.stored:
            continue
        session = Session(config)
        with contextlib.suppress(Violation):
            run_episode(session, rng)
            found.append((config, session.actions))
    return found


def _nothing(*args: object, **options: object) -> None:
    """Do nothing: a mock would count its calls, and cost more than what it replaces."""


@contextlib.contextmanager
def bare() -> Iterator[None]:
    """Leave out every check, and the books that are kept for them."""
    with (
        mock.patch.object(sessions, "check", _nothing),
        mock.patch.object(Ledger, "note_finished", _nothing),
        mock.patch.object(Ledger, "note_keys", _nothing),
        mock.patch.object(Ledger, "note_loads", _nothing),
        mock.patch.object(Ledger, "note_executed", _nothing),
        mock.patch.object(Session, "_check_put", _nothing),
    ):
        yield


LEVELS = {"bare": bare, "safety": contextlib.nullcontext, "contract": contract_level}


def rate(episodes: list[Episode]) -> float:
    """Return actions for each processor second of replaying the episodes, building included."""
    begin = time.process_time()
    for config, actions in episodes:
        session = Session(config)
        for action in actions:
            session.do(action)
    return sum(len(actions) for _, actions in episodes) / (time.process_time() - begin)


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=40)
    options = parser.parse_args()
    episodes = drawn(options.episodes)
    rates: dict[str, list[float]] = {level: [] for level in LEVELS}
    for _ in range(options.rounds):
        for level, entered in LEVELS.items():
            with entered():
                rates[level].append(rate(episodes))
    reference = statistics.median(rates["bare"])
    print(f"{sum(len(a) for _, a in episodes):,} actions, {options.rounds} rounds\n")
    print("| level | actions a second | ratio |\n|---|---|---|")
    for level, measured in rates.items():
        median = statistics.median(measured)
        print(f"| {level} | {median:,.0f} | {median / reference:.2f} |")


if __name__ == "__main__":
    main()
