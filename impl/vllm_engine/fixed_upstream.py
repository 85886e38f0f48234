"""Defects that upstream has fixed, so that fuzzing an older release goes on past them.

A lost boundary leaves no trace in the engine: nothing happens. Those are recognized by what
decides the boundary, the lengths of prompts that came to their end; the others by its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cowtail.impl.vllm_engine.known_finding import KnownFinding
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.actions import UpdateConnectorOutput

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.session import Session

_PAGE = "fixed-upstream"
_LOST = "lost cache: the prompt is computed again"


def _finished_lengths(session: Session) -> list[int]:
    """Return the prompt lengths of the requests that are over."""
    return [
        len(session.config.request(name).prompt)
        for name, request in session.requests.items()
        if request.is_finished()
    ]


def _ends_at_its_boundary(session: Session) -> bool:
    """A prompt ends where a hash unit ends, and the release registers its tail just there."""
    unit = session.config.hash_unit
    return (
        not surface().release.boundary_below_prompt
        and not session.config.eagle
        and any(length % unit == 0 for length in _finished_lengths(session))
    )


def _fills_its_last_block(session: Session) -> bool:
    """A prompt ends where a Mamba block ends: its last state is no tail, and is not kept."""
    size = session.config.mamba_block_size
    ends = any(length % size == 0 for length in _finished_lengths(session))
    return ends and _ends_at_its_boundary(session)


def _state_inside_an_attention_block(session: Session) -> bool:
    """A prompt's boundary ends a Mamba block, and lies inside an attention block."""
    config = session.config
    boundaries = [
        (n - 1) // config.hash_unit * config.hash_unit for n in _finished_lengths(session)
    ]
    return not surface().release.tail_put_by_scheduler and any(
        at % config.mamba_block_size == 0 and at % config.attention_block_size for at in boundaries
    )


def _no_handoff_at_finish(session: Session) -> bool:
    """The release has no handoff at finish, and a prompt ends at a boundary inside a block."""
    size = session.config.mamba_block_size
    inside = any(length % size for length in _finished_lengths(session))
    return inside and not surface().release.finish_time_handoff and _ends_at_its_boundary(session)


def _eagle_without_companion(session: Session) -> bool:
    """With EAGLE, attention is looked up one unit past the boundary, and not stored there."""
    return session.config.eagle and not surface().release.eagle_companion


def _finished_tail_is_half_pinned(session: Session) -> bool:
    """The job of a finished request reads blocks that its pin leaves out."""
    pins = session.view.pins()
    return any(
        job in pins
        and set(pins[job].blocks) < set(owed.blocks)
        and session.requests[owed.request].is_finished()
        for job, owed in session.ledger.jobs.items()
    )


def _marked_late(session: Session) -> bool:
    """A tail was registered in a block that a step in flight overwrites."""
    return bool(session.ledger.marked_late)


def _load_failed_by_block(session: Session) -> bool:
    """The scheduler was being told of blocks whose load failed."""
    return (
        not surface().release.failed_loads_by_request
        and session.statistics["loads failed"] > 0
        and bool(session.actions)
        and isinstance(session.actions[-1], UpdateConnectorOutput)
    )


FIXED_UPSTREAM: tuple[KnownFinding, ...] = (
    KnownFinding(
        name="tail lost at finish",
        page=_PAGE,
        consequence=_LOST,
        identifier="L6",
        releases=("0.29.0",),
        sentence=(
            "A tail is handed to the connector by the copy that the next chunk makes. A request "
            "that is over at its boundary has no next chunk: the tail stays out of the store."
        ),
        place="Scheduler._free_request",
        see="vllm-project/vllm PR 52832",
        recognizes=_no_handoff_at_finish,
    ),
    *(
        KnownFinding(
            name="EAGLE proof not stored",
            page=_PAGE,
            consequence=_LOST,
            identifier=identifier,
            releases=("0.29.0", "0.30.0", "0.31.0"),
            sentence=(
                "With EAGLE, a lookup probes attention one unit past the boundary and drops it. "
                "Attention is stored up to the boundary only, so the boundary is never found."
            ),
            place="KVCacheStoreSendingThread._sub_block_tail_puts",
            see="vllm-project/vllm PR 56615",
            recognizes=_eagle_without_companion,
        )
        for identifier in ("R23", "R29")
    ),
    *(
        KnownFinding(
            name="hash unit lost on resend",
            page=_PAGE,
            consequence=_LOST,
            identifier=identifier,
            releases=("0.29.0", "0.30.0", "0.31.0"),
            sentence=(
                "The tail of a prompt that ends where a hash unit ends is registered at its end. "
                "The same prompt again computes its last token again and cannot use it; and where "
                "the prompt fills its last block, the state is not kept for a longer one either."
            ),
            place="MambaManager._cache_partial_tail_block",
            see="vllm-project/vllm PR 50409",
            recognizes=recognizes,
        )
        for identifier, recognizes in (
            ("R29", _ends_at_its_boundary),
            ("L6", _fills_its_last_block),
        )
    ),
    *(
        KnownFinding(
            name="state stored without its attention",
            page=_PAGE,
            consequence=_LOST,
            identifier=identifier,
            releases=("0.29.0", "0.30.0", "0.31.0"),
            sentence=(
                "Where attention blocks are longer than Mamba blocks, a boundary at the end of a "
                "Mamba block can lie inside an attention block. The state is stored as one of a "
                "whole block, and the attention up to it is not."
            ),
            place="KVCacheStoreSendingThread._boundary_snapshot_puts",
            see="vllm-project/vllm PR 56615",
            recognizes=_state_inside_an_attention_block,
        )
        for identifier in ("L6", "R29")
    ),
    *(
        KnownFinding(
            name="half of a finished tail is pinned",
            page=_PAGE,
            consequence="wrong bytes in the store: the attention block is reused while it is read",
            identifier=identifier,
            releases=("0.30.0", "0.31.0"),
            sentence=(
                "The tail that is handed off at finish pins its Mamba block only. Ranks store the "
                "attention block of the same boundary too, which they find in the job's block "
                "table; it is free by then, and may be somebody else's."
            ),
            place=(
                "MooncakeStoreScheduler.register_finished_partial_tail, "
                "KVCacheStoreSendingThread._sub_block_tail_puts"
            ),
            see="vllm-project/vllm PR 56615",
            recognizes=_finished_tail_is_half_pinned,
        )
        for identifier in ("S9", "S8")
    ),
    *(
        KnownFinding(
            name="tail registered under a step in flight",
            page=_PAGE,
            consequence=consequence,
            identifier=identifier,
            releases=("0.29.0", "0.30.0", "0.31.0"),
            sentence=(
                "With two steps in flight, the chunk after a prompt's last one is scheduled before "
                "its token is known: what it caches ends at the boundary again. After its copy has "
                "moved the key to another block, the tail is registered once more, in the block "
                "that this chunk overwrites; it can also be handed off twice."
            ),
            place="KVCacheManager.allocate_slots, MambaManager._cache_partial_tail_block",
            see="vllm-project/vllm PR 50409",
            recognizes=_marked_late,
        )
        for identifier, consequence in (
            ("S3", "wrong output, once it is hit"),
            ("S10", "the tail is stored twice"),
        )
    ),
    KnownFinding(
        name="failed load with several groups",
        page=_PAGE,
        consequence="crash of the engine",
        identifier="A",
        releases=("0.29.0",),
        sentence=(
            "Failed loads are reported by block, and the scheduler goes through the table of the "
            "one group that it expects: with several groups it raises."
        ),
        place="Scheduler._update_requests_with_invalid_blocks",
        see="no public thread known",
        recognizes=_load_failed_by_block,
    ),
)
"""In the order of their page."""
