"""What must hold of the real engine, whatever it decides: the safety level.

Each property is a function of a session that returns why it fails, None if it holds. Where the
sentence is that of an invariant of the model, the identifier is its identifier too; V5 and V6 are
this engine's own. All of them are checked after every action, but for L2, which is checked when
everything has been drained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from cowtail.impl.vllm_engine.device import MAMBA, why_not_under_key
from cowtail.impl.vllm_engine.memory import show

if TYPE_CHECKING:
    from cowtail.impl.vllm_engine.session import Session


class Violation(AssertionError):
    """A property does not hold of the real engine: ``identifier`` and ``reason``."""

    def __init__(self, identifier: str, reason: str) -> None:
        """Name the property and say why it fails."""
        super().__init__(f"{identifier}: {reason}")
        self.identifier = identifier
        self.reason = reason


def references_equal_owners(session: Session) -> str | None:
    """S1: a block has as many references as owners; the free list is what has none, once."""
    view = session.view
    owners, references, free = view.owners(), view.references(), view.free_list()
    for block, count in references.items():
        if count != owners[block]:
            return f"block {block} has {count} references, and {owners[block]} owners"
    if view.null_block() in free or view.null_block() in owners:
        return "the null block is in the free list, or somebody owns it"
    unreferenced = {block for block, count in references.items() if not count}
    if len(free) != len(set(free)) or len(free) != view.free_count():
        return f"the free list {free} repeats a block, or is not {view.free_count()} long"
    if set(free) != unreferenced:
        wrong = sorted(set(free) ^ unreferenced)
        return f"free list and unreferenced blocks differ in {wrong}"
    return None


def key_map_is_consistent(session: Session) -> str | None:
    """S2: a key finds a block if and only if the block says that it has the key."""
    mapped: dict[int, set[bytes]] = {}
    for key, block in session.view.key_map():
        mapped.setdefault(block, set()).add(key)
    keyed = session.view.block_keys()
    if session.view.null_block() in keyed:
        return "the null block has a key"
    for block in sorted(mapped.keys() | keyed.keys()):
        found, said = mapped.get(block, set()), keyed.get(block, set())
        if found != said:
            return f"block {block} is found under {len(found)} keys, and says it has {len(said)}"
    return None


def keyed_contents_are_true(session: Session) -> str | None:
    """S3: with no step left to execute, a keyed block holds what its keys promise."""
    seen = (session.view.key_map(), [memory.writes for memory in session.memories])
    if session.has_unexecuted_step or seen == session.seen_true:
        return None
    for key, block in session.view.key_map():
        group = int.from_bytes(key[-4:], "big")
        prefix = session.prefixes.get(key[:-4])
        if prefix is None:
            return f"block {block} has a key of no request's prefix"
        for rank, memory in enumerate(session.memories):
            why = why_not_under_key(session.config, memory, block, group, prefix)
            if why is not None:
                return f"the key of group {group} at {show(prefix)} is wrong on rank {rank}: {why}"
    session.seen_true = seen
    return None


def reads_are_true(session: Session) -> str | None:
    """V5: every read of the forward pass finds the KV and the state of the request's prefix."""
    return next(iter(session.device.wrong), None)


def loads_do_not_race(session: Session) -> str | None:
    """V6: no load goes into a block that a step which has not been executed reads or writes.

    Nor into one that another connector loads into. Loads are not ordered with the device's
    stream. Checked when the load is dispatched, whichever of the two would have come first.
    """
    return next(iter(session.ledger.racing_loads), None)


def handoffs_are_true(session: Session) -> str | None:
    """S7: a block handed to the connector is real and referenced, and holds its boundary's state.

    Not null, not past the end of prefill, referenced when it is handed over; its contents are
    compared once the step that carries it has been executed.
    """
    return next(iter(session.ledger.wrong_handoffs), None)


def stored_bytes_are_true(session: Session) -> str | None:
    """S8: every key that a rank stores has the bytes that its hash promises."""
    return next(iter(session.store.wrong), None)


def pins_last_until_all_reported(session: Session) -> str | None:
    """S9: a job's blocks are pinned, by its exact pin, until every rank has reported it.

    And no longer: once all have, the pin is gone. Jobs registered when a request finishes are
    pinned before any rank has heard of them.
    """
    pins, references = session.view.pins(), session.view.references()
    for job, pin in pins.items():
        if job not in session.ledger.jobs and pin.ranks_left != session.config.num_ranks:
            return f"job {job} was not sent yet, but waits for {pin.ranks_left} ranks only"
    for job, owed in session.ledger.jobs.items():
        held = pins.get(job)
        ranks = ", ".join(str(rank) for rank in owed.ranks)
        if owed.ranks and owed.blocks:
            if held is None:
                return f"job {job} lost its pin on {list(owed.blocks)}: rank {ranks} not reported"
            if set(held.blocks) != set(owed.blocks):
                return f"job {job} pins {sorted(held.blocks)}, but reads {sorted(owed.blocks)}"
            if held.ranks_left != len(owed.ranks):
                return f"job {job} waits for {held.ranks_left} reports, but rank {ranks} is left"
            for block in owed.blocks:
                if not references[block]:
                    return f"block {block} of job {job} has no reference: rank {ranks} is left"
        elif held is not None:
            return f"job {job} keeps its pin although every rank has reported it"
    return None


def handed_off_at_most_once(session: Session) -> str | None:
    """S10: a state is handed off once for each generation of a request, group and boundary.

    A generation ends when the request is preempted.
    """
    return next(iter(session.ledger.repeated_handoffs), None)


def markers_are_of_live_tails(session: Session) -> str | None:
    """S10: a marker names a block in its own request's table, of a request that is not over."""
    for (request, group), (block, boundary) in session.view.markers().items():
        if group != MAMBA:
            return f"group {group} marks a tail of {request}, but keeps no boundary state"
        if block not in session.view.tables(request)[group]:
            return f"the tail of {request} at {boundary} marks block {block}, not in its table"
    return None


def resets_forget(session: Session) -> str | None:
    """S13: after a reset that succeeded no block has a key or an owner; a reset store is empty."""
    return next(iter(session.ledger.wrong_resets), None)


def lookups_find_what_is_stored(session: Session) -> str | None:
    """S12: a lookup finds all that the store holds for every group on every rank, and no more."""
    return next(iter(session.ledger.wrong_lookups), None)


def nothing_is_left(session: Session) -> str | None:
    """L2: when all is drained, no manager or connector remembers anything; all blocks are free."""
    left = session.view.leftovers(rank.worker for rank in session.ranks)
    if session.lookup.has_lookups:
        left.append("the connector's lookups have questions or answers left")
    if left:
        return "; ".join(left)
    held = [block for block, count in session.view.references().items() if count]
    return f"blocks {held} are not free" if held else None


@attrs.frozen
class Property:
    """A named property. ``source`` is the requirement or the document it comes from.

    ``of_scheduler``: it reads nothing but scheduler, connector and ledger, none of which an action
    of the device or of a rank reaches.
    """

    identifier: str
    name: str
    source: str
    why_not: Callable[[Session], str | None]
    of_scheduler: bool = False

    @property
    def sentence(self) -> str:
        """What must hold, in one sentence."""
        return (self.why_not.__doc__ or "").splitlines()[0].partition(": ")[2]


def property_of(
    source: str, why_not: Callable[[Session], str | None], *, of_scheduler: bool = False
) -> Property:
    """Return a property from a function whose docstring starts with its identifier."""
    identifier = (why_not.__doc__ or "").partition(":")[0]
    return Property(identifier, why_not.__name__, source, why_not, of_scheduler)


SAFETY: tuple[Property, ...] = (
    property_of("R8, domain.md S1", references_equal_owners, of_scheduler=True),
    property_of("domain.md S2", key_map_is_consistent, of_scheduler=True),
    property_of("R18", reads_are_true),
    property_of("R14, domain.md S3", keyed_contents_are_true),
    property_of("vLLM PR 45357, domain.md S6", loads_do_not_race),
    property_of("R4, R7, R30, domain.md S7", handoffs_are_true),
    property_of("R18, R30, domain.md S8", stored_bytes_are_true),
    property_of("R6, R15, domain.md S9", pins_last_until_all_reported, of_scheduler=True),
    property_of("R9, domain.md S10", handed_off_at_most_once),
    property_of("R9, domain.md S10", markers_are_of_live_tails, of_scheduler=True),
    property_of("domain.md S13, S14", resets_forget),
    property_of("R23, R28, R29, domain.md S4, S12", lookups_find_what_is_stored),
)
"""What is checked after every action, in this order."""

QUIESCENCE: Property = property_of("R6, domain.md L2", nothing_is_left)
"""What is checked when everything has been drained."""


def check(session: Session, *, aside: bool = False) -> None:
    """Raise Violation for the first property that does not hold of ``session``.

    ``aside``: only device or ranks have acted since the last check.
    """
    if not aside:
        session.view.look_again()
    for prop in SAFETY:
        if prop.identifier in session.unchecked or (aside and prop.of_scheduler):
            continue
        if (why := prop.why_not(session)) is not None:
            raise Violation(prop.identifier, why)
