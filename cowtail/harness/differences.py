"""Where two observations differ, said as a person would: which request, block, job or rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from cowtail.models.observations import (
    Copy,
    Handoff,
    Marker,
    Observation,
    Pin,
    Put,
    StoreEntry,
    StoreJob,
)


@attrs.frozen
class Area:
    """What a field is about: the property, in a few words, and the requirements behind it."""

    subject: str
    requirements: str

    def __str__(self) -> str:
        """Print as a reader would cite it."""
        return f"{self.subject} ({self.requirements})"


_COUNTED_ONCE = "counted once"
_TRUTH = "key tells the truth"
_CONSERVATION = "conservation"
_PROGRESS = "the request's progress"

AREAS: dict[str, Area] = {
    "hit": Area("what a lookup finds", "R11, R13, R21"),
    "external": Area("what a lookup in the store finds", "R13, R20, R28"),
    "chunk": Area("where chunks stop", "R29"),
    "copies": Area("copy-on-write isolation", "R9"),
    "handoffs": Area(f"{_COUNTED_ONCE}: one tail, one handoff", "R1, R2, R9"),
    "jobs": Area(f"{_COUNTED_ONCE}: what a job pins and puts", "R6, R8, R10, R16, R20"),
    "loads": Area("hit is loadable: what the ranks are told to load", "R13, R20"),
    "puts": Area(f"{_TRUTH}: what a rank stores", "R18, R20, R30"),
    "released": Area("no leak: pins go with the last report", "R6, R15"),
    "reset": Area("reset forgets", "domain S13"),
    "status": Area(_PROGRESS, "R22"),
    "computed": Area(_PROGRESS, "R22"),
    "known": Area(_PROGRESS, "R22"),
    "tables": Area("which blocks a request holds", "R3, R9"),
    "markers": Area("the registered tail", "R1, R9"),
    "worker tables": Area("scheduler and workers agree on the block of a column", "R9, K09"),
    "found": Area("what a lookup in the store answered", "R13, R18"),
    "leased": Area("no leak: leases of a lookup", "K36"),
    "junction": Area("where a sibling's hit ended", "R29"),
    "held": Area("no reuse while busy, no leak: blocks of finished requests", "domain S15"),
    "deferred": Area("no reuse while busy: frees behind the steps in flight", "K40"),
    "untold": Area("what the workers have yet to be told", "domain e"),
    "reference counts": Area(f"{_CONSERVATION}: references equal owners", "R8, R15"),
    "free list": Area(f"{_CONSERVATION}: what is unreferenced is free, in order", "R8"),
    "keys": Area(f"{_TRUTH}: prefix-cache keys", "R2, R9"),
    "pins": Area("no reuse while busy, no leak", "R6, R15"),
    "queued tails": Area("stored where lookup looks: tails taken at finish", "R1, R14"),
    "steps in flight": Area("steps in flight", "R2"),
    "queue": Area("what the ranks are told to store", "R14"),
    "outbox": Area("what the ranks report", "R6"),
    "saved": Area("fail closed: durable offsets", "R18, R19"),
    "rank loads": Area("what the ranks have yet to load, or to report", "domain f"),
    "sends": Area("what the ranks have yet to send", "domain g"),
    "skipping": Area("fail closed: pressure", "R18"),
    "inbox": Area(f"{_COUNTED_ONCE}: reports", "R6"),
    "load inbox": Area(f"{_COUNTED_ONCE}: reports of loads", "K33"),
    "send inbox": Area(f"{_COUNTED_ONCE}: reports of sends", "K43"),
    "pending loads": Area(f"{_COUNTED_ONCE}: which ranks owe a load", "K33, K38"),
    "memory": Area(f"{_TRUTH}: the bytes of a block", "R30"),
    "store": Area(f"{_TRUTH}: what the store holds", "R18, R30"),
    "type": Area("the protocol: plain values of the observation's own types", "R33"),
}
"""For each field that can differ, what it is about; in the order in which differences are told."""


@attrs.frozen
class Difference:
    """One place where the engine shows something else than the model; ``where`` may be empty."""

    field: str
    where: str
    model: str
    engine: str

    def __str__(self) -> str:
        """Name the place, then both values, one under the other."""
        place = f"{self.field}, {self.where}" if self.where else self.field
        return f"{place}\n    model:  {self.model}\n    engine: {self.engine}"


def differences(model: Observation, engine: Observation) -> tuple[Difference, ...]:
    """Return every difference: effects first, then requests, pool, connector, ranks, bytes."""
    said, shown = dict(_places(model)), dict(_places(engine))
    places = list(said) + [place for place in shown if place not in said]
    areas = list(AREAS)
    places.sort(key=lambda place: areas.index(place[0]))  # stable: keeps the inner order
    found = tuple(
        Difference(*place, said.get(place, "nothing"), shown.get(place, "nothing"))
        for place in places
        if said.get(place) != shown.get(place)
    )
    # Equal place by place and yet not equal: something has another type than it should.
    return found or (Difference("type", "of some value", repr(model), repr(engine)),)


def _places(seen: Observation) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield every place of an observation, with its value as text."""
    for attribute in attrs.fields(type(seen.effects)):
        yield (attribute.name, "of this action"), _text(getattr(seen.effects, attribute.name))
    for request in seen.requests:
        yield ("status", f"request {request.name}"), request.status.value
        yield ("computed", f"request {request.name}"), f"{request.computed} tokens"
        yield ("known", f"request {request.name}"), f"{request.known} tokens"
        for group, table in enumerate(request.tables):
            yield ("tables", f"request {request.name}, group {group}"), _blocks(table)
        for group, marker in enumerate(request.markers):
            yield ("markers", f"request {request.name}, group {group}"), _text(marker)
        for group, table in enumerate(request.worker_tables):
            yield ("worker tables", f"request {request.name}, group {group}"), _blocks(table)
        yield ("found", f"request {request.name}"), _text(request.found)
        yield ("leased", f"request {request.name}"), str(request.leased)
        yield ("junction", f"request {request.name}"), f"{request.junction} tokens"
    yield ("held", ""), _text([str(held) for held in seen.held])
    yield ("deferred", ""), _text([f"{_blocks(b)} for {wait} steps" for wait, b in seen.deferred])
    yield ("untold", ""), _text(seen.untold)
    yield ("pending loads", ""), _text([str(load) for load in seen.loads])
    for name, inbox in (("load inbox", seen.load_inbox), ("send inbox", seen.send_inbox)):
        yield (name, ""), _text([f"{request} by rank {rank}" for request, rank in inbox])
    for block, count in enumerate(seen.ref_counts):
        yield ("reference counts", f"block {block}"), str(count)
    yield ("free list", ""), _blocks(seen.free)
    for block, keys in enumerate(seen.keys):
        yield ("keys", f"block {block}"), _text(keys)
    yield ("pins", "in order"), _jobs([pin.job for pin in seen.pins])
    for pin in seen.pins:
        yield ("pins", f"job {pin.job}"), _text(pin)
    yield ("queued tails", ""), _text(seen.queued_tails)
    yield ("steps in flight", ""), str(seen.steps_in_flight)
    for index, rank in enumerate(seen.ranks):
        yield ("queue", f"rank {index}"), _jobs(rank.queue)
        yield ("outbox", f"rank {index}"), _jobs(rank.outbox)
        yield ("rank loads", f"rank {index}, queued"), _text(rank.loads)
        yield ("rank loads", f"rank {index}, done"), _text(rank.loaded)
        yield ("sends", f"rank {index}"), _text([f"{r} by child {c}" for r, c in rank.sends])
        yield ("skipping", f"rank {index}"), _text(rank.skipping)
        for request, saved in zip(seen.requests, rank.saved, strict=True):
            yield ("saved", f"rank {index}, request {request.name}"), f"{saved} tokens"
    yield ("inbox", ""), _text([f"job {job} by rank {rank}" for job, rank in seen.inbox])
    for block, page in enumerate(seen.memory):
        for slot, content in enumerate(page):
            yield ("memory", f"block {block}, slot {slot}"), repr(content)
    yield ("store", "in all"), f"{len(seen.store)} entries"
    for entry in seen.store:
        place = f"rank {entry.rank}, group {entry.group}, key {entry.prefix!r}"
        yield ("store", place), _content(entry.content)


def _text(value: Any) -> str:
    """Return one value of an observation in the field's words."""
    match value:
        case None | () | []:
            return "nothing"
        case Copy(group, source, destination):
            return f"block {source} to {destination} (group {group})"
        case Handoff(request, group, block, boundary):
            return f"block {block} of {request} (group {group}) at {boundary} tokens"
        case Put(group, block, boundary):
            return f"block {block} (group {group}) at {boundary} tokens"
        case Marker(block, boundary):
            return f"block {block} at {boundary} tokens"
        case Pin(_, blocks, ranks):
            return f"{_blocks(blocks)}, owed by {_listed('rank', ranks)}"
        case StoreEntry(rank, group, prefix, content):
            return f"{prefix!r} (rank {rank}, group {group}) as {_content(content)}"
        case StoreJob():
            saved = f", save to {value.save_to} tokens" if value.save_to else ""
            return (
                f"job {value.job} of {value.request}: puts {_text(value.puts)}{saved}, "
                f"pins {_blocks(value.blocks)}"
            )
        case tuple() | list():
            return ", ".join(map(_text, value))
    return str(value)


def _blocks(blocks: Sequence[int]) -> str:
    return _listed("block", blocks)


def _jobs(jobs: Sequence[int]) -> str:
    return _listed("job", jobs)


def _listed(what: str, numbers: Sequence[int]) -> str:
    if not numbers:
        return f"no {what}"
    return f"{what}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _content(slots: Iterable[str]) -> str:
    return " ".join(map(repr, slots))
