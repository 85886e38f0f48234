"""An example machine: a block pool, packed into one integer a state.

N blocks, R requests, at most L blocks a request. A request allocates a block, fills it, shares
its table by a fork, gets a private copy of a shared unfilled block (copy-on-write), offloads
blocks before its write boundary, and frees its table. Other checkers are measured on the same
machine (see ``README.md``), so its state counts are known.

The layout of a state, from the low bits up:

- four bits a block: two for the reference count, one for *pending*, one for *done*;
- a word a request: three bits a table entry (block + 1, or 0), then one bit for *full*, that
  is, the last block is filled.

What a request with a given word contributes to a state, the word and one reference a block, is
a number, its *holding*. So whatever an action does to a table adds the difference of two
holdings, and all differences are known before the search starts: they are the ``Moves`` of a
word.

>>> pool = BlockPool(blocks=2, requests=2, length=2)
>>> [action for action, _, _ in pool.successors(pool.initial())]
['alloc r0 b0', 'alloc r0 b1', 'alloc r1 b0', 'alloc r1 b1']
>>> pool.describe(pool.successors(pool.initial())[1][1])
'tables [1*] []; references 0 1; offloads none none'
"""

from __future__ import annotations

import sys
from itertools import permutations

import attrs

from cowtail.spec.explorer import Invariant, explore

Step = tuple[str, int, tuple[str, ...]]

ACTION_NAMES = ("alloc", "cow", "fill", "fork", "free", "offload_done", "offload_start")
NO_EVENTS: tuple[str, ...] = ()

BLOCK_BITS = 4
REFERENCES, PENDING, DONE = 0b0011, 0b0100, 0b1000
ENTRY_BITS = 3
MAX_REQUESTS, MAX_BLOCKS = 3, 7


@attrs.frozen
class Table:
    """A request's block table; ``full`` if its last block is filled."""

    blocks: tuple[int, ...] = ()
    full: bool = False


@attrs.frozen
class Moves:
    """What a request with one table can do, as differences of the state.

    ``grow``, ``copy`` and ``fork`` are indexed by the new block or the other request; they, and
    ``offload``, are empty where the table does not allow it. ``offload`` has the index, the
    mask of the offload bits, and the pending bit of every block before the write boundary.
    Of a last block that is not filled, ``last_references`` is the mask of its reference count,
    ``last_once`` the count of one, ``last_offload`` the mask of its offload bits.
    """

    table: Table
    grow: tuple[int, ...]
    copy: tuple[int, ...]
    fill: int
    free: int
    fork: tuple[int, ...]
    offload: tuple[tuple[int, int, int], ...]
    last_references: int
    last_once: int
    last_offload: int
    references: int


class BlockPool:
    """The block pool as a machine for the explorer.

    Raises:
        ValueError: a size that the layout has no room for.
    """

    def __init__(
        self, blocks: int = 5, requests: int = 2, length: int = 3, *, symmetry: bool = False
    ) -> None:
        if not (0 < blocks <= MAX_BLOCKS and 0 < requests <= MAX_REQUESTS and length > 0):
            raise ValueError(
                f"blocks={blocks}, requests={requests}, length={length}: the packed state has room "
                f"for 1 to {MAX_BLOCKS} blocks and 1 to {MAX_REQUESTS} requests of length 1 or more"
            )
        self.symmetry = symmetry
        self._blocks, self._requests, self._length = range(blocks), range(requests), length
        self._full = 1 << ENTRY_BITS * length
        self._word = 2 * self._full - 1
        self._shifts = [BLOCK_BITS * blocks + (ENTRY_BITS * length + 1) * r for r in self._requests]
        self._busy = [(REFERENCES | PENDING) << BLOCK_BITS * b for b in self._blocks]
        self._kept = [~(DONE << BLOCK_BITS * b) for b in self._blocks]
        self._pending = [PENDING << BLOCK_BITS * b for b in self._blocks]
        self._all_references = sum(REFERENCES << BLOCK_BITS * b for b in self._blocks)
        self._alloc = [[f"alloc r{r} b{b}" for b in self._blocks] for r in self._requests]
        self._cow = [[f"cow r{r} b{b}" for b in self._blocks] for r in self._requests]
        self._fork = [[f"fork r{r} r{s}" for s in self._requests] for r in self._requests]
        self._start = [[f"offload_start r{r} {i}" for i in range(length)] for r in self._requests]
        self._fill = [f"fill r{r}" for r in self._requests]
        self._free = [f"free r{r}" for r in self._requests]
        self._done = [f"offload_done b{b}" for b in self._blocks]
        tables = [
            Table(entries, full)
            for size in range(length + 1)
            for entries in permutations(self._blocks, size)
            for full in ((False, True) if size else (False,))
        ]
        self._moves = [
            (shift, {self._word_of(table): self._moves_of(r, table) for table in tables})
            for r, shift in enumerate(self._shifts)
        ]

    def initial(self) -> int:
        """Return the state in which every block is free and no request has any."""
        return 0

    def successors(self, state: int) -> list[Step]:
        """Return every enabled action with the state it leads to; there are no events."""
        steps: list[Step] = []
        add = steps.append
        kept = self._kept
        free = [b for b, busy in enumerate(self._busy) if not state & busy]
        words = [state >> shift & self._word for shift in self._shifts]
        for r, word in enumerate(words):
            moves = self._moves[r][1][word]
            if moves.grow:
                alloc, grow = self._alloc[r], moves.grow
                for b in free:
                    add((alloc[b], (state & kept[b]) + grow[b], NO_EVENTS))
            if not word:
                continue
            if not word & self._full:
                if state & moves.last_references == moves.last_once:
                    add((self._fill[r], state + moves.fill, NO_EVENTS))
                else:
                    cow, copy = self._cow[r], moves.copy
                    for b in free:
                        add((cow[b], (state & kept[b]) + copy[b], NO_EVENTS))
            add((self._free[r], state + moves.free, NO_EVENTS))
            for s, other in enumerate(words):
                if not other:
                    add((self._fork[r][s], state + moves.fork[s], NO_EVENTS))
            for i, offloaded, pending in moves.offload:
                if not state & offloaded:
                    add((self._start[r][i], state + pending, NO_EVENTS))
        for b, pending in enumerate(self._pending):
            if state & pending:  # adding the bit again carries it over to *done*
                add((self._done[b], state + pending, NO_EVENTS))
        return steps

    def key(self, state: int) -> int:
        """Return the state; with symmetry, one state for all that renaming makes of it."""
        return self._canonical(state) if self.symmetry else state

    def action_name(self, action: str) -> str:
        """Return the action without its request and block."""
        return action.partition(" ")[0]

    def is_quiescent(self, state: int) -> bool:
        """Return False: whatever happens, something can happen next."""
        return False

    def invariants(self) -> tuple[Invariant[int], ...]:
        """Return what must hold of every state."""
        return (
            Invariant(
                "B1",
                "conservation",
                "A block's reference count is the number of tables that it occurs in.",
                "benchmarks/README.md",
                self._references_equal_occurrences,
            ),
            Invariant(
                "B2",
                "offload boundary",
                "A last block that is not filled is not offloaded.",
                "benchmarks/README.md",
                self._unfilled_is_not_offloaded,
            ),
        )

    def describe(self, state: int) -> str:
        """Return the state for a reader; ``*`` marks a last block that is not filled."""
        tables = self._tables_in(state)
        fields = [state >> BLOCK_BITS * b for b in self._blocks]
        offloads = ["pending" if f & PENDING else "done" if f & DONE else "none" for f in fields]
        shown = [
            f"[{' '.join(map(str, table.blocks))}{'*' * (bool(table.blocks) and not table.full)}]"
            for table in tables
        ]
        references = " ".join(str(field & REFERENCES) for field in fields)
        return f"tables {' '.join(shown)}; references {references}; offloads {' '.join(offloads)}"

    def _references_equal_occurrences(self, state: int) -> str | None:
        occurrences = 0
        for shift, moves in self._moves:
            occurrences += moves[state >> shift & self._word].references
        if state & self._all_references == occurrences:
            return None
        return f"the reference counts are not the occurrences: {self.describe(state)}"

    def _unfilled_is_not_offloaded(self, state: int) -> str | None:
        for shift, moves in self._moves:
            if state & moves[state >> shift & self._word].last_offload:
                return f"a block that is still written is offloaded: {self.describe(state)}"
        return None

    def _tables_in(self, state: int) -> list[Table]:
        return [moves[state >> shift & self._word].table for shift, moves in self._moves]

    def _word_of(self, table: Table) -> int:
        entries = sum(block + 1 << ENTRY_BITS * i for i, block in enumerate(table.blocks))
        return entries + self._full * table.full

    def _holding(self, request: int, table: Table) -> int:
        """Return what a request with a table contributes to a state."""
        return (self._word_of(table) << self._shifts[request]) + _references(table)

    def _moves_of(self, request: int, table: Table) -> Moves:
        blocks, now = table.blocks, self._holding(request, table)
        tail = () if table.full else blocks[-1:]

        def difference(after: Table) -> int:
            return self._holding(request, after) - now

        grown = len(blocks) < self._length and not tail
        return Moves(
            table=table,
            grow=tuple(difference(Table((*blocks, b))) for b in self._blocks) if grown else (),
            copy=tuple(difference(Table((*blocks[:-1], b))) for b in self._blocks) if tail else (),
            fill=difference(Table(blocks, True)) if tail else 0,
            free=-now,
            fork=tuple(self._holding(s, table) for s in self._requests),
            offload=tuple(
                (i, (PENDING | DONE) << BLOCK_BITS * b, PENDING << BLOCK_BITS * b)
                for i, b in enumerate(blocks)
                if b not in tail
            ),
            references=_references(table),
            last_references=sum(REFERENCES << BLOCK_BITS * b for b in tail),
            last_once=sum(1 << BLOCK_BITS * b for b in tail),
            last_offload=sum((PENDING | DONE) << BLOCK_BITS * b for b in tail),
        )

    def _canonical(self, state: int) -> int:
        """Return the smallest state over the orders of requests, blocks named as they occur.

        Requests go by size and *full* first, so that only the like are tried in every order.
        Blocks in no table differ in their offload bits only: they are sorted by them.
        """
        tables = self._tables_in(state)
        tables.sort(key=_shape)
        shapes = [_shape(table) for table in tables]
        fields = [state >> BLOCK_BITS * b & 0b1111 for b in self._blocks]
        return min(
            self._renamed(order, fields)
            for order in permutations(tables)
            if [_shape(table) for table in order] == shapes
        )

    def _renamed(self, tables: tuple[Table, ...], fields: list[int]) -> int:
        held = dict.fromkeys(b for table in tables for b in table.blocks)
        rest = sorted((b for b in self._blocks if b not in held), key=fields.__getitem__)
        name = {block: new for new, block in enumerate((*held, *rest))}
        state = sum(fields[block] << BLOCK_BITS * new for block, new in name.items())
        for shift, table in zip(self._shifts, tables, strict=True):
            word = self._full * table.full
            for i, block in enumerate(table.blocks):
                word += name[block] + 1 << ENTRY_BITS * i
            state += word << shift
        return state


def _shape(table: Table) -> tuple[int, bool]:
    return len(table.blocks), table.full


def _references(table: Table) -> int:
    """Return one reference for each block of a table."""
    return sum(1 << BLOCK_BITS * block for block in table.blocks)


def main() -> None:
    """Explore the machine of the sizes on the command line; print states and seconds."""
    pool = BlockPool(*map(int, sys.argv[1:4]))
    found = explore(
        pool,
        invariants=pool.invariants(),
        required_actions=ACTION_NAMES,
        max_states=None,
        max_seconds=None,
    )
    print(f"states={found.states} edges={found.edges} {found.seconds:.3f}s {found.verdict.value}")


if __name__ == "__main__":
    main()
