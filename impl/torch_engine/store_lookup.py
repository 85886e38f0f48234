"""Lookups in the store, and the answers that requests hold until they are admitted.

A lookup asks for every key that could be part of a hit, in one batch, and then decides on that
snapshot alone: the same joint lookup as in the local cache, a key counting only where every rank
has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.loads import Present, Supply
from cowtail.impl.torch_engine.lookup import Column, JointLookup
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.scripted_store import ScriptedStore
from cowtail.impl.torch_engine.store_protocol import EXISTS, OK, StoreKey
from cowtail.models.observations import NULL_BLOCK
from cowtail.models.scope import Scope


class StoreKeys:
    """A snapshot of the store as a source of keys: it has no blocks, so all are null."""

    def __init__(self, present: Present) -> None:
        self._present = present

    def find(self, groups: Sequence[int], prefix: str) -> Column | None:
        """Return nulls if every group has the key."""
        if all((group, len(prefix)) in self._present for group in groups):
            return (NULL_BLOCK,) * len(groups)
        return None


class StoreLookup:
    """Looks requests up in a store, for connector ``child``."""

    def __init__(self, scope: Scope, child: int, lookup: JointLookup, store: ScriptedStore) -> None:
        self.scope = scope
        self.child = child
        self.layout = CacheLayout.of(scope)
        self.lookup = lookup
        self.store = store

    def find(self, request: Request) -> Supply:
        """Return what the store can supply now: nothing if it cannot be asked (R18)."""
        present = self.present(request)
        length = self.longest(present, request, request.known)
        if length == request.known:
            length = self.longest(present, request, request.known - 1)
        return Supply(self.child, length, present)

    def longest(self, present: Present, request: Request, most: int) -> int:
        """Return how many of at most ``most`` tokens the present keys can supply."""
        aligned = most - most % self.layout.alignment
        return self.lookup.find(StoreKeys(present), request.prefix(request.known), aligned).length

    def present(self, request: Request) -> Present:
        """Return which keys of the request's known tokens every rank has, by one batched check."""
        candidates = self.candidates(request)
        ranks = range(self.scope.num_ranks)
        keys = [
            StoreKey(rank, group, request.prefix(length))
            for group, length in candidates
            for rank in ranks
        ]
        codes = self.store.batch_is_exist(keys)
        if any(code < OK for code in codes):
            return frozenset()
        exist = [code == EXISTS for code in codes]
        return frozenset(
            candidate
            for index, candidate in enumerate(candidates)
            if self.counts(exist[index * len(ranks) : (index + 1) * len(ranks)])
        )

    def counts(self, exist: Sequence[bool]) -> bool:
        """Whether a key counts as present, given which ranks have it."""
        return all(exist)

    def candidates(self, request: Request) -> list[tuple[int, int]]:
        """Return the (group, length) of every key that a hit could rest on."""
        steps = [self.step(group.block_size) for group in self.scope.groups]
        return [
            (index, length)
            for index, step in enumerate(steps)
            for length in range(step, request.known + 1, step)
        ]

    def step(self, block_size: int) -> int:
        """Return the grid that a group's keys lie on, in tokens (R11)."""
        return self.layout.hash_unit if self.layout.partial_hits else block_size


@attrs.define(eq=False)
class _Answer:
    supply: Supply | None
    leased: bool


class HeldAnswers:
    """Answers of asynchronous lookups by request, and the leases that came with them.

    An answer is used once. Its lease protects what was found from eviction, and outlives the
    answer as long as the load that it led to.
    """

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}

    def hold(self, request: Request, supply: Supply) -> None:
        """Keep an answer; one that found something holds a lease."""
        if self.get(request.name) is not None:
            raise EngineError(f"request {request.name!r} holds an answer already; admit it first")
        self._answers[request.name] = _Answer(supply, leased=supply.length > 0)

    def get(self, name: str) -> Supply | None:
        """Return the answer that a request holds."""
        answer = self._answers.get(name)
        return answer.supply if answer is not None else None

    def use(self, name: str, *, loads: bool) -> None:
        """Use an answer up; its lease stays only if what it found is loaded."""
        answer = self._answers.get(name)
        if answer is None:
            return
        answer.supply = None
        if not loads:
            self.drop(name)

    def drop(self, name: str) -> None:
        """Forget an answer and its lease."""
        self._answers.pop(name, None)

    def drop_all(self) -> None:
        """Forget every answer and every lease."""
        self._answers.clear()

    def leased(self, name: str) -> bool:
        """Whether a request has a lease."""
        answer = self._answers.get(name)
        return answer is not None and answer.leased

    def expire(self, name: str) -> None:
        """End a lease; the answer stays. Raises EngineError if there is none."""
        if not self.leased(name):
            raise EngineError(f"request {name!r} has no lease; look it up first")
        self._answers[name].leased = False
