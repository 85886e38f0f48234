"""The block table of one request in one KV cache group, and what a scheduling pass produces."""

from __future__ import annotations

from collections.abc import Collection

import attrs

from cowtail.impl.torch_engine.block_pool import BlockPool
from cowtail.models.observations import NULL_BLOCK, Copy, Handoff, Key, Marker


@attrs.define(eq=False)
class BlockTable:
    """Blocks of one request in one group, by position; null where nothing is kept.

    ``num_cached``: leading blocks that were considered for keys. ``copy_at``: the index of the
    block that must be copied at the next allocation. ``retired``: index below which a Mamba
    group has given its states back. ``last_state``: index of the state that the running one
    was copied from. ``marker``: the registered partial tail. ``allocated``: whether blocks
    were allocated in this life; a load counts.
    """

    blocks: list[int] = attrs.field(factory=list)
    num_cached: int = 0
    copy_at: int | None = None
    retired: int = 0
    last_state: int | None = None
    marker: Marker | None = None
    allocated: bool = False

    def give_back(self, index: int, pool: BlockPool) -> None:
        """Null one entry and free its block."""
        block, self.blocks[index] = self.blocks[index], NULL_BLOCK
        pool.free((block,))


@attrs.define(eq=False)
class PassRecord:
    """What the groups did in the pass that is open; the groups of a manager share one.

    ``copies`` and ``handoffs`` in the order made. ``new_blocks`` are zeroed by the step.
    ``mamba_keys`` are the keys whose states the pass's own step has yet to compute or copy.
    ``registered`` are the keys of each request's chunk, and the blocks that got them.
    """

    copies: list[Copy] = attrs.field(factory=list)
    handoffs: list[Handoff] = attrs.field(factory=list)
    new_blocks: list[int] = attrs.field(factory=list)
    mamba_keys: set[Key] = attrs.field(factory=set)
    registered: dict[str, list[tuple[int, Key]]] = attrs.field(factory=dict)

    def note_key(self, request_name: str, block: int, key: Key) -> None:
        """Note a key that a request's chunk gave to a block."""
        self.registered.setdefault(request_name, []).append((block, key))

    def withdraw(self, request_name: str) -> list[tuple[int, Key]]:
        """Drop a request's offers; return the keys that its chunk registered, and their blocks."""
        self.handoffs[:] = [each for each in self.handoffs if each.request != request_name]
        return self.registered.pop(request_name, [])

    def forget_keys(self) -> None:
        """Forget, at the end of the pass, which keys it registered."""
        self.mamba_keys.clear()
        self.registered.clear()

    def drain_handoffs(self) -> tuple[Handoff, ...]:
        """Return the handoffs offered in this pass, once."""
        drained = tuple(self.handoffs)
        self.handoffs.clear()
        return drained

    def drain_copies(self) -> tuple[Copy, ...]:
        """Return the copies ordered in this pass, once."""
        drained = tuple(self.copies)
        self.copies.clear()
        return drained

    def do_not_zero(self, blocks: Collection[int]) -> None:
        """Strike blocks off the list of those allocated in this pass."""
        self.new_blocks[:] = [block for block in self.new_blocks if block not in blocks]

    def drain_new_blocks(self) -> tuple[int, ...]:
        """Return the blocks allocated in this pass, once."""
        drained = tuple(self.new_blocks)
        self.new_blocks.clear()
        return drained
