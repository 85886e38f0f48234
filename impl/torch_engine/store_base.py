"""What all stores share: refusal after close, and failures that a test has planned.

A planned failure is decided before the store is asked, so the same plan works on the store in
memory and on a real one: a failing put writes nothing, whether or not the key exists.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Mapping, Sequence

from cowtail.impl.torch_engine.store_protocol import (
    INVALID_PARAMS,
    TRANSFER_FAILED,
    StoreClosed,
    StoreKey,
    Value,
)

Codes = Mapping[StoreKey, int]


class StoreBase(abc.ABC):
    """A store (see ``store_protocol.Store``) that fails when and where it is told to."""

    def __init__(self) -> None:
        self._closed = False
        self._all_puts: int | None = None
        self._puts: Codes = {}
        self._gets: Codes = {}
        self._exists: int | Exception | None = None

    @property
    @abc.abstractmethod
    def values(self) -> Mapping[StoreKey, Value]:
        """What is stored, with its bytes, in the order in which keys were first put."""

    @abc.abstractmethod
    def evict(self, key: StoreKey) -> None:
        """Drop one key, leased or not: what a store may do at any time once leases are over.

        Raises KeyError if it is not there.
        """

    @abc.abstractmethod
    def remove(self, key: StoreKey, force: bool = False) -> int:
        """Remove a key, a leased one only with ``force``; return a code."""

    @abc.abstractmethod
    def remove_all(self, force: bool = False) -> int:
        """Remove all keys, leased ones only with ``force``; return how many, or a code."""

    @abc.abstractmethod
    def _batch_is_exist(self, keys: Sequence[StoreKey]) -> list[int]: ...

    @abc.abstractmethod
    def _batch_put_from(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]: ...

    @abc.abstractmethod
    def _batch_get_into(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]: ...

    @abc.abstractmethod
    def _close(self) -> None: ...

    @contextlib.contextmanager
    def failing(self, code: int = TRANSFER_FAILED) -> Iterator[None]:
        """Within the block every put fails with ``code`` and writes nothing."""
        before, self._all_puts = self._all_puts, _failure(code)
        try:
            yield
        finally:
            self._all_puts = before

    @contextlib.contextmanager
    def failing_keys(
        self, *, puts: Codes | None = None, gets: Codes | None = None
    ) -> Iterator[None]:
        """Within the block puts and gets of these keys fail, each with its code; others do not."""
        before = self._puts, self._gets
        self._puts = {key: _failure(code) for key, code in (puts or {}).items()}
        self._gets = {key: _failure(code) for key, code in (gets or {}).items()}
        try:
            yield
        finally:
            self._puts, self._gets = before

    @contextlib.contextmanager
    def failing_exists(self, failure: int | Exception) -> Iterator[None]:
        """Within the block an existence check answers ``failure`` for every key, or raises it."""
        before = self._exists
        self._exists = failure if isinstance(failure, Exception) else _failure(failure)
        try:
            yield
        finally:
            self._exists = before

    def batch_is_exist(self, keys: Sequence[StoreKey]) -> list[int]:
        """Return 1 for each key that exists, 0 for each that does not, or a negative code.

        What exists is leased anew. Raises what ``failing_exists`` was given.
        """
        self._require_open()
        if isinstance(self._exists, Exception):
            raise self._exists
        if self._exists is not None:
            return [self._exists] * len(keys)
        return self._batch_is_exist(keys)

    def batch_put_from(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        """Copy each value under its key unless the key exists; return a code for each."""
        self._require_open()
        if len(keys) != len(values):
            return [INVALID_PARAMS] * len(keys)
        if self._all_puts is not None:
            return [self._all_puts] * len(keys)
        pairs = [(k, v) for k, v in zip(keys, values, strict=True) if k not in self._puts]
        codes = iter(self._batch_put_from([k for k, _ in pairs], [v for _, v in pairs]))
        return [self._puts[key] if key in self._puts else next(codes) for key in keys]

    def batch_get_into(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        """Copy what is stored into ``values``; return for each the bytes read, or a code.

        A value that is read is leased anew. Where the code is negative, what was in the value
        before may have been overwritten.
        """
        self._require_open()
        if len(keys) != len(values):
            return [INVALID_PARAMS] * len(keys)
        pairs = [(k, v) for k, v in zip(keys, values, strict=True) if k not in self._gets]
        codes = iter(self._batch_get_into([k for k, _ in pairs], [v for _, v in pairs]))
        return [self._gets[key] if key in self._gets else next(codes) for key in keys]

    def close(self) -> None:
        """Leave the store; what this client owns goes with it. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store was closed; open another")


def _failure(code: int) -> int:
    if code >= 0:
        raise ValueError(f"code {code}: a failure's code is negative; use one of CODES")
    return code
