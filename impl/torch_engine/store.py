"""The external store in memory, with Mooncake's batched calls and return codes.

Calls answer per key and never raise for what may happen: 0 is success, a negative number says
what went wrong. The first write of a key wins; a later one answers 0 and changes nothing.

>>> store = InMemoryStore()
>>> key = StoreKey(0, 1, "abc")
>>> store.batch_put_from([key], [Value(torch.tensor([7]), torch.zeros(1, 2))])
[0]
>>> store.batch_is_exist([key, StoreKey(1, 1, "abc")])
[1, 0]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs
import torch

OK = 0
EXISTS = 1
OBJECT_NOT_FOUND = -704
INVALID_PARAMS = -600
TRANSFER_FAILED = -800


class StoreKey(NamedTuple):
    """A key of the store: every rank stores its own shard of every group."""

    rank: int
    group: int
    prefix: str


@attrs.frozen(eq=False)
class Value:
    """The slots of one block on the host: digests int64 [n], payload float32 [n, width]."""

    digests: torch.Tensor
    payload: torch.Tensor


class InMemoryStore:
    """Keys with real bytes. ``values`` is in the order in which keys were first put."""

    def __init__(self) -> None:
        self.values: dict[StoreKey, Value] = {}
        self._failure = OK

    @contextlib.contextmanager
    def failing(self, code: int = TRANSFER_FAILED) -> Iterator[None]:
        """Within the block every put fails with ``code`` and writes nothing."""
        self._failure = code
        try:
            yield
        finally:
            self._failure = OK

    def batch_is_exist(self, keys: Sequence[StoreKey]) -> list[int]:
        """Return 1 for each key that exists, 0 for each that does not."""
        return [EXISTS if key in self.values else 0 for key in keys]

    def batch_put_from(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        """Copy each value under its key unless the key exists; return a code for each."""
        if len(keys) != len(values):
            return [INVALID_PARAMS] * len(keys)
        if self._failure:
            return [self._failure] * len(keys)
        for key, value in zip(keys, values, strict=True):
            if key not in self.values:
                self.values[key] = Value(value.digests.clone(), value.payload.clone())
        return [OK] * len(keys)

    def batch_get_into(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        """Copy what is stored into ``values``; return for each the bytes read, or a code."""
        codes = []
        for key, into in zip(keys, values, strict=True):
            stored = self.values.get(key)
            if stored is None:
                codes.append(OBJECT_NOT_FOUND)
            elif stored.digests.shape != into.digests.shape:
                codes.append(INVALID_PARAMS)
            else:
                into.digests.copy_(stored.digests)
                into.payload.copy_(stored.payload)
                codes.append(stored.digests.nbytes + stored.payload.nbytes)
        return codes
