"""The store in memory by itself: keys as strings, planned failures, and what it alone can show."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cowtail.impl.torch_engine.store import (
    EXISTS,
    LEASE_EXPIRED,
    NO_SPACE,
    OBJECT_HAS_LEASE,
    OBJECT_NOT_FOUND,
    OK,
    REMOUNT_SECONDS,
    RPC_TIMEOUT,
    InMemoryStore,
    Store,
    StoreKey,
    StoreUnavailable,
    Value,
)
from cowtail.impl.torch_engine.store_protocol import (
    code_name,
    decode_key,
    encode_key,
    require_namespace,
)

A, B, C = (StoreKey(0, 0, name) for name in "abc")
NAMESPACES = st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True)
KEYS = st.builds(StoreKey, st.integers(0, 99), st.integers(0, 9), st.text())


def value(number: int) -> Value:
    """One slot of 16 bytes."""
    return Value(torch.tensor([number]), torch.full((1, 2), float(number)))


def put(store: Store, *keys: StoreKey) -> list[int]:
    return store.batch_put_from(keys, [value(ord(key.prefix[0])) for key in keys])


@given(NAMESPACES, KEYS, NAMESPACES, KEYS)
def test_two_keys_share_a_string_only_if_they_are_one(
    first: str, a: StoreKey, second: str, b: StoreKey
) -> None:
    same = encode_key(first, a) == encode_key(second, b)
    assert same == ((first, a) == (second, b))


@given(NAMESPACES, st.builds(StoreKey, st.integers(0), st.integers(0), st.text("a/%\ud800é?")))
def test_a_key_is_read_back_from_its_string(namespace: str, key: StoreKey) -> None:
    text = encode_key(namespace, key)
    assert text.isascii()
    assert decode_key(namespace, text) == key


def test_a_namespace_that_could_run_into_the_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"namespace 'a/0': must be letters"):
        require_namespace("a/0")
    with pytest.raises(ValueError, match="not of namespace 'one'"):
        decode_key("one", encode_key("one-more", A))


def test_a_code_without_a_name_is_its_number() -> None:
    assert [code_name(code) for code in (NO_SPACE, -3)] == ["NO_SPACE", "-3"]


def test_a_batch_fails_in_part_as_planned_and_the_rest_goes_through() -> None:
    store = InMemoryStore()
    with store.failing_keys(puts={B: NO_SPACE}, gets={A: LEASE_EXPIRED}):
        assert put(store, A, B, C) == [OK, NO_SPACE, OK]
        read = [value(0), value(0), value(0)]
        assert store.batch_get_into([A, B, C], read) == [LEASE_EXPIRED, OBJECT_NOT_FOUND, 16]
        assert [each.digests.item() for each in read] == [0, 0, ord("c")]
    assert put(store, B) == [OK]
    assert store.batch_get_into([A], [value(0)]) == [16]


def test_plans_nest_and_end_with_their_block() -> None:
    store = InMemoryStore()
    with store.failing(RPC_TIMEOUT):
        with store.failing(NO_SPACE):
            assert put(store, A) == [NO_SPACE]
        assert put(store, A) == [RPC_TIMEOUT]
    assert put(store, A) == [OK]


def test_an_existence_check_fails_or_raises_as_planned() -> None:
    store = InMemoryStore()
    put(store, A)
    with store.failing_exists(RPC_TIMEOUT):
        assert store.batch_is_exist([A, B]) == [RPC_TIMEOUT] * 2
    with (
        store.failing_exists(StoreUnavailable("no answer")),
        pytest.raises(StoreUnavailable, match="no answer"),
    ):
        store.batch_is_exist([A])
    assert store.remove(A) == OK, "a failed check leases nothing"
    assert store.batch_is_exist([A, B]) == [0, 0], "the plan ended with its block"


def test_a_failure_is_a_negative_code() -> None:
    with pytest.raises(ValueError, match="code 0: a failure's code is negative"):
        InMemoryStore().failing(OK).__enter__()


def test_room_is_made_by_use_and_never_of_what_is_leased() -> None:
    store = InMemoryStore(capacity_bytes=48, lease_seconds=2)
    put(store, A, B, C)
    store.batch_is_exist([A])
    with store.owned_by("other"):
        put(store, StoreKey(0, 0, "theirs"))
    store.batch_is_exist([A, C])
    store.advance(2)
    store.batch_is_exist([C])
    assert store.make_room(32) == [B, A], "not of another client's, whose memory is no use here"
    assert store.make_room(48) == []
    assert list(store.values) == [C, StoreKey(0, 0, "theirs")]


def test_a_lease_runs_out_at_its_end_and_is_renewed_by_a_get() -> None:
    store = InMemoryStore(lease_seconds=2)
    put(store, A)
    store.batch_is_exist([A])
    store.advance(1.5)
    store.batch_get_into([A], [value(0)])
    store.advance(1.5)
    assert store.remove(A) == OBJECT_HAS_LEASE
    store.advance(0.5)
    assert store.remove(A) == OK


def test_each_client_has_memory_of_its_own() -> None:
    store = InMemoryStore(capacity_bytes=16)
    assert put(store, A, B) == [OK, NO_SPACE]
    with store.owned_by("other"):
        assert put(store, B) == [OK]
    store.leave("other")
    assert store.batch_is_exist([A, B]) == [EXISTS, 0]


def test_evicting_what_is_not_there_is_an_error() -> None:
    store = InMemoryStore()
    put(store, A)
    store.batch_is_exist([A])
    store.evict(A)
    with pytest.raises(KeyError, match="not in the store"):
        store.evict(A)


def test_time_does_not_go_back_and_the_dead_do_not_put() -> None:
    store = InMemoryStore()
    with pytest.raises(ValueError, match="seconds=-1"):
        store.advance(-1)
    store.kill_owner("other")
    with pytest.raises(ValueError, match="owner 'other': it was killed"):
        store.owned_by("other").__enter__()


def test_after_a_restart_puts_find_no_space_until_memory_is_offered_again() -> None:
    store = InMemoryStore()
    put(store, A)
    store.kill_owner("other")
    store.restart()
    assert store.batch_is_exist([A]) == [0]
    with store.owned_by("other"):
        assert put(store, A) == [NO_SPACE], "who died before is a new client now"
    assert put(store, A) == [NO_SPACE]
    store.advance(REMOUNT_SECONDS)
    assert put(store, A) == [OK]
