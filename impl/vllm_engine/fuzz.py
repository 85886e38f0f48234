"""Fuzzing the real engine at safety level: seeded, counted, repeatable; it goes on after failures.

``fuzz(seed=1, seconds=60)`` runs episodes until the time is up, then reduces what failed and
groups it by cause. Episode ``n`` of a seed is the same whatever the time, so a failure is repeated
by its seed and number, and replayed from its configuration and list of actions.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import attrs

from cowtail.impl.vllm_engine.causes import Finding, Sightings, findings_of
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.episodes import draw_config, run_episode
from cowtail.impl.vllm_engine.failures import Failure, failure_of
from cowtail.impl.vllm_engine.reduction import MAX_CARRIED_OUT
from cowtail.impl.vllm_engine.session import Session, filling, run_in_turn
from cowtail.impl.vllm_engine.surface import surface

__all__ = ["Failure", "Finding", "Report", "fuzz", "run_numbered_episode"]


REQUIRED_EVENTS = (
    "tails handed off at finish",
    "tails handed off by CoW",
    "pins outliving requests",
    "preemptions with a job in flight",
    "failed puts",
)
"""What must have happened in a run before finding nothing says that the properties hold."""


@attrs.frozen
class Report:
    """What a run did. ``seconds`` is reported only: no result depends on it.

    ``statistics`` counts actions by name and events: "tails handed off at finish", "tails
    handed off by CoW", "pins outliving requests", "preemptions", "preemptions with a job in
    flight", "failed puts", "failed gets", "loads done", "loads failed", "empty steps".
    ``configurations`` counts episodes by what was drawn for them. ``failed`` counts the episodes
    that ended in a violation; ``findings`` are their causes, in the order of first sight.
    ``interrupted``: somebody pressed Ctrl-C.
    """

    seed: int
    episodes: int
    actions: int
    seconds: float
    release: str
    statistics: dict[str, int]
    configurations: dict[str, int]
    failed: int = 0
    findings: tuple[Finding, ...] = ()
    interrupted: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """The required events that never happened, so that "holds" would say too little."""
        return tuple(event for event in REQUIRED_EVENTS if not self.statistics.get(event))

    @property
    def new(self) -> tuple[Finding, ...]:
        """The findings that docs/findings does not describe."""
        return tuple(finding for finding in self.findings if finding.known is None)

    @property
    def known(self) -> tuple[Finding, ...]:
        """The findings that docs/findings describes."""
        return tuple(finding for finding in self.findings if finding.known is not None)


def fuzz(
    seed: int,
    *,
    seconds: float | None = None,
    episodes: int | None = None,
    config: EngineConfig | None = None,
    reduce: bool = True,
    stop_at_new: bool = False,
    max_carried_out: int = MAX_CARRIED_OUT,
    on_episode: Callable[[int, int], None] | None = None,
    on_reduction: Callable[[str, int], None] | None = None,
) -> Report:
    """Run episodes of drawn actions until a limit is reached; group what failed by cause.

    At least one of ``seconds`` and ``episodes`` is given; reducing comes on top of ``seconds``,
    with a bound of its own: ``max_carried_out`` actions a failure. ``config`` fixes the
    configuration; without it each episode draws its own. ``stop_at_new`` ends the run at the
    first failure that is not known. ``on_episode`` is called with the
    numbers of episodes done and failed, ``on_reduction`` with what is being reduced, and its
    actions left. Interrupted, it returns what it has.

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
    configurations: Counter[str] = Counter()
    sightings = Sightings()
    begin = time.perf_counter()
    done = num_actions = failed = 0
    interrupted = False
    try:
        while episodes is None or done < episodes:
            if seconds is not None and time.perf_counter() - begin >= seconds:
                break
            session, failure = run_numbered_episode(seed, done, config)
            done += 1
            statistics.update(session.all_statistics)
            configurations.update(traits_of(session.config))
            num_actions += len(session.actions)
            if failure is not None:
                failed += 1
                sightings.add(failure)
            if on_episode is not None:
                on_episode(done, failed)
            if stop_at_new and failure is not None and failure.known is None:
                break
    except KeyboardInterrupt:
        interrupted = True
    explored = time.perf_counter() - begin
    findings = findings_of(
        release,
        sightings.all(),
        reduce=reduce and not interrupted,
        max_carried_out=max_carried_out,
        progress=on_reduction,
    )
    return Report(
        seed=seed,
        episodes=done,
        actions=num_actions,
        seconds=explored,
        release=release,
        statistics=dict(sorted(statistics.items())),
        configurations=dict(sorted(configurations.items())),
        failed=failed,
        findings=findings,
        interrupted=interrupted,
    )


def traits_of(config: EngineConfig) -> list[str]:
    """Return what was drawn for a configuration, one line a field, contents of requests left out.

    A tight pool is one that does not hold all requests at once.
    """
    needed = sum(config.blocks_for(request) for request in config.requests) + 1
    traits = [
        f"{field.name}={_shown(getattr(config, field.name))}"
        for field in attrs.fields(EngineConfig)
        if field.name not in ("requests", "stored", "num_blocks", "peer_requests", "peer_role")
    ]
    traits.append(f"requests={len(config.requests)}")
    traits.append(f"stored={len(config.stored)}")
    traits.append(f"peer={config.peer_role.value if config.peer_requests else 'none'}")
    traits.append("pool=tight" if config.num_blocks < needed else "pool=ample")
    return traits


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))


def run_numbered_episode(
    seed: int, number: int, fixed: EngineConfig | None = None
) -> tuple[Session, Failure | None]:
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
        return session, _failure(session, violation, seed, number)
    return session, None


def _run_filling(config: EngineConfig, seed: int, number: int) -> tuple[Session, Failure]:
    """Show a violation that came up while the store was filled, as an episode of its own."""
    session = Session(filling(config))
    try:
        run_in_turn(session)
    except Violation as violation:
        session.drain_began = None  # of several drains, only the last came after the actions
        return session, _failure(session, violation, seed, number)
    raise AssertionError("filling the store failed once and not again: runs are deterministic")


def _failure(session: Session, violation: Violation, seed: int, number: int) -> Failure:
    return failure_of(
        session,
        violation,
        tuple(session.actions[: session.drain_began]),
        in_drain=session.drain_began is not None,
        seed=seed,
        episode=number,
    )
