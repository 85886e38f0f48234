"""The external store, in memory, with Mooncake's interface and return codes.

One :class:`Store` is shared by every rank and by every engine that uses it. A rank talks to it
through its own :class:`Transport`, whose "buffer addresses" are the block ids of that rank's
memory. As in Mooncake, the first value of a key is kept, and codes are returned, not raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from cowtail.impl.vllm_engine.memory import Memory, Page

OK = 0
NOT_FOUND = -704

PutCheck = Callable[[str, int, Memory], str | None]
"""(key, block, memory) -> why these bytes do not belong under this key, or None."""


@attrs.frozen
class Entry:
    """What a key says: whose memory the value is from, its group, and the prefix it stands for."""

    rank: int
    group: int
    prefix: str


class Store:
    """Keys and values, and what is known of the keys.

    ``authors`` says out of whose memory the value of a key was put; ``prefixes`` says which prefix
    a hash stands for, whichever engine made it; ``wrong``
    collects why a put was not what its key promises (S8).
    """

    def __init__(self) -> None:
        """Start empty."""
        self.values: dict[str, Page] = {}
        self.authors: dict[str, Memory] = {}
        self._second: Store | None = None
        self.prefixes: dict[bytes, str] = {}
        self.wrong: list[str] = []

    def of_child(self, child: int) -> Store:
        """Return the store of a MultiConnector's child: this one for the first."""
        if child == 0:
            return self
        if self._second is None:
            self._second = Store()
            self._second.prefixes, self._second.wrong = self.prefixes, self.wrong
        return self._second

    def copy(self) -> Store:
        """Return a store that holds the same, and is filled and emptied by itself."""
        copied = Store()
        copied.values, copied.prefixes = dict(self.values), dict(self.prefixes)
        copied.authors = dict(self.authors)
        if self._second is not None:
            second = copied.of_child(1)
            second.values, second.authors = dict(self._second.values), dict(self._second.authors)
        return copied

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield every key with what it says."""
        for key in self.values:
            yield key, self.entry(key)

    def entry(self, key: str) -> Entry:
        """Return what a key says: its rank, group and prefix ("?" if its hash is unknown)."""
        prefix = self.prefixes.get(bytes.fromhex(key.rsplit("@", 1)[1]), "?")
        return Entry(_number_in(key, "@tp_rank:"), _number_in(key, "@group:"), prefix)

    def evict(self, entry: Entry) -> None:
        """Forget the value of an entry. Raises KeyError if there is none."""
        del self.values[next(key for key, found in self.entries() if found == entry)]


def _number_in(key: str, field: str) -> int:
    return int(key.partition(field)[2].partition("@")[0])


class Transport:
    """One rank's connection to the store.

    ``failing`` is the code that every transfer answers while it is set: the driver sets it for
    the length of one job or load. ``refused`` counts the keys refused that way, ``missed`` those
    that were asked for and are not there; ``read`` are the keys that the last transfer read.
    """

    def __init__(self, store: Store, memory: Memory, check: PutCheck) -> None:
        """Connect ``memory`` to ``store``; every put is held to ``check``."""
        self._store = store
        self._memory = memory
        self._check = check
        self.failing: int | None = None
        self.refused = 0
        self.missed = 0
        self.read: list[str] = []

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """Return 1 for a key that is stored, else 0."""
        return [int(key in self._store.values) for key in keys]

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        config: object = None,
    ) -> list[int]:
        """Store blocks; return 0 or a negative code for each key."""
        codes = []
        for key, (block,) in zip(keys, addresses, strict=True):
            if self.failing is not None:
                self.refused += 1
                codes.append(self.failing)
                continue
            if (why := self._check(key, int(block), self._memory)) is not None:
                # Not raised: the sending thread swallows what the store raises.
                self._store.wrong.append(why)
            if key not in self._store.values:
                self._store.values[key] = self._memory.page(int(block))
                self._store.authors[key] = self._memory
            codes.append(OK)
        return codes

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
    ) -> list[int]:
        """Load blocks; return the bytes read (here: blocks) or a negative code for each key."""
        codes = []
        self.read.clear()
        for key, (block,) in zip(keys, addresses, strict=True):
            if self.failing is not None:
                self.refused += 1
                codes.append(self.failing)
            elif key in self._store.values:
                self._memory.restore(int(block), self._store.values[key])
                codes.append(1)
                self.read.append(key)
            else:
                self.missed += 1
                codes.append(NOT_FOUND)
        return codes
