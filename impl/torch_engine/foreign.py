"""Another engine with the same store, as far as one can see it: the entries that it puts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cowtail.impl.torch_engine.layout import CacheLayout
from cowtail.impl.torch_engine.request import Request
from cowtail.impl.torch_engine.store_protocol import Store, StoreKey
from cowtail.impl.torch_engine.true_contents import TrueContents
from cowtail.models.scope import Scope


class ForeignEngine:
    """Puts what a producer puts for a prompt: whole blocks, and what its replay boundary needs.

    ``contents``: one for each rank.
    """

    def __init__(self, scope: Scope, store: Store, contents: Sequence[TrueContents]) -> None:
        self.scope = scope
        self.layout = CacheLayout.of(scope)
        self.store = store
        self.contents = contents

    def put(self, request: Request) -> None:
        """Add every entry that does not exist, on every rank."""
        where = list(dict.fromkeys(self._boundaries(request.prompt_length)))
        keys, values = [], []
        for rank, contents in enumerate(self.contents):
            for group, boundary in where:
                keys.append(StoreKey(rank, group, request.prefix(boundary)))
                values.append(contents.value(request, group, boundary))
        self.store.batch_put_from(keys, values)

    def _boundaries(self, prompt_length: int) -> Iterator[tuple[int, int]]:
        """Yield the group and the length of each key."""
        replay = self.layout.replay_boundary(prompt_length)
        whole = self.layout.saved_whole(prompt_length)
        first = self.layout.saved_whole(replay)
        for index, group in enumerate(self.scope.groups):
            size = group.block_size
            last = min(whole, replay) if group.is_mamba else whole
            yield from ((index, boundary) for boundary in range(size, last + 1, size))
            if not self.layout.partial_hits or replay == 0:
                continue
            if group.is_mamba:
                yield index, replay
                continue
            proof = replay + self.layout.margin(index)
            for column in range(first // size, math.ceil(proof / size)):
                yield index, min((column + 1) * size, proof)
