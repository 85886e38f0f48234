"""The model's face: initial state, what is enabled, one step, what can be observed.

>>> from cowtail.models.scope import RequestSpec, Scope, full_attention, mamba
>>> from cowtail.models.actions import Submit, BeginPass, Admit
>>> scope = Scope(name="tiny", groups=(full_attention(2), mamba(2)), hash_unit=1,
...               num_blocks=8, requests=(RequestSpec("a", "abcd"),))
>>> state = initial(scope)
>>> enabled(scope, state)
(submit(a),)
>>> for action in (Submit("a"), BeginPass(), Admit("a")):
...     transition = step(scope, state, action)
...     state = transition.state
>>> transition.effects.chunk
Chunk(request='a', start=0, end=2)
"""

from __future__ import annotations

from collections.abc import Iterator

from cowtail.models import (
    admission,
    device,
    environment,
    extension,
    loads,
    output,
    peers,
    preemption,
    reports,
    requests,
    reset,
    scheduler,
    store_lookup,
    workers,
)
from cowtail.models.actions import (
    Abort,
    Action,
    Admit,
    BeginPass,
    EndPass,
    Evict,
    Execute,
    ExpireLease,
    Extend,
    FinishSend,
    ForeignPut,
    JobOutcome,
    LoadOutcome,
    LookUp,
    Preempt,
    Promote,
    Report,
    ReportLoad,
    Reset,
    RunJob,
    RunLoad,
    Shed,
    SpendAnswer,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.errors import NotEnabled
from cowtail.models.memories import agreed_memory
from cowtail.models.observations import (
    Effects,
    Held,
    LoadView,
    Observation,
    Pin,
    RankView,
    RequestView,
    Status,
)
from cowtail.models.planning import Refusal
from cowtail.models.scope import RequestSpec, Scope
from cowtail.models.state import RankWorker, Request, State, initial_state, known_tokens
from cowtail.models.transition import Transition


def initial(scope: Scope) -> State:
    """Return the state in which nothing has been submitted."""
    return initial_state(scope)


def enabled(scope: Scope, state: State) -> tuple[Action, ...]:
    """Return every action that is possible now, in a fixed order."""
    return tuple(_enabled(scope, state))


def _enabled(scope: Scope, state: State) -> Iterator[Action]:
    if state.failure:
        return
    names = [spec.name for spec in scope.requests]
    if state.open_pass is not None:
        for index, name in enumerate(names):
            if not preemption.preempt_guard(scope, state, index):
                yield Preempt(name)
            if not isinstance(extension.plan_extension(scope, state, index), Refusal):
                yield Extend(name)
            if not extension.shed_guard(scope, state, index):
                yield Shed(name)
            for failed in (False, True) if scope.max_failed_lookups else (False,):
                plan = admission.plan_admission(scope, state, index, failed)
                if not isinstance(plan, Refusal):
                    yield Admit(name, failed)
            if not loads.promote_guard(scope, state, index):
                yield Promote(name)
            if not admission.spend_answer_guard(scope, state, index):
                yield SpendAnswer(name)
        if not scheduler.end_pass_guard(scope, state):
            yield EndPass()
        return
    for index, name in enumerate(names):
        if not requests.submit_guard(scope, state, index):
            yield Submit(name)
        if not requests.abort_guard(scope, state, index):
            yield Abort(name)
    if not scheduler.begin_pass_guard(scope, state):
        yield BeginPass()
    if not device.execute_guard(state):
        yield Execute()
    if not output.update_from_output_guard(state):
        yield UpdateFromOutput()
    for rank, worker in enumerate(state.ranks):
        for outcome in (JobOutcome.OK, *scope.put_failures):
            if not workers.run_job_guard(scope, state, rank, outcome):
                yield RunJob(rank, outcome)
        for job in worker.outbox:
            for again in (False, True):
                if not workers.report_guard(scope, state, rank, job, again):
                    yield Report(rank, job, again)
    if not reports.update_connector_output_guard(state):
        yield UpdateConnectorOutput()
    if scope.loads:
        yield from _enabled_loads(scope, state)
    if state.held:
        yield from _enabled_sends(scope, state)
    if scope.foreign or scope.max_evictions or scope.max_resets:
        yield from _enabled_environment(scope, state)


def _enabled_loads(scope: Scope, state: State) -> Iterator[Action]:
    """Yield lookups, leases that expire, and what ranks can do about loads."""
    for index, spec in enumerate(scope.requests):
        for failed in (False, True):
            if not store_lookup.look_up_guard(scope, state, index, failed):
                yield LookUp(spec.name, failed)
        if not store_lookup.expire_lease_guard(scope, state, index):
            yield ExpireLease(spec.name)
    for rank, worker in enumerate(state.ranks):
        for outcome in LoadOutcome:
            if not loads.run_load_guard(scope, state, rank, outcome):
                yield RunLoad(rank, outcome)
        for index, _ in worker.loaded:
            yield ReportLoad(rank, scope.requests[index].name)


def _enabled_sends(scope: Scope, state: State) -> Iterator[Action]:
    for rank, worker in enumerate(state.ranks):
        for index, child in worker.sends:
            yield FinishSend(rank, child, scope.requests[index].name)


def _enabled_environment(scope: Scope, state: State) -> Iterator[Action]:
    """Yield what happens to caches from outside: foreign puts, evictions, resets."""
    for index, spec in enumerate(scope.requests):
        if not environment.foreign_put_guard(scope, state, index):
            yield ForeignPut(spec.name)
    for entry in environment.evictable(scope, state):
        yield Evict(entry.rank, entry.group, entry.prefix)
    for running in (False, True):
        for store in (False, True):
            if not reset.reset_guard(scope, state, store):
                yield Reset(running, store)


def step(scope: Scope, state: State, action: Action) -> Transition:
    """Carry out ``action``.

    Raises NotEnabled with the guard that failed, and LifecycleError if a rule meets a state
    that it must never meet.
    """
    try:
        return _step(scope, state, action)
    except NotEnabled as error:
        raise NotEnabled(f"{action}: {error.guard}") from None


def _step(scope: Scope, state: State, action: Action) -> Transition:
    if state.failure:
        raise NotEnabled(f"the model has failed: {state.failure}")
    inside = isinstance(action, (Admit, Extend, Preempt, Promote, Shed, SpendAnswer, EndPass))
    if state.open_pass is not None and not inside:
        raise NotEnabled("a pass is open")
    match action:
        case Submit(request=name):
            return requests.submit(scope, state, scope.index(name))
        case Abort(request=name):
            return requests.abort(scope, state, scope.index(name))
        case BeginPass():
            return scheduler.begin_pass(scope, state)
        case Admit(request=name, lookup_failed=failed):
            return admission.admit(scope, state, scope.index(name), failed)
        case Promote(request=name):
            return loads.promote(scope, state, scope.index(name))
        case SpendAnswer(request=name):
            return admission.spend_answer(scope, state, scope.index(name))
        case Extend(request=name):
            return extension.extend(scope, state, scope.index(name))
        case Shed(request=name):
            return extension.shed(scope, state, scope.index(name))
        case Preempt(request=name):
            return preemption.preempt(scope, state, scope.index(name))
        case EndPass():
            return scheduler.end_pass(scope, state)
        case Execute():
            return device.execute(scope, state)
        case UpdateFromOutput():
            return output.update_from_output(scope, state)
        case RunJob(rank=rank, outcome=outcome):
            return workers.run_job(scope, state, rank, outcome)
        case Report(rank=rank, job=job, again=again):
            return workers.report(scope, state, rank, job, again)
        case UpdateConnectorOutput():
            return reports.update_connector_output(scope, state)
    return _step_aside(scope, state, action)


def _step_aside(scope: Scope, state: State, action: Action) -> Transition:
    """Carry out what has to do with loads, sends, and the store from outside."""
    match action:
        case LookUp(request=name, failed=failed):
            return store_lookup.look_up(scope, state, scope.index(name), failed)
        case ExpireLease(request=name):
            return store_lookup.expire_lease(scope, state, scope.index(name))
        case RunLoad(rank=rank, outcome=outcome):
            return loads.run_load(scope, state, rank, outcome)
        case ReportLoad(rank=rank, request=name):
            return loads.report_load(scope, state, rank, scope.index(name))
        case FinishSend(rank=rank, child=child, request=name):
            return peers.finish_send(scope, state, rank, child, scope.index(name))
        case ForeignPut(request=name):
            return environment.foreign_put(scope, state, scope.index(name))
        case Evict(rank=rank, group=group, prefix=prefix):
            return environment.evict(scope, state, rank, group, prefix)
        case Reset(running=running, store=store):
            return reset.reset(scope, state, running, store)
    raise NotEnabled("the model schedules by single decisions, not by whole passes")


def is_quiescent(scope: Scope, state: State) -> bool:
    """Whether nothing is going on: no request active, nothing in flight, pinned or queued."""
    return (
        not state.failure
        and all(r.status in (Status.NEW, Status.FINISHED) for r in state.requests)
        and state.open_pass is None
        and not state.steps
        and not state.deferred
        and not state.pins
        and not state.queued_tails
        and not state.untold_finished
        and not state.untold_preempted
        and not state.held
        and not (state.inbox or state.load_inbox or state.send_inbox)
        and not any(
            rank.queue or rank.outbox or rank.loads or rank.loaded or rank.sends
            for rank in state.ranks
        )
    )


def observe(scope: Scope, state: State, effects: Effects) -> Observation:
    """Return what an implementation must show after the action that had ``effects``."""
    names = [spec.name for spec in scope.requests]
    return Observation(
        requests=tuple(
            observe_request(scope, spec, request)
            for spec, request in zip(scope.requests, state.requests, strict=True)
        ),
        ref_counts=state.pool.ref_counts,
        free=state.pool.free,
        keys=state.pool.keys,
        pins=tuple(Pin(pin.job, pin.blocks, pin.ranks_owed) for pin in state.pins),
        queued_tails=tuple(job.job for job in state.queued_tails),
        steps_in_flight=len(state.steps),
        ranks=tuple(observe_rank(scope, rank) for rank in state.ranks),
        inbox=state.inbox,
        memory=agreed_memory(state),
        store=state.store,
        effects=effects,
        deferred=tuple((entry.steps, entry.blocks) for entry in state.deferred),
        loads=tuple(LoadView(names[x.request], x.ranks_owed, x.failed) for x in state.loads),
        held=tuple(Held(names[held.request], held.ranks_owed) for held in state.held),
        load_inbox=tuple((names[index], rank) for index, rank, _ in state.load_inbox),
        send_inbox=tuple((names[index], rank) for index, rank in state.send_inbox),
        untold=tuple(names[index] for index in state.untold_finished),
    )


def observe_request(scope: Scope, spec: RequestSpec, request: Request) -> RequestView:
    """Return what one request shows."""
    return RequestView(
        name=spec.name,
        status=request.status,
        computed=request.computed,
        known=known_tokens(spec, request),
        tables=tuple(table.blocks for table in request.tables),
        markers=tuple(table.marker for table in request.tables),
        found=None if request.answer is None else request.answer.length,
        leased=request.leased,
        worker_tables=request.worker_tables or ((),) * len(scope.groups),
        junction=request.junction,
    )


def observe_rank(scope: Scope, rank: RankWorker) -> RankView:
    """Return what one rank shows."""
    names = [spec.name for spec in scope.requests]
    return RankView(
        queue=tuple(job.job for job in rank.queue),
        outbox=rank.outbox,
        saved=rank.saved,
        loads=tuple(names[index] for index in rank.loads),
        loaded=tuple(names[index] for index, _ in rank.loaded),
        sends=tuple((names[index], child) for index, child in rank.sends),
        skipping=tuple(names[index] for index in rank.skipping),
    )
