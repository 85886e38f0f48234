"""The external store in memory, with Mooncake's batched calls, return codes and ways to fail.

Deterministic: a logical clock ages leases and notices dead clients (``advance``), and eviction,
which Mooncake does in the background, is a call (``make_room``, ``evict``).

>>> import torch
>>> store, key = InMemoryStore(), StoreKey(0, 1, "abc")
>>> store.batch_put_from([key], [Value(torch.tensor([7]), torch.zeros(1, 2))])
[0]
>>> store.batch_is_exist([key, StoreKey(1, 1, "abc")])
[1, 0]
>>> store.remove(key) == OBJECT_HAS_LEASE
True
>>> store.advance(store.lease_seconds)
>>> store.remove(key)
0
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import attrs

from cowtail.impl.torch_engine.store_base import StoreBase
from cowtail.impl.torch_engine.store_protocol import (
    EXISTS,
    INVALID_PARAMS,
    LEASE_EXPIRED,
    NO_SPACE,
    OBJECT_HAS_LEASE,
    OBJECT_NOT_FOUND,
    OK,
    RPC_FAILED,
    RPC_TIMEOUT,
    TRANSFER_FAILED,
    Store,
    StoreClosed,
    StoreKey,
    StoreUnavailable,
    Value,
)

__all__ = [
    "EXISTS",
    "INVALID_PARAMS",
    "LEASE_EXPIRED",
    "NO_SPACE",
    "OBJECT_HAS_LEASE",
    "OBJECT_NOT_FOUND",
    "OK",
    "REMOUNT_SECONDS",
    "RPC_FAILED",
    "RPC_TIMEOUT",
    "TRANSFER_FAILED",
    "InMemoryStore",
    "Store",
    "StoreBase",
    "StoreClosed",
    "StoreKey",
    "StoreUnavailable",
    "Value",
]

LOCAL = "local"
"""The client that owns what is put outside ``owned_by``."""

REMOUNT_SECONDS = 1.0
"""How long after a restart of the master the clients have offered their memory again."""


@attrs.define(eq=False)
class _Object:
    """What the master knows of a key. ``used``: when it was last used, in calls."""

    owner: str
    used: int
    leased_until: float = 0.0


class InMemoryStore(StoreBase):
    """Keys with real bytes, and the master's account of them.

    ``capacity_bytes`` is what each client offers, None for no limit. ``lease_seconds``: how long
    an existence check or a get keeps a key from being removed or evicted. ``client_ttl_seconds``:
    how long after its last sign of life a client is still believed to hold its keys.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        lease_seconds: float = 10.0,
        client_ttl_seconds: float = 10.0,
    ) -> None:
        super().__init__()
        if capacity_bytes is not None and capacity_bytes < 0:
            raise ValueError(f"capacity_bytes={capacity_bytes}: must be 0 or more; raise it")
        self.capacity_bytes = capacity_bytes
        self.lease_seconds = lease_seconds
        self.client_ttl_seconds = client_ttl_seconds
        self.now = 0.0
        self._values: dict[StoreKey, Value] = {}
        self._objects: dict[StoreKey, _Object] = {}
        self._owner = LOCAL
        self._dead: dict[str, float] = {}
        self._master_up = True
        self._mounted_at = 0.0
        self._uses = 0

    @property
    def values(self) -> dict[StoreKey, Value]:
        """What is stored, with its bytes, in the order in which keys were first put."""
        self._require_open()
        return self._values

    # What Mooncake's clients call.

    def _batch_is_exist(self, keys: Sequence[StoreKey]) -> list[int]:
        if not self._master_up:
            return [RPC_FAILED] * len(keys)
        return [self._is_exist(key) for key in keys]

    def _is_exist(self, key: StoreKey) -> int:
        if key not in self._objects:
            return 0
        self._lease(key)
        return EXISTS

    def _batch_put_from(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        if not self._master_up:
            return [RPC_FAILED] * len(keys)
        return [self._put(key, value) for key, value in zip(keys, values, strict=True)]

    def _put(self, key: StoreKey, value: Value) -> int:
        """Store a value: it is not leased by being put, and a key whose owner died still wins."""
        if value.nbytes == 0:
            return INVALID_PARAMS
        if key in self._objects:
            return OK
        if self.now < self._mounted_at or self.free_bytes(self._owner) < value.nbytes:
            return NO_SPACE
        self._values[key] = value.clone()
        self._objects[key] = _Object(self._owner, self._next_use())
        return OK

    def _batch_get_into(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        if not self._master_up:
            return [RPC_FAILED] * len(keys)
        return [self._get(key, into) for key, into in zip(keys, values, strict=True)]

    def _get(self, key: StoreKey, into: Value) -> int:
        if key not in self._objects:
            return OBJECT_NOT_FOUND
        self._lease(key)
        stored = self._values[key]
        if into.nbytes < stored.nbytes:
            return INVALID_PARAMS
        if into.nbytes > stored.nbytes or self._objects[key].owner in self._dead:
            return TRANSFER_FAILED
        into.digests.copy_(stored.digests)
        into.payload.copy_(stored.payload)
        return stored.nbytes

    def remove(self, key: StoreKey, force: bool = False) -> int:
        """Remove a key, a leased one only with ``force``; return a code."""
        self._require_open()
        if not self._master_up:
            return RPC_FAILED
        if key not in self._objects:
            return OBJECT_NOT_FOUND
        if self._leased(key) and not force:
            return OBJECT_HAS_LEASE
        self._drop(key)
        return OK

    def remove_all(self, force: bool = False) -> int:
        """Remove all keys, leased ones only with ``force``; return how many, or a code."""
        self._require_open()
        if not self._master_up:
            return RPC_FAILED
        going = [key for key in self._objects if force or not self._leased(key)]
        for key in going:
            self._drop(key)
        return len(going)

    def _close(self) -> None:
        """Do nothing: the bytes go with the object."""

    # What happens to a store by itself.

    def advance(self, seconds: float) -> None:
        """Let time pass: leases run out, and keys of dead clients are forgotten."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: time only passes; use 0 or more")
        self.now += seconds
        for owner in [owner for owner, until in self._dead.items() if until <= self.now]:
            del self._dead[owner]
            self.leave(owner)

    def evict(self, key: StoreKey) -> None:
        """Drop one key, leased or not: what a store may do at any time once leases are over.

        Raises KeyError if it is not there.
        """
        self._require_open()
        if key not in self._objects:
            raise KeyError(f"{key}: not in the store; evict a key that is")
        self._drop(key)

    def make_room(self, nbytes: int) -> list[StoreKey]:
        """Evict keys without a lease, least recently used first, until a client has ``nbytes``.

        Returns what was evicted. All that is leased stays, even if that is too much.
        """
        evicted = []
        for key in sorted(self._objects, key=lambda key: self._objects[key].used):
            if self.free_bytes(self._owner) >= nbytes:
                break
            if self._objects[key].owner == self._owner and not self._leased(key):
                self._drop(key)
                evicted.append(key)
        return evicted

    @contextlib.contextmanager
    def owned_by(self, owner: str) -> Iterator[None]:
        """Within the block another client puts: the bytes lie in that client's memory."""
        if owner in self._dead:
            raise ValueError(f"owner {owner!r}: it was killed; choose another or advance the clock")
        before, self._owner = self._owner, owner
        try:
            yield
        finally:
            self._owner = before

    def leave(self, owner: str) -> None:
        """Let a client leave in good order: its keys are gone at once."""
        for key in [key for key, known in self._objects.items() if known.owner == owner]:
            self._drop(key)

    def kill_owner(self, owner: str) -> None:
        """Let a client die: until the master notices, its keys exist and cannot be read."""
        self._dead[owner] = self.now + self.client_ttl_seconds

    def kill_master(self) -> None:
        """Let the master die: every call answers that it cannot be reached."""
        self._master_up = False

    def restart(self) -> None:
        """Start the master anew: all keys are gone, and puts find no space until remounted."""
        self._master_up = True
        self._mounted_at = self.now + REMOUNT_SECONDS
        self._dead.clear()
        self._values.clear()
        self._objects.clear()

    def free_bytes(self, owner: str = LOCAL) -> float:
        """Return the bytes that a client can still take; infinite without a capacity."""
        if self.capacity_bytes is None:
            return float("inf")
        owned = [key for key, known in self._objects.items() if known.owner == owner]
        return self.capacity_bytes - sum(self._values[key].nbytes for key in owned)

    def _lease(self, key: StoreKey) -> None:
        known = self._objects[key]
        known.leased_until = self.now + self.lease_seconds
        known.used = self._next_use()

    def _leased(self, key: StoreKey) -> bool:
        return self.now < self._objects[key].leased_until

    def _next_use(self) -> int:
        self._uses += 1
        return self._uses

    def _drop(self, key: StoreKey) -> None:
        del self._values[key], self._objects[key]
