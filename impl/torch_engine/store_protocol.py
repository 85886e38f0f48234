"""What the engine's workers ask of the external store, in Mooncake's words.

Calls are batched, answer per key, and never raise for what may happen: 0 is success, a positive
answer to a get is the number of bytes read, a negative one is one of the codes below.

>>> code_name(-704), code_name(-1)
('OBJECT_NOT_FOUND', '-1')
>>> encode_key("run", StoreKey(0, 1, "a/b"))
'run/0/1/a%2Fb'
>>> decode_key("run", "run/0/1/a%2Fb")
StoreKey(rank=0, group=1, prefix='a/b')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

import attrs
import torch

OK = 0
EXISTS = 1
NO_SPACE = -200
"""No room for the value now: back-pressure, the store evicts later."""
INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704
OBJECT_HAS_LEASE = -706
LEASE_EXPIRED = -707
"""The lease ran out during the get: the bytes may be another value's."""
TRANSFER_FAILED = -800
RPC_FAILED = -900
RPC_TIMEOUT = -901

CODES = {
    "OK": OK,
    "NO_SPACE": NO_SPACE,
    "INVALID_PARAMS": INVALID_PARAMS,
    "OBJECT_NOT_FOUND": OBJECT_NOT_FOUND,
    "OBJECT_HAS_LEASE": OBJECT_HAS_LEASE,
    "LEASE_EXPIRED": LEASE_EXPIRED,
    "TRANSFER_FAILED": TRANSFER_FAILED,
    "RPC_FAILED": RPC_FAILED,
    "RPC_TIMEOUT": RPC_TIMEOUT,
}


def code_name(code: int) -> str:
    """Return the name of a return code, or the number where it has none."""
    return next((name for name, known in CODES.items() if known == code), str(code))


class StoreClosed(RuntimeError):
    """A store was used after ``close``."""


class StoreUnavailable(RuntimeError):
    """A store cannot be had; one line says why and what to do."""


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

    @property
    def nbytes(self) -> int:
        """The bytes of both tensors."""
        return self.digests.nbytes + self.payload.nbytes

    def clone(self) -> Value:
        """Return the same bytes in memory of their own."""
        return Value(self.digests.clone(), self.payload.clone())


class Store(Protocol):
    """One client of an external store. The first write of a key wins.

    Every method raises StoreClosed after ``close``, except ``close`` itself.
    """

    def batch_is_exist(self, keys: Sequence[StoreKey]) -> list[int]:
        """Return 1 for each key that exists, 0 for each that does not, or a negative code."""

    def batch_put_from(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        """Copy each value under its key unless the key exists; return a code for each."""

    def batch_get_into(self, keys: Sequence[StoreKey], values: Sequence[Value]) -> list[int]:
        """Copy what is stored into ``values``; return for each the bytes read, or a code."""

    def remove_all(self, force: bool = False) -> int:
        """Remove all keys, leased ones only with ``force``; return how many, or a code."""

    def close(self) -> None:
        """Leave the store; what this client owns goes with it. A second call does nothing."""


_NAMESPACE = re.compile(r"[A-Za-z0-9_-]+")


def require_namespace(namespace: str) -> str:
    """Return ``namespace``. Raises ValueError if it could be mistaken for more of the key."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            f"namespace {namespace!r}: must be letters, digits, '-' and '_'; choose another"
        )
    return namespace


def encode_key(namespace: str, key: StoreKey) -> str:
    """Return the string that stands for ``key``: no two keys of any two namespaces share one."""
    prefix = quote(key.prefix, safe="", errors="surrogatepass")
    return f"{namespace}/{key.rank}/{key.group}/{prefix}"


def decode_key(namespace: str, text: str) -> StoreKey:
    """Return the key that ``text`` stands for. Raises ValueError for another namespace's."""
    found, _, rest = text.partition("/")
    if found != namespace:
        raise ValueError(f"key {text!r}: not of namespace {namespace!r}")
    rank, group, prefix = rest.split("/")
    return StoreKey(int(rank), int(group), unquote(prefix, errors="surrogatepass"))
