"""What the store in memory predicts, real Mooncake does: one suite, run against both.

A site is a store with the world around it: time, other clients, the master. In memory all of it
is a call; for the real one time is waited for, and clients and master are processes.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest
import torch

from cowtail.impl.torch_engine.mooncake_master import MooncakeMaster
from cowtail.impl.torch_engine.mooncake_store import MooncakeStore
from cowtail.impl.torch_engine.store import (
    EXISTS,
    INVALID_PARAMS,
    NO_SPACE,
    OBJECT_HAS_LEASE,
    OBJECT_NOT_FOUND,
    OK,
    RPC_FAILED,
    RPC_TIMEOUT,
    TRANSFER_FAILED,
    InMemoryStore,
    StoreBase,
    StoreClosed,
    StoreKey,
    Value,
)

MIB = 2**20
CAPACITY = 16 * MIB
LEASE_SECONDS = 4.0
CLIENT_TTL_SECONDS = 5.0

A, B, C, D = (
    StoreKey(rank, group, p)
    for rank, group, p in [(0, 0, "a"), (1, 0, "a"), (0, 1, "a/%"), (0, 0, "é")]
)


class Client(Protocol):
    """Another client of the same store."""

    def put(self, key: StoreKey, number: int) -> int: ...

    def leave(self) -> None: ...

    def die(self) -> None: ...


class Site(Protocol):
    """A store and the world around it."""

    store: StoreBase

    def advance(self, seconds: float) -> None:
        """Let time pass."""

    def make_room(self, nbytes: int) -> None:
        """Let the store evict, if it does not do so by itself."""

    def client(self, name: str) -> Client: ...

    def kill_master(self) -> None: ...

    def restart_master(self) -> None: ...

    def close(self) -> None: ...


class MemorySite:
    def __init__(self) -> None:
        self.memory = InMemoryStore(
            capacity_bytes=CAPACITY,
            lease_seconds=LEASE_SECONDS,
            client_ttl_seconds=CLIENT_TTL_SECONDS,
        )
        self.store: StoreBase = self.memory

    def advance(self, seconds: float) -> None:
        self.memory.advance(seconds)

    def make_room(self, nbytes: int) -> None:
        self.memory.make_room(nbytes)

    def client(self, name: str) -> MemoryClient:
        return MemoryClient(self.memory, name)

    def kill_master(self) -> None:
        self.memory.kill_master()

    def restart_master(self) -> None:
        self.memory.restart()

    def close(self) -> None:
        self.memory.close()


class MemoryClient:
    def __init__(self, store: InMemoryStore, name: str) -> None:
        self._store = store
        self._name = name

    def put(self, key: StoreKey, number: int) -> int:
        with self._store.owned_by(self._name):
            return self._store.batch_put_from([key], [value(number)])[0]

    def leave(self) -> None:
        self._store.leave(self._name)

    def die(self) -> None:
        self._store.kill_owner(self._name)


class MooncakeSite:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.master = MooncakeMaster(
            lease_ms=int(LEASE_SECONDS * 1000), client_ttl_seconds=int(CLIENT_TTL_SECONDS)
        )
        self.store: StoreBase = MooncakeStore(
            self.master.address, namespace=namespace, segment_bytes=CAPACITY
        )
        self._clients: list[ProcessClient] = []

    def advance(self, seconds: float) -> None:
        # Its clock is not ours to the millisecond.
        time.sleep(seconds + 0.05)

    def make_room(self, nbytes: int) -> None:
        """Do nothing: Mooncake evicts in the background once a put found no space."""

    def client(self, name: str) -> ProcessClient:
        self._clients.append(ProcessClient(self.master.address, self._namespace))
        return self._clients[-1]

    def kill_master(self) -> None:
        self.master.kill()

    def restart_master(self) -> None:
        if self.master.pid:
            self.master.kill()
        self.master.start()

    def close(self) -> None:
        for client in self._clients:
            client.die()
        if not self.master.pid:
            # A client takes 17 s to leave a master that is gone.
            self.master.start()
        self.store.close()
        self.master.stop()


class ProcessClient:
    def __init__(self, master: str, namespace: str) -> None:
        script = Path(__file__).with_name("client_process.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), master, namespace, str(CAPACITY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._answer() == "ready"

    def put(self, key: StoreKey, number: int) -> int:
        code = self._ask(f"put {key.rank} {key.group} {key.prefix} {number} {MIB}")
        assert isinstance(code, int)
        return code

    def leave(self) -> None:
        assert self._ask("leave") == "left"
        self._process.wait()

    def die(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, line: str) -> object:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> object:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


BOTH = ["memory", pytest.param("mooncake", marks=pytest.mark.mooncake)]


@pytest.fixture(scope="module")
def standing_site() -> Iterator[MooncakeSite]:
    """A real store for many tests: to leave one takes a second or two."""
    made = MooncakeSite("contract")
    yield made
    made.close()


@pytest.fixture(params=BOTH)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site without keys, to be left without other clients and with its master as it is."""
    if request.param == "memory":
        yield MemorySite()
    else:
        standing: MooncakeSite = request.getfixturevalue("standing_site")
        standing.store.remove_all(force=True)
        yield standing


@pytest.fixture(params=BOTH)
def frail_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site of one's own, to be broken."""
    made: Site = MemorySite() if request.param == "memory" else MooncakeSite("contract")
    yield made
    made.close()


def value(number: int, nbytes: int = MIB) -> Value:
    """One slot of ``nbytes`` bytes: 8 of digest, the rest payload."""
    return Value(torch.tensor([number]), torch.full((1, nbytes // 4 - 2), float(number)))


def put(site: Site, keys: Sequence[StoreKey], numbers: Sequence[int]) -> list[int]:
    return site.store.batch_put_from(keys, [value(number) for number in numbers])


def get(site: Site, *keys: StoreKey) -> tuple[list[int], list[int | None]]:
    """Return the codes, and the numbers that were read, None where none was."""
    into = [value(-1) for _ in keys]
    codes = site.store.batch_get_into(keys, into)
    numbers = []
    for read, code in zip(into, codes, strict=True):
        number = int(read.digests.item())
        if code > 0:
            assert (read.payload == number).all(), "digest and payload are of one value"
        numbers.append(number if code > 0 else None)
    return codes, numbers


def until(site: Site, what: Callable[[], bool], seconds: float) -> None:
    """Let time pass until ``what`` holds; fail when ``seconds`` have passed."""
    for _ in range(int(seconds / 0.1)):
        if what():
            return
        site.advance(0.1)
    pytest.fail(f"did not come about within {seconds} s")


def numbered(count: int, start: int = 0) -> list[StoreKey]:
    return [StoreKey(0, 0, f"k{number}") for number in range(start, start + count)]


def test_what_is_put_is_found_and_read_back_whole(site: Site) -> None:
    assert put(site, [A, B, C, D], [1, 2, 3, 4]) == [OK] * 4
    assert site.store.batch_is_exist([D, C, B, A]) == [EXISTS] * 4
    assert get(site, A, B, C, D) == ([MIB] * 4, [1, 2, 3, 4])


def test_a_batch_is_answered_key_by_key(site: Site) -> None:
    put(site, [A, C], [1, 3])
    assert site.store.batch_is_exist([A, B, C]) == [EXISTS, 0, EXISTS]
    assert get(site, A, B, C) == ([MIB, OBJECT_NOT_FOUND, MIB], [1, None, 3])
    assert site.store.batch_is_exist([]) == []
    assert put(site, [], []) == []
    assert get(site) == ([], [])


def test_the_first_write_of_a_key_wins(site: Site) -> None:
    assert put(site, [A], [1]) == [OK]
    assert put(site, [A, B, B], [2, 3, 4]) == [OK] * 3
    assert get(site, A, B)[1] == [1, 3]


def test_the_store_keeps_bytes_of_its_own(site: Site) -> None:
    mine = value(1)
    site.store.batch_put_from([A], [mine])
    mine.digests.fill_(9)
    mine.payload.fill_(9)
    assert get(site, A)[1] == [1]


def test_values_of_other_sizes_than_stored_are_refused(site: Site) -> None:
    put(site, [A], [1])
    assert site.store.batch_get_into([A], [value(0, MIB // 2)]) == [INVALID_PARAMS]
    assert site.store.batch_get_into([A], [value(0, MIB * 2)]) == [TRANSFER_FAILED]


def test_a_batch_that_does_not_match_its_values_is_refused_whole(site: Site) -> None:
    assert site.store.batch_put_from([A, B], [value(1)]) == [INVALID_PARAMS] * 2
    assert site.store.batch_get_into([A, B], [value(1)]) == [INVALID_PARAMS] * 2
    assert site.store.batch_is_exist([A, B]) == [0, 0]


def test_a_value_without_bytes_is_refused(site: Site) -> None:
    empty = Value(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 8))
    assert site.store.batch_put_from([A, B], [empty, value(2)]) == [INVALID_PARAMS, OK]
    assert site.store.batch_is_exist([A, B]) == [0, EXISTS]


def test_planned_failures_come_before_the_store(site: Site) -> None:
    with site.store.failing_keys(puts={B: NO_SPACE, C: RPC_TIMEOUT}):
        assert put(site, [A, B, C, D], [1, 2, 3, 4]) == [OK, NO_SPACE, RPC_TIMEOUT, OK]
    with site.store.failing():
        assert put(site, [A, B], [1, 2]) == [TRANSFER_FAILED] * 2
    assert site.store.batch_is_exist([A, B, C, D]) == [EXISTS, 0, 0, EXISTS]


def test_values_are_listed_as_first_put_and_read_from_the_store(site: Site) -> None:
    put(site, [C, A], [3, 1])
    put(site, [A, B], [7, 2])
    assert list(site.store.values) == [C, A, B]
    site.store.evict(A)
    assert [(key, read.digests.item()) for key, read in site.store.values.items()] == [
        (C, 3),
        (B, 2),
    ]
    put(site, [A], [5])
    assert list(site.store.values) == [C, B, A], "first put anew"
    site.store.remove_all(force=True)
    assert list(site.store.values) == []


def test_a_put_leases_nothing(site: Site) -> None:
    put(site, [A], [1])
    assert site.store.remove(A) == OK
    assert site.store.remove(A) == OBJECT_NOT_FOUND


@pytest.mark.parametrize("use", ["exist", "get"])
def test_existence_checks_and_gets_lease_and_leases_run_out(site: Site, use: str) -> None:
    put(site, [A], [1])

    def touch() -> None:
        if use == "exist":
            site.store.batch_is_exist([A])
        else:
            get(site, A)

    touch()
    assert site.store.remove(A) == OBJECT_HAS_LEASE
    site.advance(LEASE_SECONDS * 0.7)
    touch()
    site.advance(LEASE_SECONDS * 0.7)
    assert site.store.remove(A) == OBJECT_HAS_LEASE, "the lease was renewed"
    site.advance(LEASE_SECONDS * 0.3)
    assert site.store.remove(A) == OK


def test_force_ignores_leases(site: Site) -> None:
    put(site, [A, B, C, D], [1, 2, 3, 4])
    site.store.batch_is_exist([A, B, C])
    assert site.store.remove(A, force=True) == OK
    assert site.store.remove_all() == 1, "only what is not leased"
    assert site.store.batch_is_exist([A, B, C, D]) == [0, EXISTS, EXISTS, 0]
    assert site.store.remove_all(force=True) == 2
    assert site.store.remove_all(force=True) == 0
    assert put(site, [B], [5]) == [OK]
    assert get(site, B)[1] == [5], "what was removed can be written anew"


def test_an_evicted_key_is_a_miss_and_can_be_put_again(site: Site) -> None:
    put(site, [A], [1])
    site.store.batch_is_exist([A])
    site.store.evict(A)
    assert site.store.batch_is_exist([A]) == [0]
    with pytest.raises(KeyError, match="not in the store"):
        site.store.evict(A)
    assert put(site, [A], [2]) == [OK]
    assert get(site, A)[1] == [2]


def test_a_full_store_refuses_part_of_a_batch_and_evicts_only_what_is_not_leased(
    site: Site,
) -> None:
    # Below the watermark at which Mooncake evicts ahead of need: nine tenths.
    leased, more = numbered(13), numbered(6, start=13)
    assert put(site, leased, range(13)) == [OK] * 13
    assert site.store.batch_is_exist(leased) == [EXISTS] * 13
    assert put(site, more, range(13, 19)) == [OK] * 3 + [NO_SPACE] * 3
    assert put(site, [leased[0]], [99]) == [OK], "what exists needs no room"

    def later_put_succeeds() -> bool:
        site.make_room(MIB)
        return put(site, [more[5]], [18]) == [OK]

    until(site, later_put_succeeds, LEASE_SECONDS * 0.8)
    assert get(site, *leased)[1] == list(range(13)), "leases protect"


def test_once_leases_are_over_a_full_store_takes_new_keys_for_old(site: Site) -> None:
    old, new = numbered(13), numbered(16, start=13)
    put(site, old, range(13))
    site.store.batch_is_exist(old)
    site.advance(LEASE_SECONDS)
    for key, number in zip(new, itertools.count(13), strict=False):

        def taken(key: StoreKey = key, number: int = number) -> bool:
            site.make_room(MIB)
            return put(site, [key], [number]) == [OK]

        until(site, taken, 2)
    found = site.store.batch_is_exist(old)
    assert sum(found) <= 3, "sixteen fit, so room was made of the old ones"
    assert get(site, new[-1]) == ([MIB], [28])


def test_without_a_master_every_call_says_so_and_a_new_one_knows_no_keys(
    frail_site: Site,
) -> None:
    site = frail_site
    put(site, [A], [1])
    site.kill_master()
    assert site.store.batch_is_exist([A, B]) == [RPC_FAILED] * 2
    assert put(site, [B], [2]) == [RPC_FAILED]
    assert get(site, A) == ([RPC_FAILED], [None])
    assert site.store.remove_all(force=True) == RPC_FAILED
    site.restart_master()
    assert put(site, [A], [3])[0] in (NO_SPACE, OK), "until clients offer their memory, no space"
    until(site, lambda: put(site, [A], [3]) == [OK], 10)
    assert get(site, A, B) == ([MIB, OBJECT_NOT_FOUND], [3, None])


def test_what_another_client_puts_is_read_here(frail_site: Site) -> None:
    site = frail_site
    assert site.client("other").put(A, 7) == OK
    assert put(site, [A], [8]) == [OK]
    assert get(site, A) == ([MIB], [7])


def test_what_a_client_owns_leaves_with_it(frail_site: Site) -> None:
    site = frail_site
    other = site.client("other")
    other.put(A, 7)
    put(site, [B], [2])
    site.store.batch_is_exist([A])
    other.leave()
    assert site.store.batch_is_exist([A, B]) == [0, EXISTS]
    assert get(site, A)[0] == [OBJECT_NOT_FOUND]


def test_a_dead_clients_keys_exist_and_cannot_be_read_until_it_is_missed(
    frail_site: Site,
) -> None:
    site = frail_site
    other = site.client("other")
    assert [other.put(A, 7), other.put(B, 8)] == [OK, OK]
    assert get(site, A)[1] == [7]
    other.die()
    assert site.store.batch_is_exist([A, B]) == [EXISTS, EXISTS]
    assert get(site, A) == ([TRANSFER_FAILED], [None])
    assert put(site, [A, C], [1, 3]) == [OK, OK], "the first write still wins"
    assert get(site, A, C) == ([TRANSFER_FAILED, MIB], [None, 3])
    until(site, lambda: site.store.batch_is_exist([A, B]) == [0, 0], CLIENT_TTL_SECONDS * 3)
    assert get(site, A)[0] == [OBJECT_NOT_FOUND]
    assert put(site, [A], [1]) == [OK]
    assert get(site, A, C) == ([MIB, MIB], [1, 3])


def test_use_after_close_is_one_clear_error(
    frail_site: Site,
) -> None:
    site = frail_site
    put(site, [A], [1])
    store = site.store
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store.batch_is_exist([A]),
        lambda: store.batch_put_from([A], [value(1)]),
        lambda: store.batch_get_into([A], [value(1)]),
        lambda: store.remove(A),
        lambda: store.remove_all(force=True),
        lambda: store.evict(A),
        lambda: list(store.values),
    ]
    for use in uses:
        with pytest.raises(StoreClosed, match="the store was closed; open another"):
            use()
