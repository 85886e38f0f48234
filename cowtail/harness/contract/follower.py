"""The model follows decisions that somebody else takes, and is held against what is then seen.

Every decision must be one that the model allows, with the outcome that the model computes for it;
after every action, everything that can be observed must be what the model predicts: blocks,
references, keys, copies, handoffs, jobs, pins, queues, the store. Blocks are named by their ids on
both sides: which one is taken next is part of the contract, since it decides what is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from cowtail.harness.differences import Difference, differences
from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.errors import NotEnabled
from cowtail.models.observations import (
    Effects,
    Observation,
    Pin,
    RankView,
    RequestView,
    Status,
    StoreEntry,
)
from cowtail.models.scope import Scope
from cowtail.models.state import State


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
        self.scope = scope
        self.state: State = attrs.evolve(lifecycle.initial(scope), store=tuple(sorted(store)))
        self.effects = Effects()

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

    def allows(self, action: Action) -> bool:
        """Whether the model allows an action now."""
        try:
            lifecycle.step(self.scope, self.state, action)
        except NotEnabled:
            return False
        return True

    def compare(self, seen: Observation) -> None:
        """Hold what is seen against what the model predicts. Raises OutOfContract."""
        predicted = lifecycle.observe(self.scope, self.state, seen.effects)
        if _facts(predicted) != _facts(seen):
            raise OutOfContract(_told(differences(_comparable(predicted), _comparable(seen))))

    def compare_ranks(self, seen: Seen) -> None:
        """Hold what the ranks and the store show against what the model predicts.

        Enough after what only device and ranks do. Raises OutOfContract.
        """
        ranks = lifecycle.observe_ranks(self.scope, self.state)
        expect("ranks", _facts_of_ranks(ranks), _facts_of_ranks(seen.ranks))
        expect("inbox", sorted(self.state.inbox), sorted(seen.inbox))
        said, shown = _keys_of_store(self.state.store), _keys_of_store(seen.store)
        if said != shown:
            lacking, more = sorted(set(said) - set(shown)), sorted(set(shown) - set(said))
            raise OutOfContract(f"store: the engine lacks {lacking[:3]}, and has {more[:3]} beside")


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
    """Return what is compared of an observation, as plain values: see ``_comparable``."""
    return (
        [_facts_of_request(view) for view in seen.requests],
        seen.ref_counts,
        seen.free,
        [keys if len(keys) < 3 else (keys[0], *sorted(keys[1:])) for keys in seen.keys],
        sorted(seen.pins, key=_job_of),
        seen.queued_tails,
        _facts_of_ranks(seen.ranks),
        sorted(seen.inbox),
        _keys_of_store(seen.store),
        sorted(held.request for held in seen.held),
        [blocks for _, blocks in seen.deferred],
    )


def _facts_of_ranks(ranks: Sequence[RankView]) -> list[tuple[object, ...]]:
    return [(r.queue, r.outbox, r.saved, r.loads, r.skipping) for r in ranks]


def _keys_of_store(store: Sequence[StoreEntry]) -> list[tuple[int, int, str]]:
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
