"""Lookups in the store, and loads from it (S4, S15, V6)."""

from __future__ import annotations

from cowtail.spec.monitor.blocks import check_block
from cowtail.spec.monitor.events import Load, Loaded, Lookup
from cowtail.spec.monitor.property import Broken, Property, Unlikely, block, request
from cowtail.spec.monitor.state import State, take

HIT = Property(
    "S4",
    "hits leave a token to compute",
    "What is found locally and in the store is less than the known tokens, and a multiple of the "
    "hit alignment.",
    "domain S4, R21",
)
OWN_TABLE = Property(
    "S15.own",
    "loads write their own blocks",
    "A load writes blocks of the table of its own request only.",
    "domain S15, A10",
)
RACE = Property(
    "V6",
    "loads do not race",
    "No load is ordered into a block that an earlier step, which has not been processed yet, "
    "copies or writes.",
    "vLLM PR 45357, domain S6",
)

PROPERTIES = (HIT, OWN_TABLE, RACE)


def lookup(state: State, event: Lookup) -> None:
    """The store answers."""
    if not event.external:
        return
    align, found = state.header.hit_alignment, event.local + event.external
    if found >= event.num_tokens or (align and found % align):
        raise Broken(
            HIT,
            f"request {event.request} with {event.num_tokens} tokens finds {found} "
            f"(hits are multiples of {align})",
            request(event.request),
        )


def load(state: State, event: Load) -> None:
    """A load is ordered."""
    life = state.requests[event.request]
    held = {number for blocks in life.tables.values() for number in blocks}
    for number in event.blocks:
        check_block(state, number, "loaded into")
        subjects = (request(event.request), block(number))
        if number not in held:
            raise Broken(
                OWN_TABLE,
                f"the load of request {event.request} writes block {number}, which is not in its "
                "tables",
                *subjects,
            )
        for step, touched in state.steps.items():
            if number in touched:
                raise Broken(
                    RACE,
                    f"the load of request {event.request} writes block {number}, which step "
                    f"{step}, not processed yet, copies or writes",
                    *subjects,
                )
    if event.connector in life.loading:
        raise Unlikely(f"request {event.request} loads twice at once")
    life.loading[event.connector] = set(event.blocks)
    for number in life.loading[event.connector]:
        state.load_counts[number] += 1


def loaded(state: State, event: Loaded) -> None:
    """All ranks are done with a load."""
    for blocks in state.requests[event.request].loading.values():
        for number in blocks:
            take(state.load_counts, number)
    state.requests[event.request].loading.clear()
    state.touched_requests.add(event.request)
