"""Drawing configurations and actions, swarm style: every episode is lopsided in its own way.

An episode draws its sizes, its requests and a weight for each kind of action, so that some
episodes hardly report, some abort all the time, some keep two steps in flight. Everything comes
out of one :class:`random.Random`, so an episode is its seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import attrs

from cowtail.impl.vllm_engine.config import (
    NO_AVAILABLE_HANDLE,
    TRANSFER_FAILED,
    EngineConfig,
    RunLoad,
)
from cowtail.impl.vllm_engine.session import NotPossible, Session
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.actions import (
    Abort,
    Action,
    Evict,
    Execute,
    JobOutcome,
    LookUp,
    Report,
    Reset,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role

MAX_ACTIONS = 160
"""The most actions of an episode before it is drained."""

_WEIGHTS: dict[str, tuple[float, ...]] = {
    Submit.name: (0.5, 2.0),
    Abort.name: (0.0, 0.05, 0.5),
    SchedulePass.name: (1.0, 3.0),
    Execute.name: (0.5, 3.0),
    UpdateFromOutput.name: (1.0, 3.0),
    UpdateConnectorOutput.name: (0.3, 2.0),
    RunJob.name: (0.2, 2.0),
    RunLoad.name: (0.2, 2.0),
    Report.name: (0.2, 2.0),
    LookUp.name: (0.2, 2.0),
    Evict.name: (0.02, 0.2),
    Reset.name: (0.02, 0.1),
    "failed": (0.0, 0.1, 0.5),
    "aimed abort": (1.0, 1.0, 30.0),
}


_BLOCKS = ((16, 16, 4), (16, 16, 4), (8, 16, 4), (16, 8, 4), (8, 8, 4), (32, 16, 8), (8, 16, 8))
"""Tokens of an attention block and of a Mamba block, and the hash unit."""


def draw_config(rng: random.Random) -> EngineConfig:
    """Draw sizes and requests. Prompts end around boundaries and share prefixes."""
    attention, states, unit = rng.choice(_BLOCKS)
    priority = rng.random() < 0.3
    stem = _text(rng, 3 * states)
    requests = tuple(
        _draw_request(rng, name, stem, (states, unit), priority)
        for name in "abcde"[: rng.randint(1, 5)]
    )
    stored = tuple(
        attrs.evolve(request, name=f"stored_{request.name}", max_tokens=1, output="")
        for request in requests
        if rng.random() < 0.25
    )
    peers = _draw_peer(rng, requests) if rng.random() < 0.2 else ()
    steps = rng.choice((1, 2))
    lcm = math.lcm(attention, states)
    can_checkpoint = surface().release.shared_prefix_checkpoint is not None
    config = EngineConfig(
        requests=requests,
        stored=stored,
        attention_block_size=attention,
        mamba_block_size=states,
        hash_unit=unit,
        num_blocks=1000,
        token_budget=rng.choice((states, states + unit, 2 * states, 4 * states, 4 * states)),
        role=rng.choice((Role.PRODUCER, Role.BOTH, Role.BOTH, Role.CONSUMER)),
        num_ranks=rng.choice((2, 2, 3)),
        max_steps_in_flight=steps,
        eagle=steps == 1 and rng.random() < 0.3,
        retention_interval=rng.choice((0, 0, None, lcm, 2 * lcm)),
        recompute_failed_loads=rng.random() < 0.5,
        priority=priority,
        failure_code=rng.choice((TRANSFER_FAILED, NO_AVAILABLE_HANDLE)),
        lookup_async=rng.random() < 0.3,
        shared_prefix_checkpoints=can_checkpoint and rng.random() < 0.3,
        max_evictions=rng.choice((0, 0, 1, 3)),
        max_resets=rng.choice((0, 0, 1, 3)),
        peer_requests=peers,
        peer_role=rng.choice((Role.PRODUCER, Role.BOTH, Role.CONSUMER)) if peers else Role.BOTH,
    )
    if not peers and not config.lookup_async and rng.random() < 0.05:
        config = attrs.evolve(config, connectors=2)
    config = _with_window(rng, config)
    needed = [config.blocks_for(request) for request in (*requests, *peers)]
    least = max(needed) + 1
    ample = sum(needed) + 8
    return attrs.evolve(config, num_blocks=rng.choice((least, least + 2, least + 5, ample)))


def _with_window(rng: random.Random, config: EngineConfig) -> EngineConfig:
    """Draw the sizes of a group of sliding windows; mostly there is none."""
    if rng.random() > 0.08 or not surface().release.windows_beside_states:
        return config
    unit, states = config.hash_unit, config.mamba_block_size
    window = rng.choice((unit, 2 * unit + 1, states + 1))
    return attrs.evolve(config, window=window, window_block_size=rng.choice((unit, unit, states)))


def _draw_peer(rng: random.Random, requests: Sequence[RequestSpec]) -> tuple[RequestSpec, ...]:
    """Draw what a second engine serves: prompts of the first, so that each can load the other's."""
    names = "vwxyz"[: rng.randint(1, 3)]
    return tuple(attrs.evolve(rng.choice(requests), name=name) for name in names)


def _draw_request(
    rng: random.Random, name: str, stem: str, sizes: tuple[int, int], priority: bool
) -> RequestSpec:
    """Draw a request whose prompt ends around a block's end, a boundary, or in between."""
    states, unit = sizes
    ends = (states // 2, states - unit, states, 2 * states, 2 * states, 3 * states - unit)
    around = rng.choice((*ends, 3 * states)) + rng.choice((-1, 0, 0, 1, 1, 2))
    shared = rng.choice((0, unit, states, states + unit, around - unit, around))
    prompt = (stem[: max(shared, 0)] + _text(rng, around))[:around]
    max_tokens = rng.choice((1, 1, 2, 5, states + 2))
    urgency = rng.randint(0, 2) if priority else 0
    return RequestSpec(name, prompt, max_tokens, _text(rng, max_tokens), priority=urgency)


def _text(rng: random.Random, length: int) -> str:
    return "".join(rng.choice("xy") for _ in range(length))


def draw_weights(rng: random.Random) -> dict[str, float]:
    """Draw how often each kind of action is taken in this episode."""
    return {name: rng.choice(weights) for name, weights in _WEIGHTS.items()}


def weight_of(action: Action, session: Session, weights: dict[str, float]) -> float:
    """Return an action's weight: that of its kind, and of what makes it special.

    Failures have a weight of their own; so do aborts of a request that sits at its boundary with
    nothing in flight, which chance alone would hardly ever hit.
    """
    session, action = session.engine_of(action)
    weight = weights[action.name]
    match action:
        case RunJob(_, JobOutcome.FAILED) | RunLoad(_, True) | LookUp(_, True):
            return weight * weights["failed"]
        case Abort(request) if not session.steps and session.view.has_marker(request):
            return weight * weights["aimed abort"]
    return weight


def run_episode(session: Session, rng: random.Random) -> None:
    """Take up to MAX_ACTIONS drawn actions, then drain. Raises Violation."""
    weights = draw_weights(rng)
    for _ in range(rng.randint(20, MAX_ACTIONS)):
        choices = session.choices()
        likely = [weight_of(action, session, weights) for action in choices]
        if not any(likely):
            break
        session.do(rng.choices(choices, likely)[0])
    session.drain()


def replay(config: EngineConfig, actions: Sequence[Action], *, drain: bool = True) -> Session:
    """Carry out actions in a new session; those that are not possible are left out.

    Returns the session. Raises Violation.
    """
    session = Session(config)
    for action in actions:
        try:
            session.do(action)
        except NotPossible:
            continue
    if drain:
        session.drain()
    return session
