"""L2 (at rest nothing is left in any manager or connector): every container is named, and watched.

Run on the installed release; ``COWTAIL_VLLM_RELEASE`` and PYTHONPATH choose another.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.launch import is_installed, output_in_release, runnable_releases
from cowtail.impl.vllm_engine.promises import PROPERTIES
from cowtail.impl.vllm_engine.remembered import CONTAINERS, Place, places_of
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import Execute, SchedulePass, Submit, UpdateFromOutput
from cowtail.models.scope import RequestSpec

pytestmark = pytest.mark.vllm

_CONFIGS = {
    "fcfs": {},
    "two steps in flight, by priority": {"max_steps_in_flight": 2, "priority": True},
    "EAGLE, late lookups": {"eagle": True, "lookup_async": True},
    "recompute, every state kept": {"recompute_failed_loads": True, "retention_interval": None},
    "a MultiConnector": {"connectors": 2},
}


class Planted:
    """An entry that nobody could have made."""

    request_id = "planted"
    priority, arrival_time = 0, 0.0

    def __lt__(self, other: object) -> bool:
        return False


def at_rest(**changes: Any) -> Session:
    """Return a session that has run two requests with one prompt to rest."""
    requests = (RequestSpec("a", "x" * 44), RequestSpec("b", "x" * 44, max_tokens=2))
    unchecked = [each.identifier for each in PROPERTIES]  # other releases violate some
    session = Session(EngineConfig(requests=requests, **changes), unchecked=unchecked)
    for request in requests:
        session.do(Submit(request.name))
        session.drain()
    return session


def places(session: Session) -> list[Place]:
    return list(places_of(session.scheduler, [rank.worker for rank in session.ranks]))


def unnamed(session: Session) -> Iterator[str]:
    """Yield the containers that the table leaves out, as kind and name."""
    for place in places(session):
        for name, _ in place.containers():
            if name not in CONTAINERS[place.kind].named:
                yield f"{place.kind}.{name}"


@pytest.mark.parametrize("changes", _CONFIGS.values(), ids=_CONFIGS.keys())
def test_every_container_is_watched_or_excused(changes: dict[str, Any]) -> None:
    """An attribute that a new release adds is named here, until the table names it."""
    session = at_rest(**changes)
    assert sorted(set(unnamed(session))) == []
    assert session.view.leftovers(rank.worker for rank in session.ranks) == []


@pytest.mark.parametrize(
    "release", [each for each in runnable_releases() if not is_installed(each)]
)
def test_the_table_is_whole_on_every_release(release: str) -> None:
    """The same on each release that is here, in a process of its own."""
    printed = output_in_release(release, (__file__,), timeout=300)
    assert printed.split() == ["named:"]


def test_an_attribute_that_is_new_is_told_by_name() -> None:
    """The walk sees what the table does not name."""
    session = at_rest()
    session.scheduler.added_by_a_release = {}
    session.ranks[1].worker.kv_send_thread.also_added = [1]
    assert sorted(unnamed(session)) == [
        "scheduler.added_by_a_release",
        "sending thread.also_added",
    ]


def test_every_name_in_the_table_is_an_attribute_somewhere() -> None:
    """A name that no object has watches nothing: a release took it away, or it is misspelt."""
    session = at_rest()
    here = {(place.kind, name) for place in places(session) for name in vars(place.owner)}
    here |= {(place.kind, name) for place in places(session) for name in dir(place.owner)}
    named = {(kind, name) for kind, table in CONTAINERS.items() for name in table.named}
    assert sorted(named - here) == sorted(_OF_OTHER_RELEASES | _OF_OTHER_CONFIGURATIONS)


_OF_OTHER_RELEASES = {
    ("scheduler", "_pending_encoder_input_ids"),
    ("scheduler", "_skip_zero_block_ids"),
    ("scheduler", "deferred_loads"),
    ("scheduler", "skipped_waiting"),
    ("coordinator", "drop_eagle_group_ids"),
    ("encoder cache", "request_hash_refs"),
    ("manager", "_num_checkpoint_blocks"),
}
"""What 0.32.0 does not have."""
_OF_OTHER_CONFIGURATIONS = {
    ("scheduler", "_spec_token_placeholders"),
    ("connector", "_connectors"),
    ("connector", "_ktc_kv_transfer_config"),
    ("connector", "_extra_async_saves"),
    ("connector", "_requests_to_connector"),
}
"""What only the asynchronous scheduler, or a MultiConnector, has."""


def _watched() -> list[tuple[str, str]]:
    return [
        (kind, name)
        for kind, table in CONTAINERS.items()
        for name in (*table.watched, *table.counts, *table.until_next_step)
        if (kind, name) not in _OF_OTHER_RELEASES
    ]


@pytest.mark.parametrize(("kind", "name"), _watched())
def test_an_entry_that_is_left_is_noticed(kind: str, name: str) -> None:
    """Planted into any one object of the kind that has the container, it is told by its place."""
    session = at_rest(connectors=2 if (kind, name) in _OF_OTHER_CONFIGURATIONS else 1)
    found = [
        place for place in places(session) if place.kind == kind and hasattr(place.owner, name)
    ]
    assert found
    for place in found:
        left = getattr(place.owner, name)
        plant(left, name in CONTAINERS[kind].counts)
        if name == "finished_store_req":  # one without jobs left goes with the next step
            place.owner.kv_send_thread.stored_requests["planted"] = {0}
        told = session.view.leftovers(rank.worker for rank in session.ranks)
        assert any(line.startswith(f"{place.name}.{name} still has") for line in told), told
        assert any("planted" in line for line in told), told
        remove(left)
        if name == "finished_store_req":
            remove(place.owner.kv_send_thread.stored_requests)


def plant(left: Any, is_count: bool) -> None:
    """Put an entry into a container of any kind."""
    if is_count:
        left["planted"] = 1
    elif isinstance(left, queue.Queue):
        left.put(Planted())
    elif isinstance(left, dict):
        left["planted"] = Planted()
    elif hasattr(left, "add_request"):
        left.add_request(Planted())
    elif isinstance(left, set):
        left.add("planted")
    else:
        left.append("planted")


def remove(left: Any) -> None:
    """Take it out again."""
    if isinstance(left, queue.Queue):
        left.get_nowait()
    elif isinstance(left, dict):
        del left["planted"]
    elif hasattr(left, "pop_request"):
        left.pop_request()
    else:
        left.remove("planted") if isinstance(left, set) else left.pop()


def test_a_ranks_books_of_a_finished_request_go_with_the_next_step() -> None:
    """What the check lets a rank keep until its next step is gone with that step."""
    requests = (RequestSpec("a", "x" * 44), RequestSpec("b", "y" * 3))
    session = Session(EngineConfig(requests=requests, max_steps_in_flight=1))
    books = [rank.worker.kv_send_thread.stored_requests for rank in session.ranks]
    session.do(Submit("a"))
    while not session.requests["a"].is_finished():
        session.do_all(SchedulePass(), Execute(), UpdateFromOutput())
    session.do(SchedulePass())  # tells the ranks that a is over, its jobs queued still
    session.drain()
    assert all("a" in book for book in books)
    assert all("a" in rank.worker.finished_store_req for rank in session.ranks)
    session.do(Submit("b"))
    session.drain()
    assert not any("a" in book for book in books)
    assert not any("a" in rank.worker.kv_send_thread._saved_offset for rank in session.ranks)
    assert not any("a" in rank.worker.finished_store_req for rank in session.ranks)


def test_a_ranks_books_of_a_request_that_no_step_ends_are_left() -> None:
    """A rank that was not told that a request is over keeps it for ever."""
    session = at_rest()
    session.ranks[0].worker.kv_send_thread._saved_offset["b"] = 16
    session.ranks[0].worker.finished_store_req.discard("b")
    told = session.view.leftovers(rank.worker for rank in session.ranks)
    assert "rank 0's sender._saved_offset still has b" in told


if __name__ == "__main__":
    print(
        "named:",
        *sorted({each for changes in _CONFIGS.values() for each in unnamed(at_rest(**changes))}),
    )
