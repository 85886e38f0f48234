"""A property that failed, and the actions that lead to it; the cheap half of telling causes apart.

>>> abstract("c reads wrong KV on rank 0: slot 3 of block 6 holds 'ab', not 'xy'", ["c"])
'R reads wrong KV on rank N: slot N of block N'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import attrs

from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.composite import carry_out, fold, possible
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.known import known_finding
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import Action


@attrs.frozen
class Signature:
    """What failures of one cause have in common, as far as one can tell without reducing them.

    ``place`` is the name of the known finding, or the message without names and numbers. A
    known finding is one cause whatever property notices it first, so its ``identifier`` is "".
    """

    identifier: str
    place: str

    @property
    def is_known(self) -> bool:
        """Whether it is that of a known finding."""
        return not self.identifier


@attrs.frozen
class Failure:
    """A property that failed in a run, and how.

    ``actions`` are those before the final drain; a replay drains again, and ``in_drain`` says
    that it failed only there; ``failed_at`` is the name of the single action that failed.
    ``known`` is the name of the known finding that it is, if any. ``seed`` and ``episode`` say
    which run found it, None if somebody wrote it down.
    """

    identifier: str
    reason: str
    config: EngineConfig
    actions: tuple[Action, ...]
    seed: int | None = None
    episode: int | None = None
    known: str | None = None
    in_drain: bool = False
    failed_at: str = ""

    @property
    def signature(self) -> Signature:
        """What this failure has in common with others of its cause."""
        if self.known is not None:
            return Signature("", self.known)
        config = self.config
        requests = (*config.requests, *config.stored, *config.peer_requests)
        names = [request.name for request in requests]
        return Signature(self.identifier, abstract(self.reason, names))


def abstract(reason: str, names: Iterable[str]) -> str:
    """Return a message without the names, numbers and contents that differ from run to run."""
    text = re.sub(r" (holds|still has|after \d+ actions)\b.*", "", reason, flags=re.DOTALL)
    text = re.sub(r" \(\d+ tokens\)", "", text)
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"^{re.escape(name)}\b|(?<=of ){re.escape(name)}\b", "R", text)
    text = re.sub(r"'[^']*'", "'…'", text)
    text = re.sub(r"\[[^\]]*\]|\{[^}]*\}", "[…]", text)
    return re.sub(r"N(, N)+", "N", re.sub(r"\d+", "N", text))


@attrs.frozen
class Attempt:
    """What a list of actions comes to: the failure, or None, and how many were carried out."""

    failure: Failure | None
    carried_out: int
    session: Session | None


def attempt(config: EngineConfig, actions: Sequence[Action]) -> Attempt:
    """Carry out actions in a new session, then drain; those that are not possible are left out.

    The failure's actions are those that were carried out, up to the one that failed.
    """
    try:
        session = Session(config)
    except Violation:  # filling the store failed: that is another run, of another configuration
        return Attempt(None, 0, None)
    done: list[Action] = []
    violation = None
    in_drain = False
    try:
        for wanted in actions:
            action = possible(session, wanted)
            if action is not None:
                done.append(action)
                carry_out(session, action)
        in_drain = True
        session.drain()
    except Violation as raised:
        violation = raised
    failure = None
    if violation is not None:
        failure = failure_of(session, violation, fold(done), in_drain=in_drain)
    return Attempt(failure, len(session.actions), session)


def failure_of(
    session: Session,
    violation: Violation,
    actions: tuple[Action, ...],
    *,
    in_drain: bool,
    seed: int | None = None,
    episode: int | None = None,
) -> Failure:
    """Return a violation as a failure, recognized if it is known."""
    known = known_finding(session.blamed, violation)
    return Failure(
        identifier=violation.identifier,
        reason=violation.reason,
        config=session.config,
        actions=actions,
        seed=seed,
        episode=episode,
        known=known.name if known else None,
        in_drain=in_drain,
        failed_at=session.actions[-1].name if session.actions else "",
    )
