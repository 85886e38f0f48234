"""Broken states of bytes: copies, keyed blocks, hits, writers (S3-S6)."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from cowtail.models import lookup
from cowtail.models.block_pool import Pool
from cowtail.models.lookup import Hit
from cowtail.models.observations import Key, Put, Status
from cowtail.models.scope import Scope
from cowtail.models.state import JobMeta, ScheduledChunk, State
from cowtail.spec.broken_states import edits
from cowtail.spec.broken_states.case import BrokenState, Replaced


def _keyed(group: int) -> Callable[[State], bool]:
    """Return whether a block of ``group`` is keyed and every step has run."""
    return lambda state: (
        state.open_pass is None
        and all(step.executed for step in state.steps)
        and any(key.group == group for key, _ in state.pool.index)
    )


def _first_keyed(state: State, group: int) -> int:
    return next(block for key, block in state.pool.index if key.group == group)


def _waits(state: State) -> bool:
    return state.requests[0].status is Status.WAITING


def _finds(length: int, *blocks: tuple[int, ...]) -> Replaced:
    """Return a lookup that answers with a hit whatever the pool has."""

    def found(scope: Scope, pool: Pool, tokens: str) -> Hit:
        return Hit(length, blocks)

    return lookup, "find_hit", found


def _keyed_to_the_hit_only(state: State) -> State:
    keys = edits.at(state.pool.keys, 1, (Key(0, "a"),))
    return edits.pool(
        state,
        keys=edits.at(keys, 2, (Key(1, "a"),)),
        index=((Key(0, "a"), 1), (Key(1, "a"), 2)),
    )


def _scheduled(state: State) -> bool:
    return state.open_pass is not None and bool(state.open_pass.scheduled)


def _chunk(state: State) -> ScheduledChunk:
    return edits.opened(state).scheduled[0]


def _into_the_null_block(state: State) -> State:
    chunk = attrs.evolve(_chunk(state), tables=((0,), *_chunk(state).tables[1:]))
    return edits.in_pass(state, scheduled=(chunk,))


def _two_prompts(state: State) -> bool:
    """Whether the first request is scheduled and the second has nothing yet."""
    return _scheduled(state) and _chunk(state).request == 0 and not state.admitted[1:]


def _held_by_another(group: int) -> Callable[[State], State]:
    return lambda state: edits.table(state, group, 1, blocks=_chunk(state).tables[group])


def _writes(state: State) -> bool:
    """Whether a job is queued, and the open pass schedules its request from within a block."""
    queued = bool(state.ranks[0].queue) and state.ranks[0].queue[0].live
    return queued and _scheduled(state) and not state.steps


def _stores(group: int) -> Callable[[State], State]:
    """Return the edit after which a job stores, as something else, what a chunk will write."""

    def edit(state: State) -> State:
        chunk = _chunk(state)
        block = chunk.tables[group][(chunk.end - 1) // 2]
        return edits.job(state, puts=(Put(group, block, chunk.end + 1),), request=1)

    return edit


def _saves_for_another(state: State) -> State:
    chunk = _chunk(state)
    job = JobMeta(9, 1, (), 2, (chunk.tables[0], ()), (), 2)
    return edits.rank(state, queue=(job,))


def _copies_in_pass(state: State) -> bool:
    return state.open_pass is not None and bool(state.open_pass.copies)


def _copy_to_run(state: State) -> bool:
    ahead = state.steps[-1:]
    return bool(ahead and not ahead[0].executed and ahead[0].copies) and state.open_pass is None


BROKEN_STATES: tuple[BrokenState, ...] = (
    BrokenState(
        "S6",
        "nothing keeps the source of a copy",
        "shared_prefix",
        _copies_in_pass,
        lambda state: edits.references(state, edits.opened(state).copies[0].source, 0),
        "has an endpoint that nothing keeps",
    ),
    BrokenState(
        "S6",
        "nothing keeps the destination of a copy",
        "shared_prefix",
        _copies_in_pass,
        lambda state: edits.references(state, edits.opened(state).copies[0].destination, 0),
        "has an endpoint that nothing keeps",
    ),
    BrokenState(
        "S6",
        "a copy goes into the null block",
        "shared_prefix",
        _copies_in_pass,
        lambda state: edits.in_pass(
            state, copies=(attrs.evolve(edits.opened(state).copies[0], destination=0),)
        ),
        "has an endpoint that nothing keeps",
    ),
    BrokenState(
        "S6",
        "the source is zeroed before it is read",
        "shared_prefix",
        _copy_to_run,
        lambda state: edits.step(state, new_blocks=(state.steps[-1].copies[0].source,)),
        "reads a block that this step has just zeroed",
    ),
    BrokenState(
        "S6",
        "the source holds nothing",
        "shared_prefix",
        _copy_to_run,
        lambda state: edits.blank(state, state.steps[-1].copies[0].source),
        "reads a block that holds nothing",
    ),
    BrokenState(
        "S3",
        "keyed attention holds nothing",
        "lone_producer",
        _keyed(0),
        lambda state: edits.blank(state, _first_keyed(state, 0)),
        "slot 0 holds ''",
    ),
    BrokenState(
        "S3",
        "a keyed state is another",
        "lone_producer",
        _keyed(1),
        lambda state: edits.blank(state, _first_keyed(state, 1)),
        "it holds the state ''",
    ),
    BrokenState(
        "S4",
        "a hit leaves no token to compute",
        "lone_producer",
        _waits,
        lambda state: state,
        "'a' hits 2 of 2 tokens: none is left to compute",
        _finds(2, (1,), (2,)),
    ),
    BrokenState(
        "S4",
        "a hit ends between hash units",
        "window_load",
        _waits,
        lambda state: state,
        "'a' hits 1, not a multiple of 2",
        _finds(1, (1,), (1,)),
    ),
    BrokenState(
        "S4",
        "a hit of nothing supplies blocks",
        "lone_producer",
        _waits,
        lambda state: state,
        "'a' hits 0 tokens, but group 1 still supplies (2,)",
        _finds(0, (), (2,)),
    ),
    BrokenState(
        "S4",
        "a block of the hit is not keyed",
        "lone_producer",
        _waits,
        lambda state: state,
        "'a' hits 1 tokens, but group 0 has nothing for tokens 0 to 1",
        _finds(1, (1,), (2,)),
    ),
    BrokenState(
        "S4",
        "a drafter's group is not cached one unit further",
        "eagle_pair",
        _waits,
        _keyed_to_the_hit_only,
        "'a' hits 1 tokens, but group 0 drops its last unit and is not cached to 2",
        _finds(1, (1,), (2,)),
    ),
    BrokenState(
        "S5",
        "a chunk writes into the null block",
        "lone_producer",
        _scheduled,
        _into_the_null_block,
        "'a' will write block 0 (group 0), but it is the null block",
    ),
    BrokenState(
        "S5",
        "attention goes into a block of another request",
        "store_pressure",
        _two_prompts,
        _held_by_another(0),
        "(group 0), but it is in a table of 'b'",
    ),
    BrokenState(
        "S5",
        "a state goes into a block of another request",
        "store_pressure",
        _two_prompts,
        _held_by_another(1),
        "(group 1), but it is in a table of 'b'",
    ),
    BrokenState(
        "S5",
        "attention is overwritten that a job stores",
        "store_pressure",
        _writes,
        _stores(0),
        "(group 0), but job 0 stores it under the prefix of",
    ),
    BrokenState(
        "S5",
        "a state is overwritten that a job stores",
        "store_pressure",
        _writes,
        _stores(1),
        "(group 1), but job 0 stores it under the prefix of",
    ),
    BrokenState(
        "S5",
        "a block is overwritten that a job saves",
        "store_pressure",
        _two_prompts,
        _saves_for_another,
        "but job 9 saves it as part of 2 tokens",
    ),
)
"""In the order of the properties."""
