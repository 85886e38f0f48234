"""Defects that the engine can be started with: each is a part that somebody got wrong.

The K-numbers are public bug reports, abstracted to this engine; the others are mistakes of the
same kinds that somebody may make tomorrow. None raises by itself: each does something a little
different from what it should, and the harness has to notice.

>>> parts_with(["K01"]).mamba.__name__
'DropsTailAtFinish'
>>> parts_with([]) == Parts()
True
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs

from cowtail.impl.torch_engine.connector_faults import (
    FindsStateByPosition,
    PinsBlocksTwice,
    SavesKnownTokensAtFinish,
    SkipsPartialChunk,
    StoresPastBoundary,
)
from cowtail.impl.torch_engine.eagle_faults import (
    DropsOnceMoreWhenLoading,
    LooksOneUnitBeyond,
    PublishesProofEarly,
    StopsAsIfNothingDropped,
    StopsAtThePromptsEnd,
    StoresProofAtTheBoundary,
    StoresProofOfMarkedGroupOnly,
)
from cowtail.impl.torch_engine.group_faults import (
    CountsStaleOutput,
    DropsTailAtFinish,
    ForgetsSourceReference,
    FreesHeadFirst,
    GivesBackWindowEarly,
    LosesMovedKeys,
    OffersTailAtRegistration,
    RemembersTailTwice,
    TrustsMarkerAtFinish,
)
from cowtail.impl.torch_engine.ledger_faults import (
    ExpectsOneRankMore,
    IgnoresFinishedRequests,
    NumbersJobsPerLife,
    OwesAgainAfterReadmission,
    ReleasesAfterFirstRank,
    ReleasesTwice,
    UnpinsAtPreemption,
)
from cowtail.impl.torch_engine.load_faults import (
    CommitsTheLongestGroup,
    CountsBothConnectors,
    DrainsOnPrefillOnly,
    FiltersAbortedLoads,
    FirstSendFrees,
    ForgetsFailedLoads,
    FreesHeldRequestAgain,
    FreesWhileLoading,
    HoldsWithoutBlocks,
    KeepsAnswersOverReset,
    KeepsLeases,
    KeysBeforeLoaded,
    LoadedAfterFirstRank,
    LoadsLocalTails,
    OffersTailsToFirst,
    ReportsNullBlocks,
    ResetsUnderPins,
    RoundsLookupDown,
    TakesEvictedForLoaded,
    TakesFailureForSuccess,
    WaitsForRanksThatAreDone,
)
from cowtail.impl.torch_engine.lookup_faults import (
    FloorsLookupToBlocks,
    FreesAtOnce,
)
from cowtail.impl.torch_engine.parts import Parts
from cowtail.impl.torch_engine.schedule_faults import (
    AppendsOnResume,
    ForgetsAcceptedDrafts,
    KeepsNoProof,
    KeepsWithdrawnKeys,
    StopsAtBlocksOnly,
)
from cowtail.impl.torch_engine.tail_faults import (
    AppendsBlocksOnResume,
    DropsStatesBeyondThePrompt,
    ReplacesEntryAfterLoad,
    RestoresTheNextColumn,
)
from cowtail.impl.torch_engine.worker_faults import (
    ChecksStoreWhenQueued,
    CopiesAfterForward,
    ForgetsToZero,
    LosesJobsWhoseCheckFails,
    MovesOffsetOnFailure,
    SavesEveryGroupByPosition,
    TrustsDurableOffset,
)


@attrs.frozen
class Fault:
    """A named defect.

    ``case``: the K-number, or "" if it is no public report's. ``source``: the thread or the
    requirement behind it. ``sentence``: what the developer did wrong. ``part``: the field of
    ``Parts`` that ``replacement`` takes the place of. ``scope_hint``: a named scope in which it
    shows soon, or "".
    """

    name: str
    case: str
    source: str
    sentence: str
    scope_hint: str
    part: str = attrs.field(repr=False)
    replacement: type = attrs.field(repr=False)


def _vllm(thread: str) -> str:
    return f"vllm-project/vllm {thread}"


_ALL = (
    Fault(
        "K01",
        "K01",
        _vllm("pull 52832"),
        "A tail is handed over by copy-on-write only; the finish path drops it.",
        "lone_producer",
        "mamba",
        DropsTailAtFinish,
    ),
    Fault(
        "K02",
        "K02",
        _vllm("pull 52832"),
        "The finish path hands a tail over although a step in flight may overwrite it.",
        "lone_producer",
        "mamba",
        TrustsMarkerAtFinish,
    ),
    Fault(
        "K03",
        "K03",
        _vllm("pull 52832"),
        "A tail that copy-on-write handed over is handed over again at finish.",
        "lone_producer",
        "mamba",
        RemembersTailTwice,
    ),
    Fault(
        "K04",
        "K04",
        _vllm("pull 51358, issue 53084"),
        "The block of a boundary state is looked up by its position in the table.",
        "lone_producer",
        "connector",
        FindsStateByPosition,
    ),
    Fault(
        "K05",
        "K05",
        _vllm("pull 49502"),
        "The blocks of a tail are enumerated by floor division; the partial one is left out.",
        "lone_producer",
        "connector",
        SkipsPartialChunk,
    ),
    Fault(
        "K06",
        "K06",
        _vllm("pull 49502"),
        "A lookup in the store rounds down to whole blocks, past the tail that is stored.",
        "",
        "store_lookup",
        RoundsLookupDown,
    ),
    Fault(
        "K07",
        "K07",
        _vllm("pull 49502"),
        "A load begins for a tail that the local cache alone can supply.",
        "",
        "scheduler",
        LoadsLocalTails,
    ),
    Fault(
        "K08",
        "K08",
        _vllm("pull 49502"),
        "A failed put moves the durable offset all the same; later saves skip the hole.",
        "faulty_store",
        "worker",
        MovesOffsetOnFailure,
    ),
    Fault(
        "K09",
        "K09",
        _vllm("pull 51766"),
        "After a load, a copy-on-write replaces the table entry that the workers still write.",
        "",
        "mamba",
        ReplacesEntryAfterLoad,
    ),
    Fault(
        "K10",
        "K10",
        _vllm("issue 56972"),
        "States beyond the prompt are dropped, though attention is saved: a continuation misses.",
        "",
        "connector",
        DropsStatesBeyondThePrompt,
    ),
    Fault(
        "K11",
        "K11",
        _vllm("pull 50409"),
        "A prompt that ends on a boundary has its state kept at its end, where no resend looks.",
        "",
        "chunking",
        StopsAtThePromptsEnd,
    ),
    Fault(
        "K12",
        "K12",
        "LMCache/LMCache pull 5249",
        "A hit that fills its last block exactly has the wrong block taken for its state.",
        "",
        "states",
        RestoresTheNextColumn,
    ),
    Fault(
        "K13",
        "K13",
        _vllm("pull 56615"),
        "Every group is stored up to the boundary; an EAGLE lookup drops a unit and misses.",
        "",
        "connector",
        StoresProofAtTheBoundary,
    ),
    Fault(
        "K14",
        "K14",
        _vllm("pull 56615"),
        "Attention beyond the boundary is stored before it is computed.",
        "",
        "connector",
        PublishesProofEarly,
    ),
    Fault(
        "K15",
        "K15",
        _vllm("pull 56615"),
        "The margin is the hash unit for all groups, although some are found by whole blocks.",
        "",
        "lookup",
        LooksOneUnitBeyond,
    ),
    Fault(
        "K16",
        "K16",
        _vllm("pull 43516"),
        "The lookup has dropped a block, and the loader drops another: it is never written.",
        "",
        "store_loader",
        DropsOnceMoreWhenLoading,
    ),
    Fault(
        "K17",
        "K17",
        _vllm("pull 51295"),
        "Chunks stop at a boundary that an EAGLE lookup cannot prove.",
        "",
        "chunking",
        StopsAsIfNothingDropped,
    ),
    Fault(
        "K18",
        "K18",
        _vllm("pull 49069"),
        "Of equal groups, looked up together, only the drafter's is stored through the margin.",
        "",
        "connector",
        StoresProofOfMarkedGroupOnly,
    ),
    Fault(
        "K19",
        "K19",
        _vllm("issue 52360, pull 52372"),
        "A preemption releases the pins of jobs that have not run.",
        "async_two_steps",
        "ledger",
        UnpinsAtPreemption,
    ),
    Fault(
        "K20",
        "K20",
        _vllm("issue 51637"),
        "Jobs are numbered per life of a request; one life's report counts for the next one's job.",
        "async_two_steps",
        "ledger",
        NumbersJobsPerLife,
    ),
    Fault(
        "K21",
        "K21",
        _vllm("pull 43742"),
        "An existence check that raises ends the job; it is never reported, and its pin stays.",
        "",
        "worker",
        LosesJobsWhoseCheckFails,
    ),
    Fault(
        "K22",
        "K22",
        _vllm("pull 46595"),
        "When a request resumes, the connector appends its blocks to those of the life before.",
        "",
        "connector",
        AppendsBlocksOnResume,
    ),
    Fault(
        "K23",
        "K23",
        _vllm("pull 54288"),
        "Finishing on a block boundary saves a block whose last slot was never written.",
        "continuation",
        "connector",
        SavesKnownTokensAtFinish,
    ),
    Fault(
        "K24",
        "K24",
        _vllm("pull 41289"),
        "Existence is checked when a job is queued; a block whose store is in flight goes twice.",
        "shared_prefix",
        "worker",
        ChecksStoreWhenQueued,
    ),
    Fault(
        "K25",
        "K25",
        _vllm("issue 42571, pull 42903"),
        "A block that a job lists twice is pinned twice.",
        "cow_decode",
        "connector",
        PinsBlocksTwice,
    ),
    Fault(
        "K26",
        "K26",
        _vllm("issue 46014"),
        "Admitting a request again makes every rank owe its outstanding jobs once more.",
        "async_two_steps",
        "ledger",
        OwesAgainAfterReadmission,
    ),
    Fault(
        "K27",
        "K27",
        _vllm("pull 47235"),
        "A durable offset is never checked again; what the store evicted stays a hole.",
        "",
        "worker",
        TrustsDurableOffset,
    ),
    Fault(
        "K28",
        "K28",
        "sgl-project/sglang pull 20049",
        "Reports are only looked at after a prefill; pure decode never releases a pin.",
        "",
        "scheduler",
        DrainsOnPrefillOnly,
    ),
    Fault(
        "K29",
        "K29",
        _vllm("pull 32255"),
        "An abort frees blocks that a load is still written into.",
        "",
        "scheduler",
        FreesWhileLoading,
    ),
    Fault(
        "K30",
        "K30",
        _vllm("pull 32255, review"),
        "An abort waits for ranks that have reported the load already.",
        "",
        "held",
        WaitsForRanksThatAreDone,
    ),
    Fault(
        "K31",
        "K31",
        "vllm-project/vllm-ascend issue 16662",
        "The completion of an aborted request's load is filtered out; its blocks stay.",
        "",
        "scheduler",
        FiltersAbortedLoads,
    ),
    Fault(
        "K32",
        "K32",
        _vllm("pull 25067"),
        "An abort of a finished request frees blocks that are kept until its saves are over.",
        "",
        "scheduler",
        FreesHeldRequestAgain,
    ),
    Fault(
        "K33",
        "K33",
        _vllm("pull 23917 and others"),
        "One rank more is waited for than there is: no pin ever goes.",
        "",
        "ledger",
        ExpectsOneRankMore,
    ),
    Fault(
        "K34",
        "K34",
        _vllm("issue 39702, pull 42289"),
        "What a lookup found is evicted before it is loaded, and nobody notices.",
        "",
        "store_loader",
        TakesEvictedForLoaded,
    ),
    Fault(
        "K35",
        "K35",
        _vllm("issue 46453"),
        "Groups find different lengths in the store, and the longest one is committed to.",
        "",
        "store_lookup",
        CommitsTheLongestGroup,
    ),
    Fault(
        "K36",
        "K36",
        _vllm("issue 44100"),
        "The lease of a lookup outlives the abort of its request.",
        "",
        "answers",
        KeepsLeases,
    ),
    Fault(
        "K37",
        "K37",
        _vllm("pull 50388"),
        "A failed load reports the null block as invalid, which half of all tables hold.",
        "",
        "scheduler",
        ReportsNullBlocks,
    ),
    Fault(
        "K38",
        "K38",
        _vllm("pull 42788"),
        "A load that failed is taken for done, and decoded from.",
        "",
        "store_loader",
        TakesFailureForSuccess,
    ),
    Fault(
        "K39",
        "K39",
        "LMCache/LMCache issue 1034",
        "Two places give a pin back, and each believes to be the only one.",
        "",
        "ledger",
        ReleasesTwice,
    ),
    Fault(
        "K40",
        "K40",
        _vllm("pull 45357"),
        "Blocks are given back at once although a step in flight may write them.",
        "",
        "fence",
        FreesAtOnce,
    ),
    Fault(
        "K42",
        "K42",
        _vllm("issues 53049, 51786"),
        "A connector that has loaded nothing reports the load as well.",
        "",
        "load_ledger",
        CountsBothConnectors,
    ),
    Fault(
        "K43",
        "K43",
        _vllm("pull 18246"),
        "Of two connectors that send a request, the first to be done frees its blocks.",
        "",
        "send_queue",
        FirstSendFrees,
    ),
    Fault(
        "K44",
        "K44",
        _vllm("issue 57727"),
        "A reset empties the store, and keeps what lookups had found there.",
        "",
        "answers",
        KeepsAnswersOverReset,
    ),
    Fault(
        "K45",
        "K45",
        _vllm("pull 39726"),
        "A reset goes through although jobs have blocks pinned.",
        "",
        "pool",
        ResetsUnderPins,
    ),
    Fault(
        "tail_emitted_twice",
        "",
        "R9, R35",
        "A tail is offered when it is registered, and again when it is copied.",
        "lone_producer",
        "mamba",
        OffersTailAtRegistration,
    ),
    Fault(
        "pin_never_released",
        "",
        "R6, R35",
        "Reports that arrive after their request has finished are ignored.",
        "lone_producer",
        "ledger",
        IgnoresFinishedRequests,
    ),
    Fault(
        "pin_released_after_first_rank",
        "",
        "R6",
        "The first rank's report releases the blocks that the others still read.",
        "lone_producer",
        "ledger",
        ReleasesAfterFirstRank,
    ),
    Fault(
        "offloaded_past_boundary",
        "",
        "R14, R35",
        "A tail's attention block is stored to the end of the block, past the boundary.",
        "lone_producer",
        "connector",
        StoresPastBoundary,
    ),
    Fault(
        "reference_forgotten_by_cow",
        "",
        "R8, R9",
        "A copy-on-write gives back a reference on its source that it never took.",
        "lone_producer",
        "mamba",
        ForgetsSourceReference,
    ),
    Fault(
        "null_block_offloaded",
        "",
        "R18, R30",
        "The normal save walks Mamba tables by position too, over their nulls.",
        "faulty_store",
        "worker",
        SavesEveryGroupByPosition,
    ),
    Fault(
        "freed_head_first",
        "",
        "domain.md a",
        "A table is freed from its first block on, so a prefix loses its head first.",
        "cow_decode",
        "attention",
        FreesHeadFirst,
    ),
    Fault(
        "moved_keys_lost",
        "",
        "domain.md d",
        "Copy-on-write evicts the keys of the block that it copies, instead of moving them.",
        "lone_producer",
        "pool",
        LosesMovedKeys,
    ),
    Fault(
        "stale_output_counted",
        "",
        "domain.md d",
        "Output of a step from before a preemption is counted after it.",
        "async_two_steps",
        "scheduler",
        CountsStaleOutput,
    ),
    Fault(
        "copy_after_forward",
        "",
        "domain.md b",
        "Copies run after the forward pass that overwrites their sources.",
        "lone_producer",
        "worker",
        CopiesAfterForward,
    ),
    Fault(
        "lookup_floored_to_blocks",
        "",
        _vllm("pull 49502"),
        "The bound of a lookup is floored to whole blocks, although finer tails are cached.",
        "shared_prefix",
        "lookup",
        FloorsLookupToBlocks,
    ),
    Fault(
        "window_given_back_early",
        "",
        "domain.md b",
        "A sliding window gives back a block that the next token still attends to.",
        "",
        "window",
        GivesBackWindowEarly,
    ),
    Fault(
        "window_proof_not_kept",
        "",
        _vllm("pull 49069"),
        "The window block that proves an EAGLE hit is not retained.",
        "",
        "retention",
        KeepsNoProof,
    ),
    Fault(
        "boundary_overrun",
        "",
        "R29",
        "A chunk runs over the replay boundary, so that the state there is never seen.",
        "lone_producer",
        "chunking",
        StopsAtBlocksOnly,
    ),
    Fault(
        "resumed_table_appended",
        "",
        _vllm("pull 46595"),
        "The workers append the table of a resumed request to that of its life before.",
        "async_two_steps",
        "worker_tables",
        AppendsOnResume,
    ),
    Fault(
        "accepted_drafts_forgotten",
        "",
        "domain.md b",
        "The state is read where it is without drafts, although some were accepted.",
        "",
        "states",
        ForgetsAcceptedDrafts,
    ),
    Fault(
        "withdrawn_keys_kept",
        "",
        "domain.md d",
        "A chunk withdrawn from its pass leaves the keys that it registered.",
        "",
        "scheduler",
        KeepsWithdrawnKeys,
    ),
    Fault(
        "keyed_before_loaded",
        "",
        "R18, domain.md c",
        "Blocks are found by others while a load has yet to fill them.",
        "",
        "load_allocator",
        KeysBeforeLoaded,
    ),
    Fault(
        "loaded_after_first_rank",
        "",
        "R18",
        "The first rank's report makes a request loaded.",
        "",
        "load_ledger",
        LoadedAfterFirstRank,
    ),
    Fault(
        "failed_load_not_reported",
        "",
        "R18",
        "A load that fails is never reported, so its request waits for ever.",
        "",
        "load_queue",
        ForgetsFailedLoads,
    ),
    Fault(
        "held_without_blocks",
        "",
        "R5",
        "A finished request that has no block is held for a peer all the same.",
        "",
        "peer",
        HoldsWithoutBlocks,
    ),
    Fault(
        "tail_offered_to_first_connector",
        "",
        "R5, R6",
        "Of several connectors only the first is asked to take a tail.",
        "",
        "multi",
        OffersTailsToFirst,
    ),
    Fault(
        "blocks_not_zeroed",
        "",
        "domain.md b",
        "A block that is allocated again keeps its old bytes.",
        "preempt_under_pressure",
        "worker",
        ForgetsToZero,
    ),
)

FAULTS: dict[str, Fault] = {fault.name: fault for fault in _ALL}
"""Every fault by name, public reports first."""


def parts_with(names: Collection[str]) -> Parts:
    """Return the engine's parts with the named faults in them; several may share a part.

    Raises ValueError for a fault that does not exist.
    """
    parts = Parts()
    for name in names:
        if name not in FAULTS:
            raise ValueError(f"fault {name!r}: no such fault; use one of {', '.join(FAULTS)}")
        fault = FAULTS[name]
        present: Any = getattr(parts, fault.part)
        replacement: Any = fault.replacement
        if present is not getattr(Parts(), fault.part):
            replacement = type(
                f"{replacement.__name__}_{present.__name__}", (replacement, present), {}
            )
        parts = attrs.evolve(parts, **{fault.part: replacement})
    return parts
