"""What checking costs on real vLLM: actions a second at each level, as ratios to the bare loop.

    .venv-vllm/bin/python benchmarks/vllm_speed.py [--rounds 7] [--episodes 40]

Episodes are drawn and run once; then the actions of each are replayed at every level in turn, in
several rounds: bare (the real scheduler, connector and ranks on symbolic memory, and nothing
else), with the properties of the safety level after every action, and with the model following as
well. Every replay of an episode does the same, so the least processor time that it took in any
round is what it takes on an undisturbed machine; these are summed. Apart, and with the building of
the engine, which every episode needs and which no check makes longer.
"""

from __future__ import annotations

import argparse
import contextlib
import random
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
from cowtail.impl.vllm_engine.view import View
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


def _no_blocks(*args: object) -> frozenset[int]:
    return frozenset()


@contextlib.contextmanager
def bare() -> Iterator[None]:
    """Leave out every check, and the books that are kept for them."""
    with (
        mock.patch.object(sessions, "check", _nothing),
        mock.patch.object(Ledger, "note_finished", _nothing),
        mock.patch.object(Ledger, "note_keys", _nothing),
        mock.patch.object(Ledger, "note_loads", _nothing),
        mock.patch.object(Ledger, "note_executed", _nothing),
        mock.patch.object(Ledger, "note_reported", _nothing),
        mock.patch.object(Ledger, "_touched", _no_blocks),
        mock.patch.object(View, "key_map", _no_blocks),
        mock.patch.object(Session, "_check_put", _nothing),
    ):
        yield


LEVELS = {"bare": bare, "safety": contextlib.nullcontext, "contract": contract_level}


def replay(episode: Episode) -> tuple[float, float]:
    """Return the processor seconds of building an engine, and of an episode's actions on it."""
    config, actions = episode
    began = time.process_time()
    session = Session(config)
    built = time.process_time()
    for action in actions:
        session.do(action)
    return built - began, time.process_time() - built


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--episodes", type=int, default=40)
    options = parser.parse_args()
    episodes = drawn(options.episodes)
    building, acting = (
        {level: [float("inf")] * len(episodes) for level in LEVELS} for _ in range(2)
    )
    for _ in range(options.rounds):
        for number, episode in enumerate(episodes):
            for level, entered in LEVELS.items():
                with entered():
                    built, acted = replay(episode)
                building[level][number] = min(building[level][number], built)
                acting[level][number] = min(acting[level][number], acted)
    count = sum(len(actions) for _, actions in episodes)
    bare_acting, bare_all = sum(acting["bare"]), sum(acting["bare"]) + sum(building["bare"])
    print(f"{count:,} actions, the least of {options.rounds} rounds\n")
    print("| level | actions a second | ratio | with building | ratio |\n|---|---|---|---|---|")
    for level in LEVELS:
        acted, all_of_it = sum(acting[level]), sum(acting[level]) + sum(building[level])
        print(
            f"| {level} | {count / acted:,.0f} | {bare_acting / acted:.2f} "
            f"| {count / all_of_it:,.0f} | {bare_all / all_of_it:.2f} |"
        )


if __name__ == "__main__":
    main()
