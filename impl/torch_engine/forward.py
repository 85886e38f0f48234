"""The device's work in one step, as index tensors; and the forward pass that runs on them.

The host lays a step out once for all ranks (``StepInputs``); each rank runs it on its own memory.
The forward pass folds every attention slot and every state that it reads into one running value
and continues the chain of ``digests`` from there: right reads give the digests of the chunk's
prefixes, and a wrong read gives garbage in everything written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs
import torch

from cowtail.impl.torch_engine import digests
from cowtail.impl.torch_engine.memory import PagedMemory
from cowtail.impl.torch_engine.request import ScheduledChunk
from cowtail.impl.torch_engine.scheduler import SchedulerOutput
from cowtail.models.scope import Scope

SEGMENT = 128
"""Tokens that one unrolled recurrence spans: its matrix grows with the square."""


@attrs.frozen(eq=False)
class Wave:
    """Chunks of a step that read nothing which another chunk of the wave writes.

    ``reads``, ``read_weights``, ``read_chunks``: int64 [n], the slots read, how much each counts,
    and the chunk that it counts for. ``terms``: int64 [chunks, tokens], ``c(t)`` without the
    rank's share, zero beyond a chunk's end. ``write_slots``, ``write_values``: int64 [m], the
    slots written, and the position of the value of each among the wave's results.
    """

    reads: torch.Tensor
    read_weights: torch.Tensor
    read_chunks: torch.Tensor
    terms: torch.Tensor
    write_slots: torch.Tensor
    write_values: torch.Tensor


@attrs.frozen(eq=False)
class StepInputs:
    """Block ids, int64, of a step's zeroing and page copies; None where there is nothing to do.

    ``state_copies`` are those of Mamba states that move to a new column of their table.
    """

    new_blocks: torch.Tensor | None
    copies: tuple[torch.Tensor, torch.Tensor] | None
    state_copies: tuple[torch.Tensor, torch.Tensor] | None
    waves: tuple[Wave, ...]


class StepPlanner:
    """Lays steps out for the devices."""

    def __init__(self, scope: Scope, device: torch.device) -> None:
        self.scope = scope
        self.device = device
        self._slots = scope.slots_per_block
        longest = max((len(request.tokens) for request in scope.requests), default=0)
        fold = list(reversed(digests.powers(digests.FOLD, longest)))
        self._group_weights = digests.group_weights(len(scope.groups))
        # Slot i of n counts FOLD**(n-1-i): the last n entries of these, whatever n is.
        self._slot_weights = [
            [weight * power % digests.PRIME for power in fold] for weight in self._group_weights
        ]

    def plan(self, output: SchedulerOutput) -> StepInputs:
        """Return the step's device work."""
        copies = [(copy.source, copy.destination) for copy in output.copies]
        moves = [move for chunk in output.chunks for move in self._state_moves(chunk)]
        return StepInputs(
            self._tensor(output.new_blocks) if output.new_blocks else None,
            self._pairs(copies),
            self._pairs(moves),
            tuple(self._wave(chunks) for chunks in self._waves(output.chunks)),
        )

    def _tensor(self, values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def _pairs(self, pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not pairs:
            return None
        return self._tensor(source for source, _ in pairs), self._tensor(to for _, to in pairs)

    def _columns(self, chunk: ScheduledChunk, group: int) -> tuple[int, int]:
        """Return the columns of the state that a chunk starts from and of the one it makes."""
        size = self.scope.groups[group].block_size
        return (chunk.start - 1) // size, math.ceil(chunk.end / size) - 1

    def _state_moves(self, chunk: ScheduledChunk) -> list[tuple[int, int]]:
        moves = []
        for index, group in enumerate(self.scope.groups):
            if group.is_mamba and chunk.start > 0:
                old, new = self._columns(chunk, index)
                if old != new:
                    moves.append((chunk.tables[index][old], chunk.tables[index][new]))
        return moves

    def _waves(self, chunks: tuple[ScheduledChunk, ...]) -> list[list[ScheduledChunk]]:
        """Cut the step where a chunk attends to blocks that an earlier chunk writes.

        A request admitted in this pass may have hit a block that the pass's own step fills.
        """
        waves: list[list[ScheduledChunk]] = []
        written: set[int] = set()
        for chunk in chunks:
            read: set[int] = set()
            writes: set[int] = set()
            for index, group in enumerate(self.scope.groups):
                if not group.is_mamba:
                    table, size = chunk.tables[index], group.block_size
                    read.update(table[: math.ceil(chunk.start / size)])
                    writes.update(table[chunk.start // size : math.ceil(chunk.end / size)])
            if not waves or read & written:
                waves.append([])
                written = set()
            waves[-1].append(chunk)
            written |= writes
        return waves

    def _wave(self, chunks: list[ScheduledChunk]) -> Wave:
        longest = max(chunk.length for chunk in chunks)
        states = len(chunks) * (longest + 1)  # results: all states first, then all token digests
        reads: list[int] = []
        weights: list[int] = []
        read_chunks: list[int] = []
        slots: list[int] = []
        values: list[int] = []
        terms: list[list[int]] = []
        for row, chunk in enumerate(chunks):
            start, end = chunk.start, chunk.end
            tokens = digests.token_terms(chunk.request.tokens[start:end], start)
            terms.append(tokens + [0] * (longest - len(tokens)))
            first_read = len(reads)
            for index, group in enumerate(self.scope.groups):
                table = chunk.tables[index]
                if group.is_mamba:
                    running = table[self._columns(chunk, index)[1]] * self._slots
                    if start > 0:
                        reads.append(running)
                        weights.append(self._group_weights[index])
                    slots.append(running)
                    values.append(row * (longest + 1) + chunk.length)
                    continue
                where = self._attention_slots(table, group.block_size, end)
                reads.extend(where[:start])
                weights.extend(self._slot_weights[index][-start:] if start else ())
                slots.extend(where[start:])
                values.extend(range(states + row * longest, states + row * longest + chunk.length))
            read_chunks.extend([row] * (len(reads) - first_read))
        return Wave(
            self._tensor(reads),
            self._tensor(weights),
            self._tensor(read_chunks),
            torch.tensor(terms, device=self.device),
            self._tensor(slots),
            self._tensor(values),
        )

    def _attention_slots(self, table: tuple[int, ...], size: int, end: int) -> list[int]:
        """Return the flat slot of each of the first ``end`` tokens."""
        slots = self._slots
        return [table[t // size] * slots + t % size for t in range(end)]


def forward(memory: PagedMemory, wave: Wave, rank: int) -> None:
    """Compute a wave on one rank: read, fold, continue the chains, write every group at once."""
    chunks, tokens = wave.terms.shape
    folded = memory.read_slots(wave.reads).mul_(wave.read_weights).remainder_(digests.PRIME)
    start = torch.zeros(chunks, dtype=torch.int64, device=memory.device)
    start.index_add_(0, wave.read_chunks, folded).remainder_(digests.PRIME)
    terms = (wave.terms + digests.rank_term(rank)).remainder_(digests.PRIME)
    states = _chain(start.unsqueeze(1), terms)
    values = (states[:, :tokens] * digests.MIX).add_(terms).remainder_(digests.PRIME)
    results = torch.cat((states.flatten(), values.flatten()))
    memory.write_slots(wave.write_slots, results.index_select(0, wave.write_values))


def _chain(state: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """Return the states before, between and after the tokens: int64 [chunks, tokens + 1].

    ``state``: int64 [chunks, 1], before the first token. ``terms``: int64 [chunks, tokens].
    """
    parts = [state]
    for segment in torch.split(terms, SEGMENT, dim=1):
        matrix = digests.chain_matrix(segment.shape[1], terms.device)
        steps = torch.cat((parts[-1][:, -1:], segment), dim=1).unsqueeze(1)
        states = (steps * matrix).remainder_(digests.PRIME).sum(2).remainder_(digests.PRIME)
        parts.append(states[:, 1:])
    return torch.cat(parts, dim=1)
