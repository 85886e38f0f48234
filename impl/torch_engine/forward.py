"""The device's work in one step, as index tensors; and the forward pass that runs on them.

The host lays a step out once for all ranks (``StepInputs``); each rank runs it on its own memory.
The forward pass folds every attention slot and every state that it reads into one running value
and continues the chain of ``digests`` from there: right reads give the digests of the chunk's
prefixes, and a wrong read gives garbage in everything written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import attrs
import torch

from cowtail.impl.torch_engine import digests
from cowtail.impl.torch_engine.memory import PagedMemory
from cowtail.impl.torch_engine.request import ScheduledChunk
from cowtail.impl.torch_engine.scheduler import SchedulerOutput
from cowtail.impl.torch_engine.state_columns import Move, StateColumns, StatePlan
from cowtail.models.scope import Scope

SEGMENT = 128
"""Tokens that one unrolled recurrence spans: its matrix grows with the square."""


@attrs.frozen(eq=False)
class Wave:
    """Chunks of a step that read nothing which another chunk of the wave writes.

    ``reads``, ``read_weights``, ``read_chunks``: int64 [n], the slots read, how much each counts,
    and the chunk that it counts for. ``terms``: int64 [chunks, tokens], ``c(t)`` without the
    rank's share, zero beyond a chunk's end. ``write_slots``, ``write_values``: int64 [m], the
    slots written, and the position of the value of each among the wave's results. ``unseen``:
    int64 [2, chunks], what tokens that windows do not reach add to the value that a chunk starts
    from, by themselves and for each rank's term; None without windows.
    """

    reads: torch.Tensor
    read_weights: torch.Tensor
    read_chunks: torch.Tensor
    terms: torch.Tensor
    write_slots: torch.Tensor
    write_values: torch.Tensor
    unseen: torch.Tensor | None


@attrs.frozen(eq=False)
class StepInputs:
    """Block ids, int64, of a step's zeroing and page copies; None where there is nothing to do.

    ``state_copies`` are those of Mamba states that move to a new column of their table before
    the forward pass, ``settled_copies`` of those that do after it.
    """

    new_blocks: torch.Tensor | None
    copies: tuple[torch.Tensor, torch.Tensor] | None
    state_copies: tuple[torch.Tensor, torch.Tensor] | None
    waves: tuple[Wave, ...]
    settled_copies: tuple[torch.Tensor, torch.Tensor] | None


@attrs.frozen(eq=False)
class _Planned:
    """A chunk, and its use of the columns of each Mamba group, by group."""

    chunk: ScheduledChunk
    states: dict[int, StatePlan]

    def moves(self, of: Callable[[StatePlan], Move | None]) -> list[tuple[int, int]]:
        """Return the blocks of the moves that ``of`` picks."""
        picked = [(index, of(plan)) for index, plan in self.states.items()]
        tables = self.chunk.worker_tables
        return [
            (tables[index][move[0]], tables[index][move[1]])
            for index, move in picked
            if move is not None
        ]


class StepPlanner:
    """Lays steps out for the devices. ``states`` is the class that keeps account of columns."""

    def __init__(self, scope: Scope, device: torch.device, states: type[StateColumns]) -> None:
        self.scope = scope
        self.device = device
        self._slots = scope.slots_per_block
        longest = max((len(request.tokens) for request in scope.requests), default=0)
        powers = digests.powers(digests.FOLD, longest)
        fold = list(reversed(powers))
        self._group_weights = digests.group_weights(len(scope.groups))
        # Slot i of n counts FOLD**(n-1-i): the last n entries of these, whatever n is.
        self._slot_weights = [
            [weight * power % digests.PRIME for power in fold] for weight in self._group_weights
        ]
        # The n slots that a window reaches are worth FOLD**n less than all that came before.
        self._fold = [*powers, powers[-1] * digests.FOLD % digests.PRIME] if powers else []
        self._windows = [index for index, group in enumerate(scope.groups) if group.window]
        self._prefixes: dict[str, list[tuple[int, int]]] = {}
        self._states = {
            index: states(group.block_size)
            for index, group in enumerate(scope.groups)
            if group.is_mamba
        }

    def plan(self, output: SchedulerOutput) -> StepInputs:
        """Return the step's device work. Steps are planned in the order in which they will run."""
        copies = [(copy.source, copy.destination) for copy in output.copies]
        planned = [
            _Planned(chunk, {index: each.plan(chunk) for index, each in self._states.items()})
            for chunk in output.chunks
        ]
        before = [move for each in planned for move in each.moves(lambda plan: plan.before)]
        after = [move for each in planned for move in each.moves(lambda plan: plan.after)]
        return StepInputs(
            self._tensor(output.new_blocks) if output.new_blocks else None,
            self._pairs(copies),
            self._pairs(before),
            tuple(self._wave(chunks) for chunks in self._waves(planned)),
            self._pairs(after),
        )

    def _tensor(self, values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def _pairs(self, pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not pairs:
            return None
        return self._tensor(source for source, _ in pairs), self._tensor(to for _, to in pairs)

    def _first_read(self, index: int, start: int) -> int:
        """Return the first token that the token at ``start`` attends to."""
        window = self.scope.groups[index].window
        return max(0, start - window + 1) if window else 0

    def _waves(self, planned: list[_Planned]) -> list[list[_Planned]]:
        """Cut the step where a chunk attends to blocks that an earlier chunk writes.

        A request admitted in this pass may have hit a block that the pass's own step fills.
        """
        waves: list[list[_Planned]] = []
        written: set[int] = set()
        for each in planned:
            chunk = each.chunk
            read: set[int] = set()
            writes: set[int] = set()
            for index, group in enumerate(self.scope.groups):
                if not group.is_mamba:
                    table, size = chunk.worker_tables[index], group.block_size
                    first = self._first_read(index, chunk.start) // size
                    read.update(table[first : math.ceil(chunk.start / size)])
                    writes.update(table[chunk.start // size : math.ceil(chunk.end / size)])
            if not waves or read & written:
                waves.append([])
                written = set()
            waves[-1].append(each)
            written |= writes
        return waves

    def _wave(self, planned: list[_Planned]) -> Wave:
        longest = max(each.chunk.length for each in planned)
        states = len(planned) * (longest + 1)  # results: all states first, then all token digests
        reads: list[int] = []
        weights: list[int] = []
        read_chunks: list[int] = []
        slots: list[int] = []
        values: list[int] = []
        terms: list[list[int]] = []
        for row, each in enumerate(planned):
            chunk = each.chunk
            start, end = chunk.start, chunk.end
            tokens = digests.token_terms(self._computed_tokens(chunk), start)
            terms.append(tokens + [0] * (longest - len(tokens)))
            first_read = len(reads)
            for index, group in enumerate(self.scope.groups):
                table = chunk.worker_tables[index]
                if group.is_mamba:
                    plan = each.states[index]
                    if plan.read is not None:
                        reads.append(table[plan.read] * self._slots)
                        weights.append(self._group_weights[index])
                    for column, length in self._states_written(chunk, plan):
                        slots.append(table[column] * self._slots)
                        values.append(row * (longest + 1) + length - start)
                    continue
                first = self._first_read(index, start)
                where = self._attention_slots(table, group.block_size, first, end)
                seen = start - first
                reads.extend(where[:seen])
                weights.extend(self._slot_weights[index][-seen:] if seen else ())
                slots.extend(where[seen:])
                values.extend(range(states + row * longest, states + row * longest + chunk.length))
            read_chunks.extend([row] * (len(reads) - first_read))
        return Wave(
            self._tensor(reads),
            self._tensor(weights),
            self._tensor(read_chunks),
            torch.tensor(terms, device=self.device),
            self._tensor(slots),
            self._tensor(values),
            self._unseen(planned),
        )

    def _computed_tokens(self, chunk: ScheduledChunk) -> str:
        """Return the tokens that a chunk computes: drafts that are not accepted are other ones."""
        rejected = chunk.drafts - chunk.accepted
        return chunk.request.tokens[chunk.start : chunk.end - rejected] + (
            digests.REJECTED * rejected
        )

    def _states_written(self, chunk: ScheduledChunk, plan: StatePlan) -> list[tuple[int, int]]:
        """Return the columns written, and the number of tokens whose state each gets."""
        sure = chunk.end - chunk.drafts
        written = [(plan.running + draft, sure + draft) for draft in range(chunk.drafts + 1)]
        if chunk.checkpoint is not None:
            written.append((plan.running - 1, chunk.checkpoint))
        return written

    def _attention_slots(
        self, table: tuple[int, ...], size: int, first: int, end: int
    ) -> list[int]:
        """Return the flat slot of each of the tokens from ``first`` to ``end``."""
        slots = self._slots
        return [table[t // size] * slots + t % size for t in range(first, end)]

    def _unseen(self, planned: list[_Planned]) -> torch.Tensor | None:
        """Return what the tokens before each window add, as if they had been read.

        A device would not need it. Here a window alone cannot lead to the digest of the whole
        prefix; with this it does, if every slot that it reaches is right.
        """
        if not self._windows:
            return None
        sums = []
        for each in planned:
            request, start = each.chunk.request, each.chunk.start
            if request.name not in self._prefixes:
                self._prefixes[request.name] = digests.prefix_states(request.tokens)
            own, share = 0, 0
            for index in self._windows:
                first = self._first_read(index, start)
                weight = self._group_weights[index] * self._fold[start - first] % digests.PRIME
                state, per_rank = self._prefixes[request.name][first]
                own += weight * state
                share += weight * per_rank
            sums.append((own % digests.PRIME, share % digests.PRIME))
        return torch.tensor(sums, device=self.device).T.contiguous()


def forward(memory: PagedMemory, wave: Wave, rank: int) -> None:
    """Compute a wave on one rank: read, fold, continue the chains, write every group at once."""
    chunks, tokens = wave.terms.shape
    folded = memory.read_slots(wave.reads).mul_(wave.read_weights).remainder_(digests.PRIME)
    start = torch.zeros(chunks, dtype=torch.int64, device=memory.device)
    start.index_add_(0, wave.read_chunks, folded).remainder_(digests.PRIME)
    if wave.unseen is not None:
        own, share = wave.unseen
        start.add_(own).add_(share * digests.rank_term(rank)).remainder_(digests.PRIME)
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
