"""What real vLLM is known to violate, so that fuzzing can go on past it.

A finding is known if its recognizer says so, and recognizers are narrow: they look at the state
of the engine, not at the message. A known finding ends its episode, is counted by name in the
report's statistics, and is never a reason for a green property to be weakened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cowtail.impl.vllm_engine.fixed_upstream import FIXED_UPSTREAM
from cowtail.impl.vllm_engine.known_finding import KnownFinding
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.scope import Role

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.checks import Violation
    from cowtail.impl.vllm_engine.session import Session

__all__ = ["KNOWN_FINDINGS", "KnownFinding", "known_finding"]


def _producer_load_races(session: Session) -> bool:
    """A producer, whose frees wait for no step, has loaded into a block a step still works on."""
    return (
        bool(session.ledger.racing_loads)
        and session.config.role is Role.PRODUCER
        and not session.view.defers_frees
    )


def _retry_blocks_the_queue(session: Session) -> bool:
    """A request that waits, to retry a failed load, holds nothing and is itself reserved for."""
    return session.config.recompute_failed_loads and any(
        not request.is_finished()
        and request.num_computed_tokens == 0
        and not any(session.view.tables(name))
        and session.view.is_reserved_for(request)
        for name, request in session.requests.items()
    )


def _loaded_tail_has_no_room(session: Session) -> bool:
    """The head of the blocked queue has loaded a tail that it cannot copy; nothing runs."""
    head = session.view.blocked_head()
    return (
        head is not None
        and head.num_computed_tokens > 0
        and session.view.has_partial_hit(head.request_id)
        and not session.view.has_running
    )


def _copies_are_chained(session: Session) -> bool:
    """A step has copied from a block that it was still filling, by a copy or by computing it."""
    return bool(session.device.chained_copies)


def _preempted_after_scheduling(session: Session) -> bool:
    """A pass has preempted a request after it had scheduled it, and left its new keys."""
    return session.config.priority and bool(session.ledger.keys_of_preempted)


def _resumed_by_the_pass_that_tells_of_it(session: Session) -> bool:
    """A pass has resumed a request whose preemption, by a reset, it tells the connector of."""
    return bool(session.ledger.resumed_at_once)


_ALL = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""The releases on which every kept trace was replayed (`tests/vllm/findings`)."""

KNOWN_FINDINGS: tuple[KnownFinding, ...] = (
    KnownFinding(
        name="producer load races the device",
        page="producer-load-races-the-device",
        consequence="wrong output, silently",
        identifier="V6",
        releases=_ALL,
        sentence=(
            "A kv_producer looks up and loads like any other role, but freed blocks wait for "
            "the steps in flight only where the role consumes: with two steps in flight a load "
            "can overwrite the source of a copy that the device has not made yet."
        ),
        place="Scheduler.__init__ (defer_block_free), Scheduler._free_cow_retained_blocks",
        see="vllm-project/vllm PR 45357",
        recognizes=_producer_load_races,
    ),
    KnownFinding(
        name="retry of a failed load blocks the queue",
        page="failed-load-retry-blocks-the-queue",
        consequence="hang: nothing behind it is scheduled",
        identifier="L2",
        releases=_ALL[1:],
        sentence=(
            "With kv_load_failure_policy=recompute, a request whose load failed frees its blocks "
            "but keeps its place among the in-flight prefills: its retry has to fit beside its "
            "own reservation, and while it does not, nothing behind it is scheduled."
        ),
        place=(
            "Scheduler._update_waiting_for_remote_kv, Scheduler._inflight_prefill_reserved_blocks"
        ),
        see="vllm-project/vllm PR 44560",
        recognizes=_retry_blocks_the_queue,
    ),
    KnownFinding(
        name="loaded tail has no room for its copy",
        page="loads-that-fill-the-pool",
        consequence="hang",
        identifier="L2",
        releases=_ALL,
        sentence=(
            "What is reserved for loads in flight leaves out the copy-on-write that a request "
            "needs once it has loaded a tail inside a block: loads that fill the pool wait for "
            "each other, with nothing running that could be preempted."
        ),
        place="Scheduler._request_remaining_blocks, Scheduler._update_waiting_for_remote_kv",
        see="vllm-project/vllm PR 44560, PR 57104",
        recognizes=_loaded_tail_has_no_room,
    ),
    KnownFinding(
        name="copies of one step are chained",
        page="copies-of-one-step-are-chained",
        consequence="wrong output, silently",
        identifier="V5",
        releases=_ALL,
        sentence=(
            "A request admitted in the pass in which another one has just taken a private copy "
            "can hit inside that copy, where the attention group finds more than the Mamba group. "
            "Both copies run in one indexed assignment that reads all sources first: the second "
            "copies what was in the block before. So does a hit in an attention block that another "
            "request of the same pass computes: copies come before the forward pass."
        ),
        place=(
            "MambaManager.get_num_blocks_to_allocate (the same-step rule is Mamba's only), "
            "copy_kv_cache_blocks_inplace"
        ),
        see="vllm-project/vllm PR 49502",
        recognizes=_copies_are_chained,
    ),
    *(
        KnownFinding(
            name="keys of a withdrawn chunk stay",
            page="keys-of-a-withdrawn-chunk-stay",
            consequence="wrong output, silently",
            identifier=identifier,
            releases=_ALL,
            sentence=(
                "With priority scheduling, a pass may preempt a request that it has scheduled "
                "already. Its chunk is withdrawn, but the prefix-cache keys registered for it "
                "stay on the freed blocks: a lookup finds tokens that were never computed. The "
                "preempted request itself, resumed, can be the first to read them."
            ),
            place="Scheduler.schedule (priority branch), Scheduler._preempt_request",
            see="no public thread known",
            recognizes=_preempted_after_scheduling,
        )
        for identifier in ("S3", "V5", "S8", "S7")
    ),
    *(
        KnownFinding(
            name="reset forgets what is resumed at once",
            page="reset-forgets-what-is-resumed-at-once",
            consequence=consequence,
            identifier=identifier,
            releases=_ALL,
            sentence=(
                "reset_prefix_cache(reset_running_requests=True) preempts what runs, and the next "
                "pass tells the connector of it; the same pass may resume the request. The "
                "Mooncake connector handles preemptions last of all that it was told while the "
                "pass was made up: it forgets the resumed request, and what it was to load."
            ),
            place="MooncakeStoreScheduler.build_connector_meta",
            see="no public thread known",
            recognizes=_resumed_by_the_pass_that_tells_of_it,
        )
        for identifier, consequence in (
            ("A", "crash of the engine, in the next step"),
            ("L2", "hang: the request waits for a load that nobody makes"),
            ("C", "hang: the request waits for a load that nobody makes"),
        )
    ),
    *FIXED_UPSTREAM,
)
"""The findings that are known, in the order in which they were found; then what is fixed."""


def known_finding(session: Session, violation: Violation) -> KnownFinding | None:
    """Return the known finding that a session's violation is; None if it is new."""
    release = surface().release.version
    for known in KNOWN_FINDINGS:
        if (
            known.identifier == violation.identifier
            and release in known.releases
            and known.recognizes(session)
        ):
            return known
    return None
