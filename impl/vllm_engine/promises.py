"""What a producer owes to later requests: its prompt's boundary, in the store, where it is found.

The other properties say that nothing wrong is done; these say that what should be done is. They
are checked when everything has been drained, and only where nothing excuses a miss: every put
and load succeeded, nothing was preempted, aborted or thrown away (R2, R9 and R18 allow a tail to
be dropped then), and where there is no window: how much of one is owed is not worked out here.
What is found is asked of the real code, by a consumer with an empty cache;
what should be found is computed from lengths alone, as R28, R29 and R31 say.

>>> [replay_boundary(4, False, tokens) for tokens in (44, 45, 46)]
[40, 44, 44]
>>> [replay_boundary(128, True, tokens) for tokens in (7449, 23196, 41300)]
[7296, 23040, 41088]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from cowtail.impl.vllm_engine.checks import QUIESCENCE, SAFETY, Property, property_of
from cowtail.impl.vllm_engine.config import OfPeer, RunLoad
from cowtail.models.actions import (
    Execute,
    LookUp,
    Report,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.session import Session

_BLAMELESS = frozenset(
    kind.name
    for kind in (
        Submit,
        SchedulePass,
        Execute,
        UpdateFromOutput,
        UpdateConnectorOutput,
        RunJob,
        RunLoad,
        Report,
        LookUp,
        OfPeer,
    )
)
"""The actions after which a miss has no excuse, as long as none of them failed."""
_EXCUSES = ("failed puts", "failed gets", "preemptions")
"""The events that excuse a miss."""
_COMPLETED = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")
"""The states of a request that has come to its own end."""
_MORE = "\0"
"""A token that no prompt has, by which a later prompt is longer."""


def replay_boundary(hash_unit: int, eagle: bool, num_tokens: int) -> int:
    """Return how many tokens of a prompt an identical one finds. All in tokens.

    At least one token is computed again (R29); with EAGLE, attention is looked up to the last
    unit of the prompt, and drops one (R28).
    """
    if eagle:
        return max(num_tokens // hash_unit * hash_unit - hash_unit, 0)
    return (num_tokens - 1) // hash_unit * hash_unit


def tails_are_in_the_store(session: Session) -> str | None:
    """L6: a longer prompt finds what a finished producer computed, at least to its boundary."""
    return None if session.config.eagle else _first_miss(session, _MORE)


def eagle_finds_its_proof(session: Session) -> str | None:
    """R23: with EAGLE, too: attention is stored one unit past the boundary, where it is probed."""
    return _first_miss(session, _MORE) if session.config.eagle else None


def identical_resends_hit(session: Session) -> str | None:
    """R29: the same prompt again finds all that a finished producer computed for it to find."""
    return _first_miss(session, "")


def _first_miss(session: Session, more: str) -> str | None:
    config = session.config
    for name, prompt in _owed(session):
        owed = replay_boundary(config.hash_unit, config.eagle, len(prompt))
        found = found_in_store(session, prompt + more)
        if found < owed:
            asker = "a longer prompt" if more else "the same prompt"
            return (
                f"{name} ran to its end with {len(prompt)} prompt tokens, but {asker} finds "
                f"{found} of them in the store, not {owed}"
            )
    return None


def _owed(session: Session) -> Iterator[tuple[str, str]]:
    """Yield the name and prompt of each request whose boundary must be in the store."""
    if session.config.role not in (Role.PRODUCER, Role.BOTH) or session.config.window:
        return
    if any(engine.statistics[event] for engine in session.engines for event in _EXCUSES):
        return
    actions = [action for engine in session.engines for action in engine.actions]
    if any(action.name not in _BLAMELESS for action in actions):
        return
    for name, request in session.requests.items():
        if request.status.name in _COMPLETED:
            yield name, session.config.request(name).prompt


def found_in_store(session: Session, prompt: str) -> int:
    """Return how many tokens of ``prompt`` a new consumer finds in the session's store."""
    request = RequestSpec("later", prompt)
    config = attrs.evolve(
        session.config,
        requests=(request,),
        stored=(),
        peer_requests=(),
        role=Role.CONSUMER,
        num_blocks=session.config.blocks_for(request) + 8,
        max_steps_in_flight=1,
        lookup_async=False,
    )
    consumer = type(session)(config, session.store, unchecked=session.unchecked)
    consumer.do_all(Submit(request.name), SchedulePass())
    load = consumer.ranks[0].next_load
    return 0 if load is None else int(load.load_spec.kvpool_cached_tokens)


PROMISES: tuple[Property, ...] = (
    property_of("R1, R22, domain.md L6", tails_are_in_the_store),
    property_of("R23, R25, R26", eagle_finds_its_proof),
    property_of("R28, R29, R31", identical_resends_hit),
)
"""What is checked when everything has been drained, and nothing excuses a miss."""

PROPERTIES: tuple[Property, ...] = (*SAFETY, QUIESCENCE, *PROMISES)
"""Every property of real vLLM."""
