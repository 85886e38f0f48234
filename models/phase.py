"""A block's life, told in the words of requirement R32.

One function maps a block in a state to its phase. The diagrams, the statistics and the error
messages all use these names.

>>> from cowtail.models.scope import RequestSpec, Scope, full_attention
>>> from cowtail.models.state import initial_state
>>> scope = Scope(name="one", groups=(full_attention(2),), hash_unit=2, num_blocks=4,
...               requests=(RequestSpec("a", "ab"),))
>>> block_phase(initial_state(scope), 1).value
'free'
"""

from __future__ import annotations

import enum

from cowtail.models.state import State


class BlockPhase(enum.StrEnum):
    """Where a block is in its life.

    ``COPIED_ON_WRITE``: the destination of a copy that the pass still keeps; ``COPY_SOURCE``:
    its source, when nothing else holds it. ``PINNED``: only a store job holds it, its request
    has let go of it or never had it in a table.
    """

    FREE = "free"
    ALLOCATED = "allocated"
    ALLOCATED_PINNED = "allocated, pinned"
    TAIL_REGISTERED = "tail-registered"
    COPIED_ON_WRITE = "copied-on-write"
    COPY_SOURCE = "copy source"
    COPY_SOURCE_PINNED = "copy source, pinned"
    PINNED = "pinned"
    FREED_BUT_CACHED = "freed but cached"
    LOST = "lost"


def block_phase(state: State, block: int) -> BlockPhase:
    """Return the phase of a block other than the null block.

    ``LOST`` means referenced by nothing that the state knows of: a leak.
    """
    if state.pool.ref_counts[block] == 0:
        return BlockPhase.FREED_BUT_CACHED if state.pool.keys[block] else BlockPhase.FREE
    pinned = any(block in pin.blocks for pin in state.pins)
    copies = () if state.open_pass is None else state.open_pass.copies
    if any(copy.destination == block for copy in copies):
        return BlockPhase.COPIED_ON_WRITE
    tables = [table for request in state.requests for table in request.tables]
    if any(table.marker is not None and table.marker.block == block for table in tables):
        return BlockPhase.TAIL_REGISTERED
    if any(block in table.blocks for table in tables):
        return BlockPhase.ALLOCATED_PINNED if pinned else BlockPhase.ALLOCATED
    if any(copy.source == block for copy in copies):
        return BlockPhase.COPY_SOURCE_PINNED if pinned else BlockPhase.COPY_SOURCE
    return BlockPhase.PINNED if pinned else BlockPhase.LOST
