"""What must be refused whoever drives: actions that no state of the driver could make right.

The guards of the page bind the harness. Some of them are the implementation's own as well: it
knows that a request is running, that a job is not in an outbox, that blocks do not suffice. An
action against such a guard must be refused and change nothing; one that only the environment's
bounds forbid (one preemption more, one more put that fails) says nothing.

>>> from cowtail.models import lifecycle
>>> from cowtail.models.actions import Execute, Submit
>>> from cowtail.spec.scopes import scope_named
>>> scope = scope_named("lone_producer")
>>> why_refused(scope, lifecycle.initial(scope), Execute())
'no step is waiting to run'
>>> why_refused(scope, lifecycle.initial(scope), Submit("a"))
''
"""

from __future__ import annotations

from collections.abc import Iterator

from cowtail.models import lifecycle
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
    LookUp,
    Preempt,
    Report,
    ReportLoad,
    Reset,
    RunJob,
    RunLoad,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.errors import LifecycleError, NotEnabled
from cowtail.models.observations import Effects, Observation, RequestView, Status
from cowtail.models.scope import Lookup, Policy, Scope
from cowtail.models.state import State
from cowtail.spec.traces import check_action


def why_refused(scope: Scope, state: State, action: Action) -> str:
    """Return why ``action`` must be refused in ``state``, "" if it need not be.

    Nothing is said of an action that names what the scope does not have.
    """
    if not _fits(scope, action):
        return ""
    return _why(scope, state, lifecycle.observe(scope, state, Effects()), action)


def _fits(scope: Scope, action: Action) -> bool:
    try:
        check_action(scope, action)
    except ValueError:
        return False
    return True


def wrong_actions(scope: Scope, state: State) -> tuple[Action, ...]:
    """Return actions that must be refused in ``state``, in a fixed order.

    One or two of each kind and request or rank: not all that there are.
    """
    seen = lifecycle.observe(scope, state, Effects())
    candidates = dict.fromkeys(_candidates(scope, seen))
    return tuple(action for action in candidates if _why(scope, state, seen, action))


def _candidates(scope: Scope, seen: Observation) -> Iterator[Action]:
    names = [spec.name for spec in scope.requests]
    for name in names:
        yield from (Submit(name), Abort(name), Admit(name), Extend(name), Preempt(name))
        yield from (LookUp(name), ExpireLease(name))
    yield from (BeginPass(), EndPass(), Execute(), UpdateFromOutput(), UpdateConnectorOutput())
    jobs = [job for rank in seen.ranks for job in (*rank.outbox, *rank.queue)]
    for rank in range(scope.num_ranks):
        yield from (RunJob(rank), RunLoad(rank))
        yield from (Report(rank, job) for job in (0, *jobs[:2], *jobs[-1:]))
        for name in names:
            yield ReportLoad(rank, name)
            yield from (FinishSend(rank, child, name) for child in range(len(scope.children)))
    yield Evict(0, 0, scope.requests[0].prompt)
    yield Reset()


def _why(scope: Scope, state: State, seen: Observation, action: Action) -> str:
    opened = state.open_pass is not None
    if isinstance(action, (Admit, Extend, Preempt, EndPass)):
        return _why_inside(scope, state, seen, action) if opened else "no pass is open"
    if isinstance(action, (Abort, BeginPass, Reset)) and opened:
        return "a pass is open"
    if opened:
        return ""  # the model's convention that nothing interleaves with a pass
    return _why_outside(scope, state, seen, action)


def _why_inside(scope: Scope, state: State, seen: Observation, action: Action) -> str:
    """Judge what belongs into a pass: an admission or extension has no guard but the engine's."""
    match action:
        case Admit(lookup_failed=False):
            return _guard(scope, state, action)
        case Extend() if scope.policy is Policy.ANY:
            return _guard(scope, state, action)
        case Extend(request=name) | Preempt(request=name):
            status = _request(seen, name).status
            if status is not Status.RUNNING:
                return f"{name!r} is {status.value}, not running"
    return ""


def _guard(scope: Scope, state: State, action: Action) -> str:
    """Return the model's own guard, "" if the action is enabled."""
    try:
        lifecycle.step(scope, state, action)
    except NotEnabled as error:
        return error.guard.removeprefix(f"{action}: ")
    except LifecycleError:
        return ""
    return ""


def _why_outside(scope: Scope, state: State, seen: Observation, action: Action) -> str:
    match action:
        case Submit(request=name):
            status = _request(seen, name).status
            return "" if status is Status.NEW else f"{name!r} was submitted already"
        case Abort(request=name):
            status = _request(seen, name).status
            ended = status in (Status.NEW, Status.FINISHED)
            return f"{name!r} is {status.value}: nothing to abort" if ended else ""
        case BeginPass():
            full = seen.steps_in_flight >= scope.max_steps_in_flight
            return f"{seen.steps_in_flight} steps are in flight, the limit" if full else ""
        case Execute():
            waiting = any(not step.executed for step in state.steps)
            return "" if waiting else "no step is waiting to run"
        case UpdateFromOutput():
            done = bool(state.steps) and state.steps[0].executed
            return "" if done else "the oldest step has not run"
        case UpdateConnectorOutput():
            arrived = seen.inbox or seen.load_inbox or seen.send_inbox
            return "" if arrived else "nothing was reported"
        case Evict(rank=rank, group=group, prefix=prefix):
            there = any((e.rank, e.group, e.prefix) == (rank, group, prefix) for e in seen.store)
            return "" if there else f"{prefix!r} is not in the store"
        case LookUp(request=name):
            return _why_not_looked_up(scope, _request(seen, name))
        case ExpireLease(request=name):
            return "" if _request(seen, name).leased else f"{name!r} holds no lease"
    return _why_not_on_rank(seen, action)


def _why_not_looked_up(scope: Scope, request: RequestView) -> str:
    if scope.lookup is not Lookup.ASYNC:
        return ""
    if request.status not in (Status.WAITING, Status.PREEMPTED):
        return f"{request.name!r} is {request.status.value}, not waiting"
    return "" if request.found is None else f"{request.name!r} has an answer already"


def _why_not_on_rank(seen: Observation, action: Action) -> str:
    match action:
        case RunJob(rank=rank):
            return "" if seen.ranks[rank].queue else f"rank {rank} has no job queued"
        case Report(rank=rank, job=job):
            there = job in seen.ranks[rank].outbox
            return "" if there else f"job {job} is not in the outbox of rank {rank}"
        case RunLoad(rank=rank):
            return "" if seen.ranks[rank].loads else f"rank {rank} has no load queued"
        case ReportLoad(rank=rank, request=name):
            there = name in seen.ranks[rank].loaded
            return "" if there else f"rank {rank} has not loaded {name!r}"
        case FinishSend(rank=rank, child=child, request=name):
            there = (name, child) in seen.ranks[rank].sends
            return "" if there else f"rank {rank} sends nothing of {name!r} for child {child}"
    return ""


def _request(seen: Observation, name: str) -> RequestView:
    return next(request for request in seen.requests if request.name == name)
