"""Each rank's memory: one for all of them until loads, which ranks run by themselves, differ.

All ranks execute a step together and alike. A load arrives on one rank after another, and may
fail on one alone; until the bytes are overwritten, or the last rank has loaded, memories differ.
"""

from __future__ import annotations

import attrs

from cowtail.models.observations import GARBAGE
from cowtail.models.scope import Group
from cowtail.models.state import Memory, State


def memory_of(state: State, rank: int) -> Memory:
    """Return what one rank's memory holds."""
    return state.other_memories[rank - 1] if rank and state.other_memories else state.memory


def agreed_memory(state: State) -> Memory:
    """Return what every rank's memory holds: garbage where they disagree."""
    if not state.other_memories:
        return state.memory
    return tuple(
        pages[0]
        if all(page == pages[0] for page in pages)
        else tuple(
            slots[0] if all(slot == slots[0] for slot in slots) else GARBAGE
            for slots in zip(*pages, strict=True)
        )
        for pages in zip(state.memory, *state.other_memories, strict=True)
    )


def with_memories(state: State, memories: list[Memory]) -> State:
    """Return ``state`` with every rank's memory replaced; equal ones are one again."""
    first, *others = memories
    apart = tuple(others) if any(memory != first for memory in others) else ()
    return attrs.evolve(state, memory=first, other_memories=apart)


def slots_of(group: Group, length: int) -> int:
    """Return how many slots of a block its key of ``length`` tokens speaks for, from slot 0 on."""
    return 1 if group.is_mamba else (length - 1) % group.block_size + 1


def true_content(group: Group, prefix: str) -> tuple[str, ...]:
    """Return what a block keyed ``prefix`` has to hold, by slot."""
    if group.is_mamba:
        return (prefix,)
    length = len(prefix)
    return tuple(prefix[:end] for end in range(length - slots_of(group, length) + 1, length + 1))
