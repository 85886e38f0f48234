"""Fuzzing the real engine at safety level: seeded, counted, repeatable, reduced.

``fuzz(seed=1, seconds=60)`` runs episodes until the time is up, or a property fails. Episode
``n`` of a seed is the same whatever the time, so a finding is repeated by its seed and number,
and replayed from its configuration and list of actions.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import attrs

from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.episodes import draw_config, replay, run_episode
from cowtail.impl.vllm_engine.known import known_finding
from cowtail.impl.vllm_engine.session import Session, filling, run_in_turn
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.actions import Action

__all__ = ["Finding", "Report", "fuzz", "minimize", "replay"]


REQUIRED_EVENTS = (
    "tails handed off at finish",
    "tails handed off by CoW",
    "pins outliving requests",
    "preemptions with a job in flight",
    "failed puts",
)
"""What must have happened in a run before finding nothing says that the properties hold."""


@attrs.frozen
class Finding:
    """A property that failed, and the actions that lead to it.

    ``actions`` are those before the final drain; a replay drains again. ``minimal`` says that
    none of them can be left out. ``known`` is the name of the known finding that it is, if any.
    """

    identifier: str
    reason: str
    config: EngineConfig
    actions: tuple[Action, ...]
    seed: int
    episode: int
    known: str | None = None
    minimal: bool = False


@attrs.frozen
class Report:
    """What a run did. ``seconds`` is reported only: no result depends on it.

    ``statistics`` counts actions by name and events: "tails handed off at finish", "tails
    handed off by CoW", "pins outliving requests", "preemptions", "preemptions with a job in
    flight", "failed puts", "failed gets", "loads done", "loads failed", "empty steps", and
    "known: NAME" for episodes that ended in a known finding. ``known`` are the first of each.
    """

    seed: int
    episodes: int
    actions: int
    seconds: float
    release: str
    statistics: dict[str, int]
    finding: Finding | None = None
    known: tuple[Finding, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The required events that never happened, so that "holds" would say too little."""
        return tuple(event for event in REQUIRED_EVENTS if not self.statistics.get(event))


def fuzz(
    seed: int,
    *,
    seconds: float | None = None,
    episodes: int | None = None,
    config: EngineConfig | None = None,
    reduce: bool = True,
    on_episode: Callable[[int], None] | None = None,
) -> Report:
    """Run episodes of drawn actions until one fails in a way not known, or a limit is reached.

    At least one of ``seconds`` and ``episodes`` is given. ``config`` fixes the configuration;
    without it each episode draws its own. ``reduce`` minimizes what is found. ``on_episode`` is
    called with the number of episodes done.

    Raises ValueError without a limit or for one that is not above 0, VllmNotInstalled without
    vLLM.
    """
    if seconds is None and episodes is None:
        raise ValueError("seconds=None, episodes=None: a run has a limit; give one of them")
    if episodes is not None and episodes < 1:
        raise ValueError(f"episodes={episodes}: must be 1 or more; raise it")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds={seconds:g}: must be above 0; raise it")
    release = surface().release.version
    statistics: Counter[str] = Counter()
    begin = time.perf_counter()
    done = num_actions = 0
    finding = None
    known: dict[str, Finding] = {}
    while finding is None and (episodes is None or done < episodes):
        if seconds is not None and time.perf_counter() - begin >= seconds:
            break
        session, finding = run_numbered_episode(seed, done, config)
        if finding is not None and finding.known is not None:
            statistics[f"known: {finding.known}"] += 1
            known.setdefault(finding.known, finding)
            finding = None
        statistics.update(session.statistics)
        num_actions += len(session.actions)
        done += 1
        if on_episode is not None:
            on_episode(done)
    if finding is not None and reduce:
        finding = minimize(finding)
    return Report(
        seed=seed,
        episodes=done,
        actions=num_actions,
        seconds=time.perf_counter() - begin,
        release=release,
        statistics=dict(sorted(statistics.items())),
        finding=finding,
        known=tuple(known.values()),
    )


def run_numbered_episode(
    seed: int, number: int, fixed: EngineConfig | None = None
) -> tuple[Session, Finding | None]:
    """Run one episode of a seed again, or for the first time."""
    rng = random.Random(f"{seed}/{number}")
    config = draw_config(rng) if fixed is None else fixed
    try:
        session = Session(config)
    except Violation:
        return _run_filling(config, seed, number)
    try:
        run_episode(session, rng)
    except Violation as violation:
        actions = tuple(session.actions[: session.drain_began])
        return session, _finding(session, violation, actions, seed, number)
    return session, None


def _run_filling(config: EngineConfig, seed: int, number: int) -> tuple[Session, Finding]:
    """Show a violation that came up while the store was filled, as an episode of its own."""
    session = Session(filling(config))
    try:
        run_in_turn(session)
    except Violation as violation:
        return session, _finding(session, violation, tuple(session.actions), seed, number)
    raise AssertionError("filling the store failed once and not again: runs are deterministic")


def _finding(
    session: Session,
    violation: Violation,
    actions: tuple[Action, ...],
    seed: int,
    number: int,
) -> Finding:
    known = known_finding(session, violation)
    return Finding(
        identifier=violation.identifier,
        reason=violation.reason,
        config=session.config,
        actions=actions,
        seed=seed,
        episode=number,
        known=known.name if known else None,
    )


def minimize(finding: Finding) -> Finding:
    """Leave out whatever the failure of the same property does not need.

    Halves, quarters and so on first, then single actions until none can be left out; each
    candidate is replayed on the real engine. The requests that no action names go as well.
    """
    actions = list(finding.actions)
    size = max(len(actions) // 2, 1)
    violation = _fails_like(finding, finding.config, actions)
    if violation is None:
        return finding
    while True:
        shorter = None
        for start in range(0, len(actions), size):
            candidate = actions[:start] + actions[start + size :]
            found = _fails_like(finding, finding.config, candidate)
            if found is not None:
                shorter, violation = candidate, found
                break
        if shorter is not None:
            actions = shorter
        elif size > 1:
            size = max(size // 2, 1)
        else:
            break
    config = _without_idle_requests(finding, actions)
    violation = _fails_like(finding, config, actions) or violation
    return attrs.evolve(
        finding, config=config, actions=tuple(actions), reason=violation.reason, minimal=True
    )


def _without_idle_requests(finding: Finding, actions: list[Action]) -> EngineConfig:
    named = {getattr(action, "request", None) for action in actions}
    config = attrs.evolve(
        finding.config, requests=tuple(r for r in finding.config.requests if r.name in named)
    )
    for request in config.stored:
        candidate = attrs.evolve(config, stored=tuple(r for r in config.stored if r != request))
        if _fails_like(finding, candidate, actions) is not None:
            config = candidate
    return config if _fails_like(finding, config, actions) is not None else finding.config


def _fails_like(finding: Finding, config: EngineConfig, actions: list[Action]) -> Violation | None:
    """Return the violation of the same property that ``actions`` lead to; None if there is none."""
    try:
        replay(config, actions)
    except Violation as violation:
        return violation if violation.identifier == finding.identifier else None
    return None
