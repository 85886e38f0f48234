"""Loads: a request's prefix comes from a connector into blocks allocated for it (domain.md f, g).

Admission finds that some child supplies more than the local cache. The request gets its blocks
and waits, `LOADING`, until every rank has filled them; then, `LOADED`, its chunk is scheduled like
any other. Only then are keys registered: nobody can hit a block before its bytes are there.
A load that fails on one rank has failed (R18): the request computes everything itself, or ends.
"""

from __future__ import annotations

import math

import attrs

from cowtail.models import (
    block_pool,
    boundaries,
    connector,
    keys,
    peers,
    reservation,
    store_lookup,
    tables,
)
from cowtail.models.actions import LoadOutcome
from cowtail.models.block_pool import Pool
from cowtail.models.errors import NotEnabled
from cowtail.models.lookup import Hit
from cowtail.models.memories import memory_of, slots_of, true_content, with_memories
from cowtail.models.observations import NULL_BLOCK, Effects, Load, Status
from cowtail.models.planning import Refusal
from cowtail.models.scope import Scope
from cowtail.models.state import (
    Answer,
    BlockTable,
    PendingLoad,
    State,
    with_rank,
    with_request,
)
from cowtail.models.transition import Transition


@attrs.frozen
class Supply:
    """What a child offers to load: its prefix of the request, ``answer.length`` tokens long."""

    child: int
    answer: Answer


def supply(
    scope: Scope, state: State, index: int, local: int, *, lookup_failed: bool
) -> Supply | None:
    """Return what the request loads, if a child supplies more than the ``local`` hit (R13).

    The first child that supplies more than the hit's whole LCMs is chosen, and no other is tried.
    An answer that the request holds is the store's.
    """
    request = state.requests[index]
    if not scope.loads or store_lookup.is_given_up(scope, request):
        return None
    floor = local - local % boundaries.lcm_block_size(scope)
    for child in range(len(scope.children)):
        answer = store_lookup.NOTHING
        if peers.serving(scope, child):
            align = boundaries.hit_alignment(scope)
            answer = Answer((len(scope.requests[index].prompt) - 1) // align * align)
        elif child == connector.store_child(scope) and not lookup_failed:
            answer = request.answer or store_lookup.ask(scope, state, index)
        if answer.length > floor:
            return Supply(child, answer) if answer.length > local else None
    return None


@attrs.frozen
class LoadPlan:
    """A load that a pass can begin, and the pool and tables once it has its blocks.

    ``junction``: where the local hit of some set ended, if that is beyond the joint one; else 0.
    """

    load: PendingLoad
    pool: Pool
    tables: tuple[BlockTable, ...]
    junction: int


def plan_load(
    scope: Scope, state: State, index: int, hit: Hit, offered: Supply
) -> LoadPlan | Refusal:
    """Plan the blocks for a load: those of the local hit within whole LCMs, and new ones.

    The load must leave enough free blocks for every loading or loaded request, itself included,
    to compute all it knows: none of them can be preempted to make room for another.
    """
    lcm = boundaries.lcm_block_size(scope)
    start, end = hit.length // lcm * lcm, offered.answer.length
    load = PendingLoad(
        index, offered.child, start, end, offered.answer.last_keys, tuple(range(scope.num_ranks))
    )
    adopted = tuple(
        _adopted(scope, group, blocks, start, end) for group, blocks in enumerate(hit.blocks)
    )
    pool = state.pool
    for blocks in adopted:
        pool = block_pool.touch(pool, blocks)
    missing = [_columns(scope, group, end) - len(blocks) for group, blocks in enumerate(adopted)]
    reserved = reservation.of_load(scope, state, index, end)
    if sum(missing) + reserved > len(pool.free):
        return Refusal(
            f"{sum(missing)} blocks and {reserved} in reserve are needed, {len(pool.free)} free"
        )
    grown = []
    for group, (blocks, count) in enumerate(zip(adopted, missing, strict=True)):
        pool, taken = block_pool.allocate(pool, count)
        covered = start // scope.groups[group].block_size
        grown.append(BlockTable(blocks=blocks + taken, num_cached=covered, allocated=True))
    return LoadPlan(load, pool, tuple(grown), hit.junction)


def _adopted(
    scope: Scope, group: int, blocks: tuple[int, ...], start: int, end: int
) -> tuple[int, ...]:
    """Return a table's columns before the load's: the local hit, nulls where nothing is needed."""
    spec = scope.groups[group]
    skipped = store_lookup.skipped_tokens(scope, group, end) // spec.block_size
    local = () if spec.is_mamba else blocks[skipped : start // spec.block_size]
    return (NULL_BLOCK,) * skipped + local


def _columns(scope: Scope, group: int, end: int) -> int:
    """Return the length of a table that a load of ``end`` tokens fills, scratch included."""
    spec = scope.groups[group]
    return math.ceil(end / spec.block_size) + (scope.speculative_tokens if spec.is_mamba else 0)


def begin_load(scope: Scope, state: State, index: int, plan: LoadPlan) -> Transition:
    """Give a request the blocks of its load; the load is shipped with the pass."""
    opened = state.open_pass
    assert opened is not None
    load = plan.load
    from_store = not peers.serving(scope, load.child)
    request = state.requests[index]
    request = attrs.evolve(
        request,
        tables=plan.tables,
        status=Status.LOADING,
        computed=load.end,
        answer=None,
        leased=request.leased and from_store,
        load_failed=False,
        junction=plan.junction,
    )
    state = attrs.evolve(
        with_request(state, index, request),
        pool=plan.pool,
        open_pass=attrs.evolve(opened, loads=(*opened.loads, index)),
        loads=(*state.loads, load),
    )
    events = ["load begun from the store" if from_store else "load begun from a peer"]
    if load.start:
        events.append("load begun after a local hit")
    return Transition(state, Effects(hit=load.start, external=load.end), tuple(events))


def ship_loads(state: State, begun: tuple[int, ...]) -> State:
    """Queue the loads of a dispatched pass on every rank: they do not wait for the device."""
    if not begun:
        return state
    ranks = tuple(attrs.evolve(rank, loads=rank.loads + begun) for rank in state.ranks)
    return attrs.evolve(state, ranks=ranks)


def emitted(scope: Scope, state: State, begun: tuple[int, ...]) -> tuple[Load, ...]:
    """Return loads as an observer sees them."""
    loads = [pending_load(state, index) for index in begun]
    return tuple(Load(scope.requests[x.request].name, x.child, x.start, x.end) for x in loads)


def pending_load(state: State, index: int) -> PendingLoad:
    """Return the load that a request waits for, or whose blocks it still holds."""
    return next(load for load in state.loads if load.request == index)


def run_load_guard(scope: Scope, state: State, rank: int, outcome: LoadOutcome) -> str:
    """Return why a rank cannot run its next load with this outcome, or an empty string."""
    if not 0 <= rank < len(state.ranks):
        return f"there is no rank {rank}"
    if not state.ranks[rank].loads:
        return f"rank {rank} has no load queued"
    if outcome is LoadOutcome.FAILED and state.spent.failed_loads >= scope.max_failed_loads:
        return f"max_failed_loads={scope.max_failed_loads} are spent"
    return ""


def run_load(scope: Scope, state: State, rank: int, outcome: LoadOutcome) -> Transition:
    """Let a rank carry out the load at the head of its queue."""
    guard = run_load_guard(scope, state, rank, outcome)
    if guard:
        raise NotEnabled(guard)
    worker = state.ranks[rank]
    index = worker.loads[0]
    events: tuple[str, ...] = ()
    if outcome is LoadOutcome.FAILED:
        went_well = False
        spent = attrs.evolve(state.spent, failed_loads=state.spent.failed_loads + 1)
        state = attrs.evolve(state, spent=spent)
        events = ("load failed on a rank",)
    else:
        state, went_well = _fill(scope, state, rank, pending_load(state, index))
        if not went_well:
            events = ("load found a key gone",)
    done = attrs.evolve(worker, loads=worker.loads[1:], loaded=(*worker.loaded, (index, went_well)))
    return Transition(with_rank(state, rank, done), Effects(), events)


def _fill(scope: Scope, state: State, rank: int, load: PendingLoad) -> tuple[State, bool]:
    """Copy what a load reads into its blocks of one rank; return whether all of it was there."""
    spec = scope.requests[load.request]
    request_tables = state.requests[load.request].tables
    pages = [list(page) for page in memory_of(state, rank)]
    contents = {(e.group, e.prefix): e.content for e in state.store if e.rank == rank}
    from_peer = peers.serving(scope, load.child)
    last_keys = (load.end,) * len(scope.groups) if from_peer else load.last_keys
    complete = True
    for group, column, length in store_lookup.keys_read(
        scope, spec, load.start, load.end, last_keys
    ):
        prefix = spec.tokens[:length]
        content = contents.get((group, prefix))
        if from_peer:
            content = true_content(scope.groups[group], prefix)
        if content is None:
            complete = False
            continue
        block = request_tables[group].blocks[column]
        pages[block][: slots_of(scope.groups[group], length)] = content
    memories = [memory_of(state, other) for other in range(scope.num_ranks)]
    memories[rank] = tuple(tuple(page) for page in pages)
    return with_memories(state, memories), complete


def report_load_guard(state: State, rank: int, index: int) -> str:
    """Return why a rank cannot report a load, or an empty string."""
    if not 0 <= rank < len(state.ranks):
        return f"there is no rank {rank}"
    if not any(done == index for done, _ in state.ranks[rank].loaded):
        return f"rank {rank} is not done with a load of this request"
    return ""


def report_load(scope: Scope, state: State, rank: int, index: int) -> Transition:
    """Send the completion of a load, well or not, to the scheduler."""
    guard = report_load_guard(state, rank, index)
    if guard:
        raise NotEnabled(guard)
    worker = state.ranks[rank]
    went_well = next(well for done, well in worker.loaded if done == index)
    events = () if worker.loaded[0][0] == index else ("load reported out of order",)
    kept = tuple(entry for entry in worker.loaded if entry[0] != index)
    state = with_rank(state, rank, attrs.evolve(worker, loaded=kept))
    arrived = (*state.load_inbox, (index, rank, went_well))
    inbox = tuple(sorted(arrived, key=lambda x: (scope.requests[x[0]].name, x[1])))
    return Transition(attrs.evolve(state, load_inbox=inbox), Effects(), events)


def strike_off(
    state: State, index: int, rank: int, went_well: bool
) -> tuple[State, PendingLoad | None]:
    """Note a rank's report of a load; return the load if that was the last one."""
    load = pending_load(state, index)
    owed = tuple(r for r in load.ranks_owed if r != rank)
    load = attrs.evolve(load, ranks_owed=owed, failed=load.failed or not went_well)
    others = tuple(old for old in state.loads if old.request != index)
    if not owed:
        return attrs.evolve(state, loads=others), load
    state = peers.strike_off_load(state, index, rank)
    kept = tuple(load if old.request == index else old for old in state.loads)
    return attrs.evolve(state, loads=kept), None


def promote_guard(scope: Scope, state: State, index: int) -> str:
    """Return why a pass cannot take note that a load is over, or an empty string."""
    name = scope.requests[index].name
    if state.open_pass is None:
        return "no pass is open"
    if state.open_pass.preempted:
        return "a request was preempted in this pass"
    if state.requests[index].settles is None:
        return f"no load of {name!r} is over and unsettled"
    return ""


def promote(scope: Scope, state: State, index: int) -> Transition:
    """Key the blocks of a load that went well; take those of one that failed back."""
    guard = promote_guard(scope, state, index)
    if guard:
        raise NotEnabled(guard)
    spec, request = scope.requests[index], state.requests[index]
    opened = state.open_pass
    assert opened is not None
    opened = attrs.evolve(opened, settled=(*opened.settled, index))
    if request.settles is LoadOutcome.FAILED:
        return Transition(fall_back(scope, attrs.evolve(state, open_pass=opened), index))
    loaded = keys.register_keys(
        scope,
        spec,
        tables.Allocation(state.pool, request.tables),
        request.computed,
        request.computed,
        request.junction,
    )
    opened = attrs.evolve(
        opened,
        offers=opened.offers + loaded.offers,
        registered=opened.registered + loaded.registered,
    )
    settled = attrs.evolve(request, tables=loaded.tables, settles=None)
    state = attrs.evolve(state, pool=loaded.pool, open_pass=opened)
    return Transition(with_request(state, index, settled), Effects(), loaded.events)


def fall_back(scope: Scope, state: State, index: int) -> State:
    """Take a failed load's blocks away at once; the request waits, to compute everything."""
    request = state.requests[index]
    waiting = attrs.evolve(
        request,
        tables=tuple(BlockTable() for _ in scope.groups),
        status=Status.WAITING,
        computed=0,
        leased=False,
        load_failed=True,
        settles=None,
    )
    pool = state.pool
    for blocks in tables.blocks_to_free(request.tables):
        pool = block_pool.free(pool, blocks)
    return with_request(attrs.evolve(state, pool=pool), index, waiting)
