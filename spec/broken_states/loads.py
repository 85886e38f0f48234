"""Broken states of loads, lookups and held requests (S16-S20)."""

from __future__ import annotations

import attrs

from cowtail.models.observations import Key, Status
from cowtail.models.state import DeviceStep, HeldRequest, ScheduledChunk, State
from cowtail.spec.broken_states import edits
from cowtail.spec.broken_states.case import BrokenState


def _loading(state: State) -> bool:
    return bool(state.loads) and all(rank.loads for rank in state.ranks)


def _written(state: State) -> int:
    """Return the last attention block that the load of the first request writes."""
    return state.requests[state.loads[0].request].tables[0].blocks[-1]


def _with_a_step_that_uses_it(state: State) -> State:
    tables = tuple(table.blocks for table in state.requests[0].tables)
    chunk = ScheduledChunk(0, 0, state.loads[0].end, False, tables)
    return attrs.evolve(state, steps=(*state.steps, DeviceStep((chunk,))))


def _loaded(state: State) -> bool:
    return state.requests[0].status is Status.LOADED


def _leased_answer(state: State) -> bool:
    return state.requests[0].leased and state.requests[0].answer is not None


def _leased_load(state: State) -> bool:
    return state.requests[0].leased and state.requests[0].status is Status.LOADING


def _sending(state: State) -> bool:
    return any(held.sending for held in state.held) and all(rank.sends for rank in state.ranks)


BROKEN_STATES: tuple[BrokenState, ...] = (
    BrokenState(
        "S16",
        "the table has lost what the load will write",
        "consumer_load",
        _loading,
        lambda state: edits.table(state, 0, blocks=()),
        "lost blocks that its load will write",
    ),
    BrokenState(
        "S16",
        "the load writes the null block",
        "consumer_load",
        _loading,
        lambda state: edits.table(state, 0, blocks=(0,) * len(state.requests[0].tables[0].blocks)),
        "the null block",
    ),
    BrokenState(
        "S16",
        "someone else holds what the load will write",
        "consumer_load",
        _loading,
        lambda state: edits.references(state, _written(state), 2),
        "which has 2 references",
    ),
    BrokenState(
        "S16",
        "nobody holds what the load will write",
        "consumer_load",
        _loading,
        lambda state: edits.references(state, _written(state), 0),
        "which has 0 references",
    ),
    BrokenState(
        "S16",
        "what the load will write is keyed",
        "consumer_load",
        _loading,
        lambda state: edits.pool(
            state, keys=edits.at(state.pool.keys, _written(state), (Key(0, "ab"),))
        ),
        "which is keyed",
    ),
    BrokenState(
        "S16",
        "a step in flight uses what the load will write",
        "consumer_load",
        _loading,
        _with_a_step_that_uses_it,
        "which a step in flight of 'a' uses",
    ),
    BrokenState(
        "S17",
        "a request waits for two loads",
        "consumer_load",
        _loading,
        lambda state: attrs.evolve(state, loads=state.loads * 2),
        "a request waits for two loads",
    ),
    BrokenState(
        "S17",
        "a request waits for no load",
        "consumer_load",
        _loading,
        lambda state: attrs.evolve(state, loads=()),
        "'a' is loading, and there is no load for it",
    ),
    BrokenState(
        "S17",
        "a load is for nobody who waits",
        "consumer_load",
        _loading,
        lambda state: edits.request(state, status=Status.RUNNING),
        "'a' is running, and there is a load for it",
    ),
    BrokenState(
        "S17",
        "a rank is held to a load and has none",
        "consumer_load",
        _loading,
        lambda state: edits.rank(state, loads=()),
        "rank 0 has 0 loads of 'a' to report, and owes 1",
    ),
    BrokenState(
        "S17",
        "a rank has a load twice",
        "consumer_load",
        _loading,
        lambda state: edits.rank(state, loads=state.ranks[0].loads * 2),
        "rank 0 has 2 loads of 'a' to report, and owes 1",
    ),
    BrokenState(
        "S17",
        "a rank has a load and is not held to it",
        "consumer_load",
        _loading,
        lambda state: attrs.evolve(state, loads=(attrs.evolve(state.loads[0], ranks_owed=(1,)),)),
        "rank 0 has 1 loads of 'a' to report, and owes 0",
    ),
    BrokenState(
        "S18",
        "what was loaded is not there",
        "consumer_load",
        _loaded,
        edits.blank,
        "'a' is loaded, but in block",
    ),
    BrokenState(
        "S19",
        "what an answer was about is gone",
        "leased_lookup",
        _leased_answer,
        lambda state: attrs.evolve(state, store=()),
        "has a lease on",
    ),
    BrokenState(
        "S19",
        "what a load reads is gone",
        "leased_lookup",
        _leased_load,
        lambda state: attrs.evolve(state, store=()),
        "has a lease on",
    ),
    BrokenState(
        "S19",
        "the attention that an answer was about is gone",
        "leased_lookup",
        _leased_answer,
        lambda state: attrs.evolve(state, store=tuple(e for e in state.store if e.group)),
        "group 0 has nothing for tokens 0 to 2",
    ),
    BrokenState(
        "S19",
        "the state that an answer was about is gone",
        "leased_lookup",
        _leased_answer,
        lambda state: attrs.evolve(state, store=tuple(e for e in state.store if not e.group)),
        "group 1 has no state at exactly 2",
    ),
    BrokenState(
        "S19",
        "a lease outlives the answer that it was for",
        "leased_lookup",
        _leased_answer,
        lambda state: edits.request(state, answer=None),
        "is waiting and still has a lease",
    ),
    BrokenState(
        "S20",
        "a request is held that has not finished",
        "two_peers_retain",
        _sending,
        lambda state: edits.request(state, status=Status.RUNNING),
        "'a' is held, and has not finished",
    ),
    BrokenState(
        "S20",
        "a request is held for no rank",
        "two_peers_retain",
        _sending,
        lambda state: attrs.evolve(state, held=(HeldRequest(0, True, ()),)),
        "every rank is done with 'a', but it is still held",
    ),
    BrokenState(
        "S20",
        "a rank that is waited for sends nothing",
        "two_peers_retain",
        _sending,
        lambda state: edits.rank(state, sends=()),
        "'a' is held for rank 0, which will not report it once",
    ),
    BrokenState(
        "S20",
        "a rank has reported and still sends",
        "two_peers_retain",
        _sending,
        lambda state: attrs.evolve(state, send_inbox=((0, 0),)),
        "'a' is held for rank 0, which will not report it once",
    ),
)
"""In the order of the properties."""
