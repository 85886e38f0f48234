"""The model follows decisions that somebody else takes, and is held against what is then seen.

Every decision must be one that the model allows, with the outcome that the model computes for it;
after every action, everything that can be observed must be what the model predicts: blocks,
references, keys, copies, handoffs, jobs, pins, queues, the store. Blocks are named by their ids on
both sides: which one is taken next is part of the contract, since it decides what is evicted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs

from cowtail.harness.differences import Difference, differences
from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import (
    Effects,
    Key,
    Observation,
    Pin,
    RankView,
    RequestView,
    Status,
    StoreEntry,
)
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import RankWorker, Request, State

Part = TypeVar("Part")
Facts = TypeVar("Facts")


_SCOPES_REMEMBERED = 1024


class NotCovered(Exception):
    """Something happened that the model does not describe; following ends, saying what."""


@attrs.frozen
class Seen:
    """What the ranks and the store show: see ``Observation``."""

    ranks: tuple[RankView, ...]
    inbox: tuple[tuple[int, int], ...]
    store: tuple[StoreEntry, ...]


class OutOfContract(AssertionError):
    """A decision that the model does not allow, or something seen that it does not predict."""


class Follower:
    """The model at the side of a scheduler.

    ``state`` is the model's, ``effects`` what the last action had.
    """

    def __init__(self, scope: Scope, store: Iterable[StoreEntry] = ()) -> None:
        """Start in the initial state, with what the external store holds already."""
        self.scope = _one_of_equal(scope)
        self.state: State = attrs.evolve(lifecycle.initial(scope), store=tuple(sorted(store)))
        self.effects = Effects()
        self._kept: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._agreed: dict[str, tuple[object, object]] = {}

    def take(self, action: Action) -> Effects:
        """Carry an action out. Raises OutOfContract if the model does not allow it."""
        try:
            transition = lifecycle.step(self.scope, self.state, action)
        except NotEnabled as error:
            raise OutOfContract(f"the model does not allow {error}") from None
        if transition.state.failure:
            raise OutOfContract(f"{action}: {transition.state.failure}")
        self.state, self.effects = transition.state, transition.effects
        return self.effects

    def share_store(self, store: tuple[StoreEntry, ...]) -> None:
        """Take over what the store holds: another engine, followed by itself, works on it too."""
        self.state = attrs.evolve(self.state, store=store)

    def allows(self, action: Action) -> bool:
        """Whether the model allows an action now."""
        try:
            lifecycle.step(self.scope, self.state, action)
        except NotEnabled:
            return False
        return True

    def compare(self, seen: Observation) -> None:
        """Hold what is seen against what the model predicts. Raises OutOfContract."""
        if (
            self._predicted() != _facts(seen)
            or not self._agree("keys", self._said_keys(), self._shown_keys(seen.keys))
            or not self._agree("store", self._said_store(), self._shown_store(seen.store))
        ):
            predicted = lifecycle.observe(self.scope, self.state, seen.effects)
            raise OutOfContract(_told(differences(_comparable(predicted), _comparable(seen))))

    def compare_ranks(self, seen: Seen) -> None:
        """Hold what the ranks and the store show against what the model predicts.

        Enough after what only device and ranks do. Raises OutOfContract.
        """
        expect("ranks", self._predicted_ranks(), [_facts_of_rank(rank) for rank in seen.ranks])
        expect("inbox", sorted(self.state.inbox), sorted(seen.inbox))
        said, shown = self._said_store(), self._shown_store(seen.store)
        if not self._agree("store", said, shown):
            lacking, more = sorted(set(said) - set(shown)), sorted(set(shown) - set(said))
            raise OutOfContract(f"store: the engine lacks {lacking[:3]}, and has {more[:3]} beside")

    def _predicted(self) -> tuple[object, ...]:
        """Return what ``_facts`` says of what the model predicts."""
        scope, state = self.scope, self.state
        requests = [
            self._once(
                ("request", index), request, functools.partial(_predicted_request, scope, spec)
            )
            for index, (spec, request) in enumerate(
                zip(scope.requests, state.requests, strict=True)
            )
        ]
        pins = (Pin(pin.job, pin.blocks, pin.ranks_owed) for pin in state.pins)
        return (
            requests,
            state.pool.ref_counts,
            state.pool.free,
            sorted(pins, key=_job_of),
            tuple(job.job for job in state.queued_tails),
            self._predicted_ranks(),
            sorted(state.inbox),
            sorted(scope.requests[held.request].name for held in state.held),
            [entry.blocks for entry in state.deferred],
        )

    def _predicted_ranks(self) -> list[tuple[object, ...]]:
        predicted = functools.partial(_predicted_rank, self.scope)
        return [
            self._once(("rank", index), rank, predicted)
            for index, rank in enumerate(self.state.ranks)
        ]

    def _said_keys(self) -> list[tuple[Key, ...]]:
        return self._once(("keys", 0), self.state.pool.keys, _facts_of_keys)

    def _shown_keys(self, keys: tuple[tuple[Key, ...], ...]) -> list[tuple[Key, ...]]:
        return self._once(("keys shown", 0), keys, _facts_of_keys)

    def _said_store(self) -> list[tuple[int, int, str]]:
        return self._once(("store", 0), self.state.store, _facts_of_store)

    def _shown_store(self, store: tuple[StoreEntry, ...]) -> list[tuple[int, int, str]]:
        return self._once(("store shown", 0), store, _facts_of_store)

    def _agree(self, place: str, said: object, shown: object) -> bool:
        """Whether two facts are equal; those that were, and are the same objects still, are."""
        kept = self._agreed.get(place)
        if kept is not None and kept[0] is said and kept[1] is shown:
            return True
        if said != shown:
            return False
        self._agreed[place] = (said, shown)
        return True

    def _once(self, place: tuple[str, int], part: Part, facts: Callable[[Part], Facts]) -> Facts:
        """Return the facts of a part of the state, worked out anew only if it is another part."""
        kept = self._kept.get(place)
        if kept is None or kept[0] is not part:
            kept = self._kept[place] = (part, facts(part))
        told: Facts = kept[1]
        return told


@functools.lru_cache(_SCOPES_REMEMBERED)
def _one_of_equal(scope: Scope) -> Scope:
    """Return the first scope that is equal: rules remember by scope, and compare all its fields."""
    return scope


def expect(what: str, predicted: object, seen: object) -> None:
    """Raise OutOfContract, naming ``what``, unless the two are equal."""
    if predicted != seen:
        raise OutOfContract(f"{what}: the model says {predicted}, the engine {seen}")


def _told(found: tuple[Difference, ...], limit: int = 3) -> str:
    told = "; ".join(
        f"{d.field} {d.where}: model {d.model}, engine {d.engine}" for d in found[:limit]
    )
    more = f" (and {len(found) - limit} more differences)" if len(found) > limit else ""
    return told + more


def _facts(seen: Observation) -> tuple[object, ...]:
    """Return what is compared of an observation, as plain values: see ``_comparable``.

    Keys and store are compared apart: they are large, and most actions leave them as they were.
    """
    return (
        [_facts_of_request(view) for view in seen.requests],
        seen.ref_counts,
        seen.free,
        sorted(seen.pins, key=_job_of),
        seen.queued_tails,
        [_facts_of_rank(rank) for rank in seen.ranks],
        sorted(seen.inbox),
        sorted(held.request for held in seen.held),
        [blocks for _, blocks in seen.deferred],
    )


def _facts_of_keys(keys: Sequence[tuple[Key, ...]]) -> list[tuple[Key, ...]]:
    return [each if len(each) < 3 else (each[0], *sorted(each[1:])) for each in keys]


def _facts_of_rank(rank: RankView) -> tuple[object, ...]:
    return (rank.queue, rank.outbox, rank.saved, rank.loads, rank.skipping)


def _predicted_rank(scope: Scope, rank: RankWorker) -> tuple[object, ...]:
    return _facts_of_rank(lifecycle.observe_rank(scope, rank))


def _predicted_request(scope: Scope, spec: RequestSpec, request: Request) -> tuple[object, ...]:
    return _facts_of_request(lifecycle.observe_request(scope, spec, request))


def _facts_of_store(store: tuple[StoreEntry, ...]) -> list[tuple[int, int, str]]:
    return [(entry.rank, entry.group, entry.prefix) for entry in store]


def _facts_of_request(view: RequestView) -> tuple[object, ...]:
    if view.status is Status.FINISHED:
        return (view.status, view.tables, view.markers)
    status = Status.WAITING if view.status is Status.PREEMPTED else view.status
    junction = view.junction if status is Status.RUNNING else 0
    return (status, view.tables, view.markers, view.computed, view.known, junction)


def _job_of(pin: Pin) -> int:
    return pin.job


def _comparable(seen: Observation) -> Observation:
    """Return an observation without what a scheduler of its own has no counterpart of.

    The bytes of blocks and of what is stored are left out: the engine's own properties hold them to
    the truth. How long
    a deferred free waits is left out, not which. A finished request has no more to compare.
    """
    return attrs.evolve(
        seen,
        requests=tuple(
            attrs.evolve(
                view,
                status=Status.WAITING if view.status is Status.PREEMPTED else view.status,
                computed=0 if view.status is Status.FINISHED else view.computed,
                known=0 if view.status is Status.FINISHED else view.known,
                junction=0 if view.status is not Status.RUNNING else view.junction,
                worker_tables=(),
                found=None,
                leased=False,
            )
            for view in seen.requests
        ),
        keys=tuple((*keys[:1], *sorted(keys[1:])) for keys in seen.keys),
        inbox=tuple(sorted(seen.inbox)),
        pins=tuple(sorted(seen.pins, key=_job_of)),
        ranks=tuple(attrs.evolve(rank, loaded=()) for rank in seen.ranks),
        held=tuple(
            attrs.evolve(held, ranks_owed=())
            for held in sorted(seen.held, key=lambda held: held.request)
        ),
        store=tuple(attrs.evolve(entry, content=()) for entry in seen.store),
        deferred=tuple((0, blocks) for _, blocks in seen.deferred),
        memory=(),
        loads=(),
        load_inbox=(),
        steps_in_flight=0,
        untold=(),
        effects=Effects(),
    )
