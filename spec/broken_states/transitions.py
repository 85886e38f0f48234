"""Broken transitions: who is released, tails, the store, resets (the T numbers, S11, S13, S14)."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from cowtail.models.actions import (
    Abort,
    Admit,
    EndPass,
    Execute,
    Extend,
    LookUp,
    Preempt,
    Reset,
    RunJob,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.observations import Key, Status
from cowtail.models.state import Answer, DeferredFree, DeviceStep, ScheduledChunk, State
from cowtail.spec.broken_states import edits
from cowtail.spec.broken_states.case import BrokenStep, Step


def _after(edit: Callable[[State], State]) -> Callable[[Step], Step]:
    """Return the edit of the state after the action, alone."""
    return lambda step: attrs.evolve(step, after=edit(step.after))


def _last_report(step: Step) -> bool:
    """Whether the scheduler consumes the last report of the only pin."""
    consumed = isinstance(step.action, UpdateConnectorOutput)
    return consumed and bool(step.before.pins) and not step.after.pins


def _released(step: Step) -> bool:
    return bool(step.before.held) and not step.after.held


def _aborted_load_released(step: Step) -> bool:
    return _released(step) and not step.before.held[0].sending


def _still_sending(state: State) -> State:
    return edits.rank(state, sends=((0, 0),))


def _load_ends(well: bool) -> Callable[[Step], bool]:
    """Return whether the scheduler consumes the last report of a load that went well, or not."""

    def found(step: Step) -> bool:
        if not step.before.loads or step.after.loads:
            return False
        held = step.after.requests[0].status is Status.FINISHED
        return not held and _went_well(step.before) is well

    return found


def _went_well(state: State) -> bool:
    return not state.loads[0].failed and all(well for _, _, well in state.load_inbox)


def _handed_off_at_finish(step: Step) -> bool:
    return isinstance(step.action, Abort) and bool(step.after.queued_tails)


def _copied(step: Step) -> bool:
    return isinstance(step.action, Extend) and any(
        table.marker is not None for table in step.before.requests[0].tables
    )


def _flies(state: State) -> State:
    chunk = ScheduledChunk(0, 0, 1, False, ())
    return attrs.evolve(state, steps=(*state.steps, DeviceStep((chunk,), executed=True)))


def _past_its_boundary(step: Step) -> Step:
    computed = step.before.requests[0].computed + 1
    return attrs.evolve(step, before=edits.request(step.before, computed=computed))


def _offered(times: int) -> Callable[[State], State]:
    return lambda state: edits.in_pass(state, offers=edits.opened(state).offers * times)


def _offers(step: Step) -> bool:
    return isinstance(step.action, EndPass) and bool(edits.opened(step.before).offers)


def _ships_a_tail(step: Step) -> bool:
    return isinstance(step.action, EndPass) and bool(step.before.queued_tails)


def _answered(step: Step) -> bool:
    answer = step.after.requests[0].answer
    return isinstance(step.action, LookUp) and answer is not None and answer.length > 0


def _nothing_was_stored(step: Step) -> Step:
    return attrs.evolve(step, before=attrs.evolve(step.before, store=()))


def _admitted_to_a_load(step: Step) -> bool:
    return isinstance(step.action, Admit) and bool(step.after.loads)


def _answers(length: int) -> Callable[[Step], Step]:
    return _after(lambda state: edits.request(state, answer=Answer(length)))


def _loads_to_the_end(state: State) -> State:
    load = attrs.evolve(state.loads[0], end=len("abcd"))
    return attrs.evolve(state, loads=(load,))


def _rose(step: Step) -> bool:
    saved = step.before.ranks[0].saved, step.after.ranks[0].saved
    return isinstance(step.action, RunJob) and saved[1] > saved[0]


def _runs_another_job(step: Step) -> bool:
    return isinstance(step.action, RunJob) and _rose(step) and step.before.ranks[0].saved[0] > 0


def _runs_a_tail(step: Step) -> bool:
    return step.action == RunJob(0) and not step.before.ranks[0].queue[0].save_to


def _resets_with_something_saved(step: Step) -> bool:
    return isinstance(step.action, Reset) and any(step.before.ranks[0].saved)


def _reset(*, busy: bool) -> Callable[[Step], bool]:
    """Return whether a transition resets the cache, with blocks referenced or without."""

    def found(step: Step) -> bool:
        referenced = any(step.after.pool.ref_counts) or bool(step.after.deferred)
        keyed = bool(step.before.pool.index)
        return isinstance(step.action, Reset) and keyed and referenced is busy

    return found


def _reset_while_running(step: Step) -> bool:
    reset = isinstance(step.action, Reset) and step.action.running
    return reset and step.before.requests[0].status is Status.RUNNING


def _runs_on(state: State) -> State:
    return edits.request(state, status=Status.RUNNING)


def _store_reset(step: Step) -> bool:
    return isinstance(step.action, Reset) and step.action.store and bool(step.before.store)


def _store_stays(step: Step) -> Step:
    return attrs.evolve(step, after=attrs.evolve(step.after, store=step.before.store))


def _preempted_for_blocks(step: Step) -> bool:
    spent = step.before.spent.preemptions, step.after.spent.preemptions
    return isinstance(step.action, Preempt) and spent[0] == spent[1]


def _its_blocks_are_on_their_way_back(step: Step) -> Step:
    """Let the blocks that the preempted request gives back be deferred before that already."""
    before, after = step.before.pool.ref_counts, step.after.pool.ref_counts
    given = tuple(block for block in range(len(before)) if before[block] > after[block])
    return attrs.evolve(step, before=attrs.evolve(step.before, deferred=(DeferredFree(1, given),)))


BROKEN_STEPS: tuple[BrokenStep, ...] = (
    BrokenStep(
        "T1",
        "a tail is handed off with tokens in flight",
        "lone_producer",
        _handed_off_at_finish,
        _after(_flies),
        "'a' finished with 1 tokens in flight at 1 computed",
    ),
    BrokenStep(
        "T1",
        "a tail is handed off past its boundary",
        "lone_producer",
        _handed_off_at_finish,
        _past_its_boundary,
        "'a' finished with 0 tokens in flight at 2 computed",
    ),
    BrokenStep(
        "T1",
        "a tail at its boundary is not handed off",
        "lone_producer",
        _handed_off_at_finish,
        _after(lambda state: attrs.evolve(state, queued_tails=())),
        "'a' finished at the boundary of its tail, and nothing was handed off",
    ),
    BrokenStep(
        "T3",
        "a copy is not offered",
        "lone_producer",
        _copied,
        _after(_offered(0)),
        "and 0 copies of it were offered",
    ),
    BrokenStep(
        "T3",
        "a copy is offered twice",
        "lone_producer",
        _copied,
        _after(_offered(2)),
        "and 2 copies of it were offered",
    ),
    BrokenStep(
        "T8",
        "a pass offers a state of a request that it preempts",
        "cow_decode",
        _offers,
        lambda step: attrs.evolve(step, before=edits.in_pass(step.before, preempted=(0,))),
        "and the pass has preempted that request",
    ),
    BrokenStep(
        "T9",
        "a queued tail is not shipped",
        "lone_producer",
        _ships_a_tail,
        _after(lambda state: edits.step(state, jobs=())),
        "the queued job 0 was not shipped with it",
    ),
    BrokenStep(
        "T9",
        "a tail that was shipped stays queued",
        "lone_producer",
        _ships_a_tail,
        lambda step: attrs.evolve(
            step, after=attrs.evolve(step.after, queued_tails=step.before.queued_tails)
        ),
        "and job 0 is still queued",
    ),
    BrokenStep(
        "T2",
        "a pin goes although a rank is silent",
        "lone_producer",
        _last_report,
        lambda step: attrs.evolve(step, before=attrs.evolve(step.before, inbox=())),
        "the pin of job 0 went although ranks",
    ),
    BrokenStep(
        "T2",
        "a pin goes by another action than the update",
        "lone_producer",
        _last_report,
        lambda step: attrs.evolve(step, action=UpdateFromOutput()),
        "the pin of job 0 went although ranks []",
    ),
    BrokenStep(
        "T5",
        "a held request is released although a rank is silent",
        "two_peers_retain",
        _released,
        lambda step: attrs.evolve(step, before=attrs.evolve(step.before, send_inbox=())),
        "'a' was released although ranks",
    ),
    BrokenStep(
        "T5",
        "a held request is released by another action than the update",
        "two_peers_retain",
        _released,
        lambda step: attrs.evolve(step, action=UpdateFromOutput()),
        "'a' was released although ranks []",
    ),
    BrokenStep(
        "T5",
        "an aborted load is released although a rank is silent",
        "load_or_retain",
        _aborted_load_released,
        lambda step: attrs.evolve(step, before=attrs.evolve(step.before, load_inbox=())),
        "'a' was released although ranks [0]",
    ),
    BrokenStep(
        "T5",
        "a held request is released while a child sends it",
        "two_peers_retain",
        _released,
        _after(_still_sending),
        "'a' was released although ranks [0] still send it for some child",
    ),
    BrokenStep(
        "T6",
        "a load ends although a rank is silent",
        "consumer_load",
        _load_ends(well=True),
        lambda step: attrs.evolve(step, before=attrs.evolve(step.before, load_inbox=())),
        "the load of 'a' ended although ranks",
    ),
    BrokenStep(
        "T6",
        "a load ends by another action than the update",
        "consumer_load",
        _load_ends(well=True),
        lambda step: attrs.evolve(step, action=UpdateFromOutput()),
        "the load of 'a' ended although ranks []",
    ),
    BrokenStep(
        "T6",
        "a load that went well counts as failed",
        "consumer_load",
        _load_ends(well=True),
        _after(lambda state: edits.request(state, status=Status.WAITING)),
        "the load of 'a' succeeded: waiting",
    ),
    BrokenStep(
        "T6",
        "a load that failed on a rank counts as done",
        "consumer_load",
        _load_ends(well=False),
        _after(lambda state: edits.request(state, status=Status.LOADED)),
        "the load of 'a' failed: loaded",
    ),
    BrokenStep(
        "T7",
        "a request is preempted for blocks that are on their way back",
        "preempt_under_pressure",
        _preempted_for_blocks,
        _its_blocks_are_on_their_way_back,
        "was preempted, and blocks on their way back would have done",
    ),
    BrokenStep(
        "T4",
        "an answer leaves no token to compute",
        "leased_lookup",
        _answered,
        _answers(3),
        "the store supplies 3 of 3 tokens of 'a'",
    ),
    BrokenStep(
        "T4",
        "an answer ends between hash units",
        "window_load",
        _answered,
        _answers(1),
        "the store supplies 1 of 7 tokens of 'a'",
    ),
    BrokenStep(
        "T4",
        "an answer is not in the store",
        "leased_lookup",
        _answered,
        _nothing_was_stored,
        "the store supplies 2 tokens of 'a', but group 0 has nothing for tokens 0 to 2",
    ),
    BrokenStep(
        "T4",
        "a load begins that leaves no token to compute",
        "consumer_load",
        _admitted_to_a_load,
        _after(_loads_to_the_end),
        "the store supplies 4 of 4 tokens of 'a'",
    ),
    BrokenStep(
        "T4",
        "a load begins of what is not in the store",
        "consumer_load",
        _admitted_to_a_load,
        _nothing_was_stored,
        "the store supplies 3 tokens of 'a', but group 0 has nothing for tokens 0 to 2",
    ),
    BrokenStep(
        "S11",
        "an offset rises over what is not stored",
        "evicted_prefix",
        _rose,
        _after(lambda state: attrs.evolve(state, store=())),
        "rank 0 moved from 0 to 4 tokens of 'a', and 0 are stored",
    ),
    BrokenStep(
        "S11",
        "an offset falls although all is stored",
        "evicted_prefix",
        _runs_another_job,
        _after(lambda state: edits.rank(state, saved=(0,))),
        "rank 0 moved from 4 to 0 tokens of 'a', and all are stored",
    ),
    BrokenStep(
        "S11",
        "a job that hands a tail over moves an offset",
        "lone_producer",
        _runs_a_tail,
        _after(lambda state: edits.rank(state, saved=(1,))),
        "rank 0 moved from 0 to 1 tokens of 'a', by job 0, which saves no prefix",
    ),
    BrokenStep(
        "S11",
        "a job moves the offset of another rank",
        "lone_producer",
        _runs_a_tail,
        _after(lambda state: edits.rank(state, 1, saved=(1,))),
        "rank 1 moved from 0 to 1 tokens of 'a', by job 0 of another request or rank",
    ),
    BrokenStep(
        "S11",
        "an offset moves although no job ran",
        "lone_producer",
        lambda step: isinstance(step.action, Execute),
        _after(lambda state: edits.rank(state, saved=(1,))),
        "rank 0 moved from 0 to 1 tokens of 'a', by execute(), which saves nothing",
    ),
    BrokenStep(
        "S11",
        "a reset moves an offset",
        "resets",
        _resets_with_something_saved,
        _after(lambda state: edits.rank(state, saved=(0,))),
        "rank 0 moved from 2 to 0 tokens of 'a', by reset",
    ),
    BrokenStep(
        "S13",
        "a key survives a reset of an idle cache",
        "resets",
        _reset(busy=False),
        _after(lambda state: edits.pool(state, index=((Key(0, "ab"), 1),))),
        "nothing is referenced, and",
    ),
    BrokenStep(
        "S13",
        "a reset drops keys under references",
        "resets",
        _reset(busy=True),
        _after(lambda state: edits.pool(state, index=())),
        "blocks are referenced, and a reset dropped keys all the same",
    ),
    BrokenStep(
        "S13",
        "a request runs on after a reset of running requests",
        "resets",
        _reset_while_running,
        _after(_runs_on),
        "a request still runs after a reset of running requests",
    ),
    BrokenStep(
        "S14",
        "an entry survives a reset of the store",
        "resets",
        _store_reset,
        _store_stays,
        "the store was reset and still holds",
    ),
    BrokenStep(
        "S14",
        "an answer survives a reset of the store",
        "resets",
        _store_reset,
        _after(lambda state: edits.request(state, answer=Answer(2))),
        "the store was reset, and 'a' goes by what was found in it",
    ),
    BrokenStep(
        "S14",
        "a lease survives a reset of the store",
        "resets",
        _store_reset,
        _after(lambda state: edits.request(state, leased=True)),
        "the store was reset, and 'a' goes by what was found in it",
    ),
)
"""In the order of the properties."""
