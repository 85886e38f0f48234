"""The real Mooncake store behind the protocol of ``store_protocol``, over TCP loopback.

Needs the package ``mooncake-transfer-engine-non-cuda`` and a master (``mooncake_master``). Values
are staged in a registered buffer; digests and payload of a block are two buffers of one object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from cowtail.impl.torch_engine.mooncake_master import why_not
from cowtail.impl.torch_engine.store_base import StoreBase
from cowtail.impl.torch_engine.store_protocol import (
    EXISTS,
    OK,
    StoreKey,
    StoreUnavailable,
    Value,
    code_name,
    encode_key,
    require_namespace,
)

if TYPE_CHECKING:
    from mooncake.store import MooncakeDistributedStore

MIB = 2**20


class MooncakeStore(StoreBase):
    """A client of the master at ``master`` ("127.0.0.1:PORT"), with memory of its own.

    ``namespace`` keeps keys of different runs apart. ``segment_bytes`` is the memory that the
    client offers; its own puts go there, so that they do not depend on the health of other
    clients. ``staging_bytes`` bounds one value; larger batches are split.

    Mooncake crashes the process when it is called before setup or after close; here the first
    cannot happen and the second raises StoreClosed. Closing takes a second or two, and about
    17 seconds if the master is dead.

    Raises StoreUnavailable where Mooncake cannot run or no master answers.
    """

    def __init__(
        self,
        master: str,
        *,
        namespace: str,
        segment_bytes: int = 64 * MIB,
        staging_bytes: int = 8 * MIB,
    ) -> None:
        super().__init__()
        self._namespace = require_namespace(namespace)
        self._client = _connect(master, segment_bytes, staging_bytes)
        self._config = _own_segment_first(self._client)
        self._staging = torch.zeros(staging_bytes, dtype=torch.uint8)
        self._address = self._staging.data_ptr()
        self._values = _StoredValues(self)
        code = self._client.register_buffer(self._address, staging_bytes)
        if code != OK:
            self.close()
            raise StoreUnavailable(
                f"staging_bytes={staging_bytes}: Mooncake refused the buffer "
                f"({code_name(code)}); lower it"
            )

    @property
    def values(self) -> Mapping[StoreKey, Value]:
        """What this client put and the store still has, read back from the store when asked.

        In the order in which they were first put, as far as this client knows: it is not told of
        evictions. Asking renews leases, as any existence check or get does.
        """
        return self._values

    def _batch_is_exist(self, keys: Sequence[StoreKey]) -> list[int]:
        return list(self._client.batch_is_exist(self._names(keys)))

    def _batch_put_from(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        codes: list[int] = []
        for first, last in self._batches(values):
            rows = [
                self._stage(value, offset) for value, offset in self._placed(values[first:last])
            ]
            codes += self._client.batch_put_from_multi_buffers(
                self._names(keys[first:last]),
                [pointers for pointers, _ in rows],
                [sizes for _, sizes in rows],
                self._config,
            )
        for key, value, code in zip(keys, values, codes, strict=True):
            if code >= OK:
                self._values.note(key, value)
        return codes

    def _batch_get_into(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        codes: list[int] = []
        for first, last in self._batches(values):
            placed = self._placed(values[first:last])
            rows = [self._place(value, offset) for value, offset in placed]
            read = self._client.batch_get_into_multi_buffers(
                self._names(keys[first:last]),
                [pointers for pointers, _ in rows],
                [sizes for _, sizes in rows],
            )
            for (value, offset), code in zip(placed, read, strict=True):
                if code > OK:
                    self._unstage(value, offset)
            codes += read
        return codes

    def remove(self, key: StoreKey, force: bool = False) -> int:
        """Remove a key, a leased one only with ``force``; return a code."""
        self._require_open()
        code = int(self._client.remove(encode_key(self._namespace, key), force))
        if code == OK:
            self._values.forget([key])
        return code

    def remove_all(self, force: bool = False) -> int:
        """Remove all keys of the namespace, leased ones only with ``force``.

        Returns how many, or a code. Other runs' keys stay, which Mooncake's own call would remove.
        """
        self._require_open()
        code = int(self._client.remove_by_regex(f"^{re.escape(self._namespace)}/", force))
        if force and code >= OK:
            self._values.forget(None)
        return code

    def evict(self, key: StoreKey) -> None:
        """Drop one key, leased or not. Raises KeyError if it is not there."""
        code = self.remove(key, force=True)
        if code != OK:
            raise KeyError(f"{key}: not in the store ({code_name(code)}); evict a key that is")

    def _close(self) -> None:
        self._client.unregister_buffer(self._address)
        self._client.close()

    def _names(self, keys: Sequence[StoreKey]) -> list[str]:
        return [encode_key(self._namespace, key) for key in keys]

    def _batches(self, values: Sequence[Value]) -> Iterator[tuple[int, int]]:
        """Yield ranges of values that fit the staging buffer together.

        Raises ValueError, before the first, for a value that does not fit alone.
        """
        room = len(self._staging)
        largest = max((value.nbytes for value in values), default=0)
        if largest > room:
            raise ValueError(f"value of {largest} bytes: above staging_bytes={room}; raise it")
        first, used = 0, 0
        for index, value in enumerate(values):
            if used + value.nbytes > room:
                yield first, index
                first, used = index, 0
            used += value.nbytes
        if first < len(values):
            yield first, len(values)

    @staticmethod
    def _placed(values: Sequence[Value]) -> list[tuple[Value, int]]:
        """Return each value with its offset in the staging buffer."""
        placed, offset = [], 0
        for value in values:
            placed.append((value, offset))
            offset += value.nbytes
        return placed

    def _place(self, value: Value, offset: int) -> tuple[list[int], list[int]]:
        """Return the addresses and sizes of a value's two parts at ``offset``."""
        start, middle = self._address + offset, self._address + offset + value.digests.nbytes
        return [start, middle], [value.digests.nbytes, value.payload.nbytes]

    def _stage(self, value: Value, offset: int) -> tuple[list[int], list[int]]:
        for part in (value.digests, value.payload):
            self._staging[offset : offset + part.nbytes] = (
                part.contiguous().view(-1).view(torch.uint8)
            )
            offset += part.nbytes
        return self._place(value, offset - value.nbytes)

    def _unstage(self, value: Value, offset: int) -> None:
        for part in (value.digests, value.payload):
            # A copy, because a view of another type must start at a multiple of its size.
            held = self._staging[offset : offset + part.nbytes].clone()
            part.copy_(held.view(part.dtype).view(part.shape))
            offset += part.nbytes


class _StoredValues(Mapping[StoreKey, Value]):
    """Keys that a client put, in that order, with bytes that are read from the store."""

    def __init__(self, store: MooncakeStore) -> None:
        self._store = store
        self._shapes: dict[StoreKey, Value] = {}

    def note(self, key: StoreKey, value: Value) -> None:
        """Remember a key that was put, and what its value looks like."""
        self._shapes.setdefault(
            key, Value(torch.empty_like(value.digests), torch.empty_like(value.payload))
        )

    def forget(self, keys: Sequence[StoreKey] | None) -> None:
        """Forget keys that were removed, None for all: they may be put for the first time again."""
        for key in list(self._shapes) if keys is None else keys:
            self._shapes.pop(key, None)

    def __iter__(self) -> Iterator[StoreKey]:
        keys = list(self._shapes)
        codes = self._store.batch_is_exist(keys)
        return iter([key for key, code in zip(keys, codes, strict=True) if code == EXISTS])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, key: StoreKey) -> Value:
        value = self._shapes[key].clone()
        (code,) = self._store.batch_get_into([key], [value])
        if code <= OK:
            raise KeyError(f"{key}: cannot be read ({code_name(code)})")
        return value


def _connect(master: str, segment_bytes: int, buffer_bytes: int) -> MooncakeDistributedStore:
    """Return a client that is set up, the only state in which calling one is safe."""
    reason = why_not()
    if reason:
        raise StoreUnavailable(f"Mooncake: {reason}")
    # One try (a missing master costs 90 s otherwise), and errors only on stderr.
    os.environ.setdefault("MC_STORE_CLIENT_SETUP_RETRIES", "1")
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    code = client.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", master)
    if code != OK:
        raise StoreUnavailable(
            f"master {master!r}: no Mooncake master answers there ({code_name(code)}); start one"
        )
    return client


def _own_segment_first(client: MooncakeDistributedStore) -> object:
    from mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.preferred_segment = client.get_hostname()
    return config
