"""A store that answers as it is told to, in front of one that answers as it can.

The environment decides how a store answers one job, one load, or one lookup; this is where its
decision reaches the code that has to cope with the answer. Works on any ``Store``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from cowtail.impl.torch_engine.store_protocol import (
    NO_SPACE,
    TRANSFER_FAILED,
    Store,
    StoreKey,
    Value,
)
from cowtail.models.actions import JobOutcome

_CODES = {
    JobOutcome.FAILED: TRANSFER_FAILED,
    JobOutcome.PARTIAL: TRANSFER_FAILED,
    JobOutcome.NO_SPACE: NO_SPACE,
}


class StoreCheckFailed(RuntimeError):
    """An existence check did not answer."""


class ScriptedStore:
    """Hands every call to ``store``, but for those that a script answers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._puts = JobOutcome.OK
        self._gets: int | None = None
        self._checks: int | None = None

    @contextlib.contextmanager
    def answering(
        self,
        puts: JobOutcome = JobOutcome.OK,
        *,
        gets: int | None = None,
        checks: int | None = None,
    ) -> Iterator[None]:
        """Within the block puts go as ``puts`` says; ``gets`` and ``checks`` fail with a code."""
        before = self._puts, self._gets, self._checks
        self._puts, self._gets, self._checks = puts, gets, checks
        try:
            yield
        finally:
            self._puts, self._gets, self._checks = before

    def batch_is_exist(self, keys: Sequence[StoreKey]) -> list[int]:
        """Ask the store. Raises StoreCheckFailed where the script says so."""
        if self._puts is JobOutcome.CHECK_FAILED:
            raise StoreCheckFailed(f"existence of {len(keys)} keys: the check failed; try later")
        if self._checks is not None:
            return [self._checks] * len(keys)
        return self.store.batch_is_exist(keys)

    def batch_put_from(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        """Put what the script lets through: everything, nothing, or the first."""
        code = _CODES.get(self._puts)
        if code is None:
            return self.store.batch_put_from(keys, values)
        through = 1 if self._puts is JobOutcome.PARTIAL else 0
        codes = self.store.batch_put_from(keys[:through], values[:through])
        return codes + [code] * (len(keys) - len(codes))

    def batch_get_into(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        """Get from the store, or fail as the script says."""
        if self._gets is not None:
            return [self._gets] * len(keys)
        return self.store.batch_get_into(keys, values)
