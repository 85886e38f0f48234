"""Blocks: references and owners, the free list, keys (S1, S2, S6, S13, A4)."""

from __future__ import annotations

from collections.abc import Iterator

from cowtail.spec.monitor.events import (
    Allocate,
    Copy,
    Defer,
    Drop,
    Free,
    Keyed,
    Reset,
    Settled,
    Table,
    Touch,
    Undefer,
    Unkeyed,
)
from cowtail.spec.monitor.property import Broken, Property, Unlikely, block, job, request
from cowtail.spec.monitor.state import CopyOrder, State, take

OWNERS = Property(
    "S1",
    "references equal owners",
    "When a call is over, a block has as many references as table entries, pins and kept-back "
    "frees.",
    "domain S1, R8",
)
FREE_LIST = Property(
    "S1.free",
    "free list is what nobody references",
    "When a call is over, the free list is as long as there are blocks without references.",
    "domain S1, A1",
)
FREED_ONCE = Property(
    "S1.once",
    "freed as often as referenced",
    "A block is never freed more often than it was allocated and touched.",
    "domain S1, R8",
)
UNREFERENCED = Property(
    "S1.take",
    "only free blocks are allocated",
    "A block that is allocated has no reference.",
    "domain A1, S1",
)
PINNED = Property(
    "S9.take",
    "no reuse while pinned",
    "A pinned block is never allocated.",
    "domain S9, R6, R15",
)
LOADING = Property(
    "S15",
    "no reuse while loading",
    "A block that a load writes is not allocated until every rank is done with the load.",
    "domain S15",
)
COPYING = Property(
    "S6",
    "no reuse before the copy",
    "Neither end of a copy is allocated in the pass that orders the copy.",
    "domain S6",
)
CHAINED = Property(
    "S6.chain",
    "copies of a step are independent",
    "No copy reads a block that another copy of the same step writes, since a step reads all "
    "sources first.",
    "domain S6",
)
NULL = Property(
    "A4",
    "null block is nobody's",
    "The null block is never allocated, referenced, keyed, copied, marked, pinned, stored or "
    "loaded.",
    "domain A4, S1, S2, R7",
)
KEYS = Property(
    "S2",
    "keys match the index",
    "When a call is over, a key finds a block exactly if the block says that it has the key.",
    "domain S2",
)
KEYS_DROPPED = Property(
    "S2.take",
    "no key survives allocation",
    "A block that is allocated has lost all its keys.",
    "domain S2",
)
RESET = Property(
    "S13",
    "reset leaves nothing",
    "The prefix cache is reset only when no block but the null block is referenced.",
    "domain S13",
)

PROPERTIES = (
    OWNERS,
    FREE_LIST,
    FREED_ONCE,
    UNREFERENCED,
    PINNED,
    LOADING,
    COPYING,
    CHAINED,
    NULL,
    KEYS,
    KEYS_DROPPED,
    RESET,
)


def check_block(state: State, number: int, what: str) -> None:
    """Refuse the null block, and a block that the pool does not have."""
    if number == state.header.null_block:
        raise Broken(NULL, f"the null block is {what}", block(number))
    if not 0 <= number < state.header.num_blocks:
        raise Unlikely(f"block {number} is none of the {state.header.num_blocks} of the pool")


def allocate(state: State, event: Allocate) -> None:
    """Blocks leave the free list."""
    for number in event.blocks:
        check_block(state, number, "allocated")
        if state.pin_counts[number]:
            (connector, pinning), _ = next(
                item for item in state.pins.items() if number in item[1].blocks
            )
            raise Broken(
                PINNED,
                f"block {number} is allocated, but job {pinning} pins it",
                block(number),
                job(pinning, connector),
            )
        if state.load_counts[number]:
            reader = next(
                name
                for name, life in state.requests.items()
                if any(number in blocks for blocks in life.loading.values())
            )
            raise Broken(
                LOADING,
                f"block {number} is allocated, but the load of request {reader} writes it",
                block(number),
                request(reader),
            )
        for copy in state.copies:
            if number in (copy.source, copy.destination):
                raise Broken(
                    COPYING,
                    f"block {number} is allocated in the pass that orders its copy",
                    block(number),
                    request(copy.request),
                )
        if count := state.references.get(number):
            raise Broken(
                UNREFERENCED, f"block {number} is allocated with {count} references", block(number)
            )
        if left := state.block_keys.get(number):
            raise Broken(
                KEYS_DROPPED,
                f"block {number} is allocated, but {min(left)} still finds it",
                block(number),
            )
        state.references[number] = 1
        state.touched.add(number)


def touch(state: State, event: Touch) -> None:
    """Blocks get one more reference."""
    for number in event.blocks:
        check_block(state, number, "referenced")
        state.references[number] = state.references.get(number, 0) + 1
        state.touched.add(number)


def free(state: State, event: Free) -> None:
    """Blocks lose one reference."""
    for number in event.blocks:
        check_block(state, number, "freed")
        left = state.references.get(number, 0) - 1
        if left < 0:
            raise Broken(FREED_ONCE, f"block {number} is freed without a reference", block(number))
        if left:
            state.references[number] = left
        else:
            del state.references[number]
        state.touched.add(number)


def keyed(state: State, event: Keyed) -> None:
    """Keys find blocks."""
    for key, number in _paired(event.keys, event.blocks):
        check_block(state, number, "keyed")
        state.block_keys.setdefault(number, set()).add(key)


def unkeyed(state: State, event: Unkeyed) -> None:
    """Keys no longer find blocks."""
    for key, number in _paired(event.keys, event.blocks):
        keys = state.block_keys.get(number, set())
        keys.discard(key)
        if not keys:
            state.block_keys.pop(number, None)


def table(state: State, event: Table) -> None:
    """A table changes."""
    life = state.requests[event.request]
    blocks = life.tables.setdefault(event.group, [])
    null = state.header.null_block
    for index, number in event.changed:
        if not 0 <= index < len(blocks):
            raise Unlikely(f"the table of request {event.request} has {len(blocks)} entries only")
        if blocks[index] != null:
            state.own(blocks[index], -1)
        if number != null:
            check_block(state, number, "")
            state.own(number, 1)
        blocks[index] = number
    for number in event.appended:
        if number != null:
            check_block(state, number, "")
            state.own(number, 1)
    blocks += event.appended
    state.touched_requests.add(event.request)


def drop(state: State, event: Drop) -> None:
    """A table is gone."""
    life = state.requests[event.request]
    for number in life.tables.pop(event.group, ()):
        if number != state.header.null_block:
            state.own(number, -1)
    state.dropped.add((event.request, event.group))
    state.touched_requests.add(event.request)


def defer(state: State, event: Defer) -> None:
    """References are kept back."""
    for number in event.blocks:
        check_block(state, number, "referenced")
        state.deferred[number] += 1
        state.own(number, 1)


def undefer(state: State, event: Undefer) -> None:
    """References that were kept back are given back."""
    for number in event.blocks:
        if not state.deferred[number]:
            raise Unlikely(f"block {number} was not kept back")
        take(state.deferred, number)
        state.own(number, -1)


def copy(state: State, event: Copy) -> None:
    """A copy is ordered: both ends are held until the pass is over."""
    for number in (event.source, event.destination):
        check_block(state, number, "copied")
        state.own(number, 1)
    for other in state.copies:
        if other.destination == event.source or other.source == event.destination:
            shared = event.source if other.destination == event.source else event.destination
            raise Broken(
                CHAINED,
                f"block {shared} is written by one copy of this step and read by another",
                block(shared),
                request(event.request),
            )
    held = event.destination if event.redirected else event.source
    state.references[held] = state.references.get(held, 0) + 1
    state.copies.append(CopyOrder(event.request, event.group, event.source, event.destination))


def reset(state: State, event: Reset) -> None:
    """The prefix cache is reset."""
    if not event.succeeded:
        return
    if state.references or state.owners:
        number = min(state.references or state.owners)
        raise Broken(RESET, f"the cache is reset while block {number} is in use", block(number))
    state.block_keys.clear()


def settle(state: State, event: Settled) -> None:
    """A call is over: the books have to balance."""
    if event.call == "schedule":
        for ordered in state.copies:
            state.own(ordered.source, -1)
            state.own(ordered.destination, -1)
        state.copies.clear()
    for number, count in _paired(event.blocks, event.references):
        state.touched.add(number)
        if count != (counted := state.references.get(number, 0)):
            raise Broken(
                OWNERS,
                f"block {number} has {count} references, but was taken and freed to {counted}",
                block(number),
            )
    for number in sorted(state.touched):
        count, owners = state.references.get(number, 0), state.owners[number]
        if count != owners:
            raise Broken(
                OWNERS,
                f"block {number} has {count} references, and {_owners(state, number)}",
                block(number),
            )
    state.touched.clear()
    said: dict[int, set[int]] = {number: set() for number in (*event.keyless, *event.keyed)}
    for number, key in _paired(event.keyed, event.keys):
        said[number].add(key)
    for number, keys in said.items():
        found = state.block_keys.get(number, set())
        if found != keys:
            wrong = min(found ^ keys)
            side = "finds it" if wrong in found else "does not find it"
            raise Broken(
                KEYS,
                f"block {number} {'does not have' if wrong in found else 'has'} the key {wrong}, "
                f"which {side}",
                block(number),
            )
    free_blocks = state.header.num_blocks - 1 - len(state.references)
    if event.free != free_blocks:
        raise Broken(
            FREE_LIST,
            f"the free list has {event.free} blocks, but {free_blocks} have no references",
        )


def _paired(left: list[int], right: list[int]) -> Iterator[tuple[int, int]]:
    if len(left) != len(right):
        raise Unlikely(f"{len(left)} and {len(right)} entries should be pairs")
    return zip(left, right, strict=True)


def _owners(state: State, number: int) -> str:
    """Say who owns a block."""
    tables = [
        f"request {name}"
        for name, life in state.requests.items()
        for blocks in life.tables.values()
        if number in blocks
    ]
    pins = [
        f"the pin of job {name}" for (_, name), pin in state.pins.items() if number in pin.blocks
    ]
    deferred = ["a kept-back free"] * state.deferred[number]
    return (
        "the owners " + ", ".join(tables + pins + deferred) if state.owners[number] else "no owner"
    )
