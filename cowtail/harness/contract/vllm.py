"""The real vLLM scheduler at contract level: its session's actions and decisions, in the model.

A session's action is one, or several, of the model's: a pass is opened, filled with the decisions
that the scheduler took, in their order, and closed; a step that carries reports is processed, and
then the reports are. What the model does not describe ends the following of that session, with a
reason; the engine's own properties go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import attrs

from cowtail.harness.contract.follower import (
    Follower,
    NotCovered,
    OutOfContract,
    Seen,
    expect,
)
from cowtail.impl.vllm_engine import observer
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import NO_AVAILABLE_HANDLE, EngineConfig, RunLoad
from cowtail.impl.vllm_engine.decisions import Decided, Decision, Decisions
from cowtail.impl.vllm_engine.observer import JobNumbers, KeyReader, StoreReader
from cowtail.impl.vllm_engine.session import Session, Watcher, watched_by
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models import actions as model
from cowtail.models.actions import Action, JobOutcome, LoadOutcome
from cowtail.models.behaviours import VLLM, Behaviours
from cowtail.models.observations import Chunk, Effects, Handoff
from cowtail.models.scope import (
    LoadPolicy,
    Lookup,
    Policy,
    Role,
    Scope,
    full_attention,
    mamba,
)

CONTRACT = "C"
"""The identifier of a violation of the contract: a decision or a sight that is not the model's."""

BEHAVIOURS: dict[str, Behaviours] = {"0.32.0": VLLM, "0.33.0": VLLM}
"""How releases differ from the page. One that is not here is not followed."""

UNBOUNDED = 10**9
"""Bounds of the environment: the session's own configuration sets them."""


def scope_of(config: EngineConfig) -> Scope:
    """Return the model's scope of a configuration. Raises NotCovered, saying what is missing."""
    if config.connectors > 1:
        raise NotCovered("a MultiConnector")
    release = surface().release.version
    if release not in BEHAVIOURS:
        raise NotCovered(f"release {release}")
    if config.window:
        raise NotCovered("a group of sliding-window attention")
    asynchronous = config.max_steps_in_flight > 1
    try:
        return Scope(
            name="vllm",
            groups=(
                full_attention(config.attention_block_size, eagle=config.eagle),
                mamba(config.mamba_block_size),
            ),
            hash_unit=config.hash_unit,
            num_blocks=config.num_blocks,
            requests=config.requests,
            role=config.role,
            num_ranks=config.num_ranks,
            token_budget=config.token_budget,
            max_steps_in_flight=config.max_steps_in_flight,
            retention_interval=config.retention_interval,
            policy=Policy.PRIORITY if config.priority else Policy.FCFS,
            defer_frees=asynchronous and config.role is not Role.PRODUCER,
            lookup=Lookup.ASYNC if config.lookup_async else Lookup.SYNC,
            shared_prefix_checkpoints=config.shared_prefix_checkpoints,
            max_failed_lookups=UNBOUNDED,
            max_evictions=UNBOUNDED,
            max_expired_leases=UNBOUNDED,
            max_resets=UNBOUNDED,
            load_policy=LoadPolicy.RECOMPUTE if config.recompute_failed_loads else LoadPolicy.FAIL,
            put_failures=(JobOutcome.FAILED, JobOutcome.NO_SPACE),
            max_failed_jobs=UNBOUNDED,
            max_failed_loads=UNBOUNDED,
            speculative_tokens=int(config.eagle),
            behaviours=attrs.evolve(BEHAVIOURS[release], drafts_proposed=False),
        )
    except ValueError:
        raise NotCovered("a pool smaller than the model asks for") from None


@contextlib.contextmanager
def contract_level() -> Iterator[None]:
    """Let the model follow every session that is built meanwhile, as far as it covers it.

    What it does not cover is counted in the session's statistics.
    """
    with watched_by(_follow):
        yield


def _follow(session: Session) -> Watcher:
    try:
        return VllmContract(session)
    except NotCovered as reason:
        session.statistics[f"not at contract level: {reason}"] += 1
        return _NotFollowed(session)


@attrs.frozen
class _NotFollowed:
    """Counts the actions of a session that the model does not cover."""

    session: Session

    def before(self, action: Action) -> None:
        """Nothing to get ready."""

    def after(self, action: Action) -> None:
        """Count the action."""
        self.session.statistics["actions beside the contract"] += 1


class VllmContract:
    """Follows one session. ``left`` says why following ended, if it has."""

    def __init__(self, session: Session) -> None:
        """Follow ``session``, which has done nothing yet. Raises NotCovered."""
        self._session = session
        self._store = StoreReader(session)
        self._keys = KeyReader(session)
        self._follower = Follower(scope_of(session.config), self._store.entries())
        self._decisions = Decisions(session.scheduler)
        self._numbers = JobNumbers()
        self._runs_idle_job = False
        self._tokens_asked: dict[str, int] = {}
        self.left: str | None = None

    def before(self, action: Action) -> None:
        """Get ready for an action of the session."""
        if self._session.partner is not None:
            self._follower.share_store(self._store.entries())
        self._decisions.clear()
        self._session.lookup.used.clear()
        asked = self._session.lookup.asked()
        self._tokens_asked = {name: asked[name].num_tokens for name in asked}
        if isinstance(action, model.RunJob):
            head = self._session.ranks[action.rank].next_job
            self._runs_idle_job = self._numbers.is_idle(head.store_job_id)

    def after(self, action: Action) -> None:
        """Let the model take the action, and compare. Raises Violation ("C")."""
        if self.left is not None:
            return
        try:
            self._follow(action)
            self._compare(action)
        except NotCovered as reason:
            self.left = str(reason)
            self._session.statistics[f"left the contract level: {reason}"] += 1
        except OutOfContract as difference:
            raise Violation(CONTRACT, str(difference)) from None
        else:
            self._session.statistics["actions at contract level"] += 1

    def _follow(self, action: Action) -> None:
        match action:
            case model.SchedulePass():
                self._follow_pass()
            case model.UpdateConnectorOutput():
                self._follower.take(model.UpdateFromOutput())
                state = self._follower.state
                if state.inbox or state.load_inbox:
                    self._follower.take(action)
            case model.RunJob(rank, outcome):
                if not self._runs_idle_job:
                    self._follower.take(self._job(rank, outcome))
            case model.Report(rank, job):
                for number in self._numbers.of((job,)):
                    self._follower.take(model.Report(rank, number))
            case RunLoad(rank, failed):
                self._follow_load(rank, failed)
            case model.LookUp(name):
                if self._tokens_asked[name] != self._session.requests[name].num_tokens:
                    raise NotCovered("a lookup of fewer tokens than the request has by now")
                self._follower.take(action)
            case model.Evict():
                self._expire_leases_on(action)
                self._follower.take(action)
            case model.Reset():
                effects = self._follower.take(action)
                expect("reset", effects.reset, self._session.last_reset)
            case model.Submit() | model.Abort() | model.Execute() | model.UpdateFromOutput():
                self._follower.take(action)
            case _:
                raise NotCovered(f"the model is not told of {action.name}")

    def _expire_leases_on(self, eviction: model.Evict) -> None:
        """Let leases run out until an entry can be evicted: how long they last is the store's."""
        for spec in self._follower.scope.requests:
            if self._follower.allows(eviction):
                return
            if self._follower.allows(model.ExpireLease(spec.name)):
                self._follower.take(model.ExpireLease(spec.name))

    def _compare(self, action: Action) -> None:
        """Compare everything, or, where only device and ranks did something, them."""
        session, numbers = self._session, self._numbers
        if isinstance(action, model.Execute | model.RunJob | RunLoad | model.Report):
            ranks, inbox = observer.rank_views(session, numbers), observer.reports(session, numbers)
            self._follower.compare_ranks(Seen(ranks, inbox, self._store.entries()))
        else:
            self._follower.compare(observer.observe(session, numbers, self._store, self._keys))

    def _job(self, rank: int, outcome: JobOutcome) -> Action:
        """Return the model's action: a failure that had nothing to hit is none."""
        if outcome is not JobOutcome.FAILED:
            return model.RunJob(rank)
        full = self._session.config.failure_code == NO_AVAILABLE_HANDLE
        failing = model.RunJob(rank, JobOutcome.NO_SPACE if full else JobOutcome.FAILED)
        return failing if self._follower.allows(failing) else model.RunJob(rank)

    def _follow_load(self, rank: int, failed: bool) -> None:
        """A rank reports a load as soon as it is done with it."""
        loads = self._follower.state.ranks[rank].loads
        outcome = LoadOutcome.FAILED if failed else LoadOutcome.OK
        self._follower.take(model.RunLoad(rank, outcome))
        name = self._follower.scope.requests[loads[0]].name
        self._follower.take(model.ReportLoad(rank, name))

    # A pass

    def _follow_pass(self) -> None:
        self._follower.take(model.BeginPass())
        for decision in self._decisions.taken:
            self._follow_decision(decision)
        for name in self._session.lookup.used:
            if self._follower.allows(model.SpendAnswer(name)):
                self._follower.take(model.SpendAnswer(name))
        self._compare_end(self._follower.take(model.EndPass()))

    def _follow_decision(self, decision: Decision) -> None:
        name = decision.request
        match decision.kind:
            case Decided.PREEMPT:
                self._follower.take(model.Preempt(name))
            case Decided.MISS:
                self._follower.take(model.Shed(name))
            case Decided.PROMOTE:
                self._follower.take(model.Promote(name))
            case Decided.EXTEND:
                effects = self._follower.take(model.Extend(name))
                expect("chunk", effects.chunk, Chunk(name, decision.start, decision.end))
            case Decided.ADMIT:
                effects = self._follower.take(model.Admit(name))
                expect("chunk", effects.chunk, Chunk(name, decision.start, decision.end))
                expect(f"hit of {name}", effects.hit, decision.hit)
            case Decided.LOAD:
                effects = self._follower.take(model.Admit(name))
                loaded = (effects.hit, effects.external)
                expect(f"load of {name}", loaded, (decision.start, decision.end))

    def _compare_end(self, effects: Effects) -> None:
        """Compare what a pass sends: copies, handoffs, jobs, loads."""
        session = self._session
        scheduled = session.steps[-1].scheduled
        copies = {(c.src_block_id, c.dst_block_id) for c in scheduled.kv_cache_block_copies or ()}
        expect("copies", {(c.source, c.destination) for c in effects.copies}, copies)
        if session.config.role is not Role.CONSUMER:
            offered = sorted(self._decisions.offered, key=_by_request)
            expect("handoffs", sorted(effects.handoffs, key=_by_request), offered)
        expect("jobs", effects.jobs, observer.jobs_sent(session, scheduled, self._numbers))
        metadata = scheduled.kv_connector_metadata.requests
        told = [request.req_id for request in metadata if request.load_spec is not None]
        begun = [load.request for load in effects.loads]
        expect("loads", set(begun), set(told))
        if told != begun:
            raise NotCovered("loads are told in the order in which their requests first loaded")


def _by_request(handoff: Handoff) -> str:
    return handoff.request
