"""One rank's paged memory: the KV slots and recurrent states of all groups in one buffer.

A page is shared by all groups, a block belonging to one at a time: slot ``i`` of an attention
page is the KV of one token, slot 0 of a Mamba page is the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from cowtail.impl.torch_engine.digests import payload_of
from cowtail.impl.torch_engine.store_protocol import Value


@attrs.frozen(eq=False)
class Pages:
    """Pages on the host: digests int64 [n, slots], payload float32 [n, slots, width]."""

    digests: torch.Tensor
    payload: torch.Tensor


class PagedMemory:
    """Digests int64 [num_blocks, slots] and payload float32 [num_blocks, slots, width].

    Every method takes index tensors on the memory's device and is a constant number of tensor
    operations, however many blocks it is for. ``writes`` counts the operations that wrote.
    """

    def __init__(self, num_blocks: int, slots: int, width: int, device: torch.device) -> None:
        self.slots = slots
        self.width = width
        self.device = device
        self.digests = torch.zeros((num_blocks, slots), dtype=torch.int64, device=device)
        self.payload = torch.zeros((num_blocks, slots, width), device=device)
        self.writes = 0

    def zero(self, blocks: torch.Tensor) -> None:
        """Zero whole pages."""
        self.writes += 1
        self.digests.index_fill_(0, blocks, 0)
        self.payload.index_fill_(0, blocks, 0)

    def copy(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """Copy whole pages: all are read before any is written."""
        self.writes += 1
        self.digests.index_copy_(0, destinations, self.digests.index_select(0, sources))
        self.payload.index_copy_(0, destinations, self.payload.index_select(0, sources))

    def read_slots(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the digests of slots, int64 [n], indexed ``block * slots_per_block + slot``."""
        return self.digests.view(-1).index_select(0, slots)

    def write_slots(self, slots: torch.Tensor, digests: torch.Tensor) -> None:
        """Write digests, int64 [n], and the payload that goes with each."""
        self.writes += 1
        self.digests.view(-1).index_copy_(0, slots, digests)
        payload = payload_of(digests, self.width)
        self.payload.view(-1, self.width).index_copy_(0, slots, payload)

    def read_pages(self, blocks: torch.Tensor) -> Pages:
        """Copy whole pages to the host, off a GPU into pinned memory without waiting for it."""
        digests = self.digests.index_select(0, blocks)
        payload = self.payload.index_select(0, blocks)
        if self.device.type == "cpu":
            return Pages(digests, payload)
        return Pages(_to_pinned(digests), _to_pinned(payload))

    def write_values(self, blocks: Sequence[int], values: Sequence[Value]) -> None:
        """Write values from the host into the first slots of blocks: their bytes as they are."""
        self.writes += 1
        where = [
            block * self.slots + slot
            for block, value in zip(blocks, values, strict=True)
            for slot in range(len(value.digests))
        ]
        slots = torch.tensor(where, device=self.device)
        digests = torch.cat([value.digests for value in values]).to(self.device)
        payload = torch.cat([value.payload for value in values]).to(self.device)
        self.digests.view(-1).index_copy_(0, slots, digests)
        self.payload.view(-1, self.width).index_copy_(0, slots, payload)

    def synchronize(self) -> None:
        """Wait for all that was launched on the device: streams of its own may still write."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
