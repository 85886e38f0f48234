"""The least that a breadth-first search in Python can be, to compare the explorer with.

Plain tuples, a set, a queue, two assertions a state; no paths, no coverage, no verdict. The
machine is that of ``block_pool.py``. Run as ``python benchmarks/plain_search.py 5 2 3``; with
``--explore`` before the sizes, the explorer searches this machine, tuples and all.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator

from cowtail.spec.explorer import Invariant, explore

NONE, PENDING, DONE = range(3)

State = tuple[tuple[tuple[int, ...], ...], tuple[bool, ...], tuple[int, ...], tuple[int, ...]]
"""Block tables, whether each one's last block is full, reference counts, offloads."""

Action = tuple[str, int, int]


def initial(blocks: int, requests: int) -> State:
    """Return the state in which nothing is allocated."""
    return ((),) * requests, (False,) * requests, (0,) * blocks, (NONE,) * blocks


def successors(state: State, length: int) -> Iterator[tuple[Action, State]]:
    """Yield every action with the state it leads to."""
    tables, full, references, offloads = state
    free = [b for b, n in enumerate(references) if not n and offloads[b] != PENDING]
    for r, table in enumerate(tables):
        if len(table) < length and (full[r] or not table):
            for b in free:
                yield (
                    ("alloc", r, b),
                    (
                        put(tables, r, (*table, b)),
                        put(full, r, False),
                        put(references, b, 1),
                        put(offloads, b, NONE),
                    ),
                )
        if not table:
            continue
        last = table[-1]
        if not full[r] and references[last] == 1:
            yield ("fill", r, last), (tables, put(full, r, True), references, offloads)
        elif not full[r]:
            left = put(references, last, references[last] - 1)
            for b in free:
                yield (
                    ("cow", r, b),
                    (
                        put(tables, r, (*table[:-1], b)),
                        full,
                        put(left, b, 1),
                        put(offloads, b, NONE),
                    ),
                )
        released = tuple(n - (b in table) for b, n in enumerate(references))
        yield ("free", r, 0), (put(tables, r, ()), put(full, r, False), released, offloads)
        for s, other in enumerate(tables):
            if not other:
                shared = tuple(n + (b in table) for b, n in enumerate(references))
                yield (
                    ("fork", r, s),
                    (put(tables, s, table), put(full, s, full[r]), shared, offloads),
                )
        for i, b in enumerate(table):
            if (full[r] or b != last) and offloads[b] == NONE:
                yield (
                    ("offload_start", r, i),
                    (tables, full, references, put(offloads, b, PENDING)),
                )
    for b, offload in enumerate(offloads):
        if offload == PENDING:
            yield ("offload_done", b, 0), (tables, full, references, put(offloads, b, DONE))


def put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    """Return the tuple with one value replaced."""
    return (*values[:index], value, *values[index + 1 :])


def check(state: State) -> None:
    """Assert both invariants."""
    tables, full, references, offloads = state
    counted = [0] * len(references)
    for table in tables:
        for b in table:
            counted[b] += 1
    assert tuple(counted) == references, f"reference counts: {state}"
    for r, table in enumerate(tables):
        assert full[r] or not table or offloads[table[-1]] == NONE, f"offload boundary: {state}"


def search(blocks: int, requests: int, length: int) -> tuple[int, int]:
    """Return the numbers of states and of transitions."""
    start = initial(blocks, requests)
    seen, waiting, edges = {start}, deque([start]), 0
    while waiting:
        state = waiting.popleft()
        check(state)
        for _, successor in successors(state, length):
            edges += 1
            if successor not in seen:
                seen.add(successor)
                waiting.append(successor)
    return len(seen), edges


class PlainMachine:
    """The same tuples as a machine, to see what the explorer costs when nothing is packed."""

    def __init__(self, blocks: int, requests: int, length: int) -> None:
        self.blocks, self.requests, self.length = blocks, requests, length

    def initial(self) -> State:
        """Return the state in which nothing is allocated."""
        return initial(self.blocks, self.requests)

    def successors(self, state: State) -> Iterator[tuple[Action, State, tuple[str, ...]]]:
        """Yield what the plain search goes through; there are no events."""
        for action, successor in successors(state, self.length):
            yield action, successor, ()

    def key(self, state: State) -> State:
        """Return the state."""
        return state

    def action_name(self, action: Action) -> str:
        """Return the action without its arguments."""
        return action[0]

    def is_quiescent(self, state: State) -> bool:
        """Return False: something can always happen next."""
        return False


def main() -> None:
    """Search, plainly or with the explorer, and print states, transitions and seconds."""
    arguments = sys.argv[1:]
    with_explorer = arguments[:1] == ["--explore"]
    blocks, requests, length = map(int, arguments[with_explorer:])
    started = time.perf_counter()
    if with_explorer:
        found = explore(
            PlainMachine(blocks, requests, length),
            invariants=[Invariant("B", "both", "Both invariants hold.", "check", check)],
            max_states=None,
            max_seconds=None,
        )
        states, edges = found.states, found.edges
    else:
        states, edges = search(blocks, requests, length)
    print(f"states={states} edges={edges} {time.perf_counter() - started:.3f}s")


if __name__ == "__main__":
    main()
