"""Broken states of jobs, pins and the store (S7-S9, S12, L5, L6)."""

from __future__ import annotations

import attrs

from cowtail.models.observations import Put, Status
from cowtail.models.state import JobMeta, State
from cowtail.spec.broken_states import edits
from cowtail.spec.broken_states.case import BrokenState


def _job(state: State) -> JobMeta | None:
    """Return the job that is first in the queue of every rank, its step having run."""
    first = state.ranks[0].queue[:1]
    alike = all(rank.queue[:1] == first for rank in state.ranks)
    ran = all(step.executed for step in state.steps)
    return first[0] if first and alike and ran and state.open_pass is None else None


def _saving_job(state: State) -> bool:
    job = _job(state)
    return job is not None and job.save_to > 0


def _tail_job(state: State) -> bool:
    job = _job(state)
    return job is not None and {(put.group, put.boundary) for put in job.puts} >= {(0, 1), (1, 1)}


def _puts(state: State) -> tuple[Put, ...]:
    job = _job(state)
    assert job is not None
    return job.puts


def _one_put(state: State, position: int, **changes: int) -> State:
    puts = _puts(state)
    return edits.job(state, puts=edits.at(puts, position, attrs.evolve(puts[position], **changes)))


def _at_rest_with_all_stored(state: State) -> bool:
    done = state.requests[0].status is Status.FINISHED and state.requests[0].outputs == 1
    busy = state.steps or state.pins or state.untold_finished or state.open_pass
    return done and not busy


BROKEN_STATES: tuple[BrokenState, ...] = (
    BrokenState(
        "S7",
        "the block of a put holds nothing",
        "lone_producer",
        _tail_job,
        edits.blank,
        "stores block",
    ),
    BrokenState(
        "S8",
        "a save goes past the end of prefill",
        "lone_producer",
        _job,
        lambda state: edits.job(state, save_to=4),
        "saves 4 tokens, past prefill of 2",
    ),
    BrokenState(
        "S8",
        "a state is stored past the end of prefill",
        "lone_producer",
        _tail_job,
        lambda state: _one_put(state, -1, boundary=3),
        "stores 3 tokens of group 1, past the 2 that a lookup can use",
    ),
    BrokenState(
        "S8",
        "attention is stored past the replay boundary",
        "lone_producer",
        _tail_job,
        lambda state: _one_put(state, 0, boundary=2),
        "stores 2 tokens of group 0, past the 1 that a lookup can use",
    ),
    BrokenState(
        "S8",
        "the null block is stored",
        "lone_producer",
        _tail_job,
        lambda state: _one_put(state, 0, block=0),
        "stores the null block",
    ),
    BrokenState(
        "S8",
        "the store holds other attention than its key names",
        "unequal_blocks",
        lambda state: any(entry.group == 0 for entry in state.store),
        lambda state: attrs.evolve(
            state,
            store=tuple(attrs.evolve(e, content=("",) * len(e.content)) for e in state.store),
        ),
        "the store holds",
    ),
    BrokenState(
        "S8",
        "the store holds another state than its key names",
        "unequal_blocks",
        lambda state: any(entry.group == 1 for entry in state.store),
        lambda state: attrs.evolve(
            state,
            store=tuple(
                attrs.evolve(e, content=("x",)) if e.group == 1 else e for e in state.store
            ),
        ),
        "of group 1",
    ),
    BrokenState(
        "S9",
        "a pinned block is free",
        "lone_producer",
        lambda state: state.pins,
        lambda state: edits.references(state, state.pins[0].blocks[0], 0),
        "which is free",
    ),
    BrokenState(
        "S9",
        "a pin stays that no rank owes",
        "lone_producer",
        lambda state: state.pins,
        lambda state: edits.pin(state, ranks_owed=()),
        "but it is still pinned",
    ),
    BrokenState(
        "S9",
        "a job that will run is not pinned",
        "lone_producer",
        _job,
        lambda state: attrs.evolve(state, pins=()),
        "may still run, but its blocks are not pinned",
    ),
    BrokenState(
        "S9",
        "a job does not pin what it puts",
        "lone_producer",
        _tail_job,
        lambda state: edits.pin(state, blocks=()),
        "which it does not pin",
    ),
    BrokenState(
        "S9",
        "a job does not pin what it saves",
        "unequal_blocks",
        _saving_job,
        lambda state: edits.job(edits.pin(state, blocks=()), puts=()),
        "which it does not pin",
    ),
    BrokenState(
        "S9",
        "a rank that has not run the job is struck off",
        "lone_producer",
        _job,
        lambda state: edits.pin(state, ranks_owed=state.pins[0].ranks_owed[1:]),
        "has not run job 0, but no longer holds its pin",
    ),
    BrokenState(
        "S9",
        "the pin of a retired job is gone before a rank has passed over it",
        "two_generations",
        lambda state: state.ranks[0].queue and not state.ranks[0].queue[0].live,
        lambda state: attrs.evolve(state, pins=()),
        "has not run job 0, but no longer holds its pin",
    ),
    BrokenState(
        "S12",
        "a state is stored without the attention beside it",
        "lone_producer",
        _tail_job,
        lambda state: edits.job(state, puts=_puts(state)[-1:]),
        "stores the state at 1, but not tokens 0 to 1 of group 0",
    ),
    BrokenState(
        "L6",
        "a rank lacks attention of a whole LCM",
        "unequal_blocks",
        _at_rest_with_all_stored,
        lambda state: attrs.evolve(state, store=tuple(e for e in state.store if e.rank == 0)),
        "rank 1 has stored nothing of 'a' in group 0 at [2, 4] tokens",
    ),
    BrokenState(
        "L6",
        "the state at the replay boundary is not stored",
        "unequal_blocks",
        _at_rest_with_all_stored,
        lambda state: attrs.evolve(
            state,
            store=tuple(e for e in state.store if (e.group, len(e.prefix)) != (1, 5)),
        ),
        "sent again would find",
    ),
    BrokenState(
        "L5",
        "a rank skips jobs at rest",
        "lone_producer",
        lambda state: True,
        lambda state: edits.rank(state, skipping=(0,)),
        "at rest, rank 0 still skips the jobs of ['a']",
    ),
)
"""In the order of the properties."""
