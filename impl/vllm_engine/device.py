"""The device: it runs scheduled steps on symbolic memory, in the order of the real worker.

Within a step: the finished requests' tables go, copy-on-write copies, Mamba column pre-copy,
forward. The worker's block tables are append-only mirrors of the scheduler's, replaced when a
request resumes after a preemption. A chunk that does not move to another Mamba column
overwrites the running state in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.memory import Memory, line_of

ATTENTION, MAMBA, WINDOW = 0, 1, 2
"""The groups, in the order in which they are built; the last one may be missing."""
NULL_BLOCK = 0
"""Id of the null block."""
FILLER = "z"
"""What the device samples beyond a request's scripted output."""


@attrs.define
class _Row:
    """One request in the worker's batch: tokens known, block tables, running Mamba column."""

    num_tokens: int
    tables: list[list[int]]
    column: int | None = None


class Device:
    """One batch of requests over the memories of all ranks, which compute the same.

    ``chained_copies`` are those whose source the same step was still filling, by another copy or
    by computing it. ``wrong`` collects why a read of the forward pass did not find what it needed
    (V5).
    """

    def __init__(self, config: EngineConfig, memories: Sequence[Memory]) -> None:
        """Start with no request and unwritten memories, one for each rank."""
        self._config = config
        self._memories = tuple(memories)
        self._rows: dict[str, _Row] = {}
        self.wrong: list[str] = []
        self.num_copies = 0
        self.chained_copies: list[Any] = []

    def run(self, step: Any) -> dict[str, list[int]]:
        """Run a ``SchedulerOutput``; return the sampled token ids of each scheduled request.

        A request whose chunk ends before the last token that it knows samples nothing.
        """
        for request_id in step.finished_req_ids:
            self._rows.pop(request_id, None)
        self._copy_blocks(step.kv_cache_block_copies or ())
        starts = self._update_rows(step)
        self._note_copies_of_what_is_computed(step, starts)
        return {
            request_id: self._forward(request_id, starts[request_id], num_tokens)
            for request_id, num_tokens in step.num_scheduled_tokens.items()
        }

    def _copy_blocks(self, copies: Sequence[Any]) -> None:
        """Copy all blocks of a step as the worker does: every source is read before any write.

        ``copy_kv_cache_blocks_inplace`` is one indexed assignment, ``blocks[dst] = blocks[src]``.
        """
        filled = {copy.dst_block_id for copy in copies}
        self.chained_copies += [c for c in copies if c.src_block_id in filled]
        self.num_copies += len(copies)
        for memory in self._memories:
            pages = [memory.page(copy.src_block_id) for copy in copies]
            for copy, page in zip(copies, pages, strict=True):
                memory.restore(copy.dst_block_id, page)

    def _note_copies_of_what_is_computed(self, step: Any, starts: dict[str, int]) -> None:
        """Note copies that a request's table wants from a block that another one computes now."""
        for copy in step.kv_cache_block_copies or ():
            wanting = [name for name in starts if self._holds(name, copy.dst_block_id)]
            computing = [
                name
                for name, start in starts.items()
                if name not in wanting
                and copy.src_block_id
                in self._written(name, start, start + step.num_scheduled_tokens[name])
            ]
            if wanting and computing:
                self.chained_copies.append(copy)

    def _holds(self, request_id: str, block: int) -> bool:
        return any(block in table for table in self._rows[request_id].tables)

    def _written(self, request_id: str, start: int, end: int) -> list[int]:
        """Return the attention blocks that a chunk writes."""
        tables = self._rows[request_id].tables
        return [
            block
            for group, size in _attention_groups(self._config)
            for block in tables[group][start // size : (end - 1) // size + 1]
        ]

    def _update_rows(self, step: Any) -> dict[str, int]:
        """Mirror the scheduler's tables; return where each request's chunk starts."""
        starts = {}
        for new in step.scheduled_new_reqs:
            known = new.prefill_token_ids or new.prompt_token_ids
            self._rows[new.req_id] = _Row(len(known), [list(table) for table in new.block_ids])
            starts[new.req_id] = new.num_computed_tokens
        cached = step.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            starts[request_id] = cached.num_computed_tokens[index]
            blocks = cached.new_block_ids[index]
            row = self._rows[request_id]
            if request_id in cached.resumed_req_ids:
                known = cached.all_token_ids.get(request_id)
                num_tokens = row.num_tokens if known is None else len(known)
                self._rows[request_id] = _Row(num_tokens, [list(table) for table in blocks])
            elif blocks:
                for table, added in zip(row.tables, blocks, strict=True):
                    table.extend(added)
        return starts

    def _forward(self, request_id: str, start: int, num_tokens: int) -> list[int]:
        row = self._rows[request_id]
        end = start + num_tokens
        if end > row.num_tokens:
            self.wrong.append(
                f"{request_id} is scheduled to token {end}, but only {row.num_tokens} are known"
            )
            return []
        script = self._config.request(request_id).tokens
        line = line_of(script + FILLER * (row.num_tokens + 1 - len(script)))
        size = self._config.mamba_block_size
        source = row.column if row.column is not None else (start - 1) // size
        destination = (end - 1) // size
        states = row.tables[MAMBA]
        if destination >= len(states) or states[destination] == NULL_BLOCK:
            self.wrong.append(f"{request_id} has no Mamba block for token {end}: table {states}")
            return []
        for rank, memory in enumerate(self._memories):
            for group, _ in _attention_groups(self._config):
                self._read_attention(
                    memory, row.tables[group], group, line[:start], request_id, rank
                )
            if start:
                why = memory.why_not_state(states[source], line[start - 1])
                self._complain(why, request_id, rank)
            for group, size in _attention_groups(self._config):
                self._write_attention(memory, row.tables[group], size, line, start, end)
            memory.write_state(states[destination], line[end - 1])
        row.column = destination
        if end < row.num_tokens:
            return []
        row.num_tokens += 1
        return [ord(line[end][-1])]

    def _read_attention(
        self,
        memory: Memory,
        table: list[int],
        group: int,
        prefix: Sequence[str],
        request_id: str,
        rank: int,
    ) -> None:
        """Read what the first token of a chunk after ``prefix`` attends to."""
        size = self._config.block_sizes[group]
        reached = max(len(prefix) - self._config.window + 1, 0) if group == WINDOW else 0
        for first in range(reached // size * size, len(prefix), size):
            block = table[first // size]
            begin = max(reached - first, 0)
            why = memory.why_not_attention(block, prefix[first : first + size], begin)
            self._complain(why, request_id, rank)

    def _write_attention(
        self,
        memory: Memory,
        table: list[int],
        size: int,
        line: Sequence[str],
        start: int,
        end: int,
    ) -> None:
        for position in range(start, end):
            block = table[position // size]
            if block == NULL_BLOCK:
                self.wrong.append(f"the null block is written at position {position}")
                return
            memory.write_slot(block, position % size, line[position])

    def _complain(self, why: str | None, request_id: str, rank: int) -> None:
        if why is not None:
            self.wrong.append(f"{request_id} reads wrong KV on rank {rank}: {why}")


def _attention_groups(config: EngineConfig) -> Iterator[tuple[int, int]]:
    """Yield index and block size of each group of attention."""
    return ((group, size) for group, size in enumerate(config.block_sizes) if group != MAMBA)


def why_not_under_key(
    config: EngineConfig, memory: Memory, block: int, group: int, prefix: str
) -> str | None:
    """Return why ``block`` does not hold what a key of ``group`` at ``prefix`` promises.

    An attention block is held to its slots up to the key's boundary, a Mamba block to the
    state after exactly that many tokens.
    """
    if group == MAMBA:
        return memory.why_not_state(block, prefix)
    size = config.block_sizes[group]
    start = (len(prefix) - 1) // size * size
    return memory.why_not_attention(block, line_of(prefix)[start:])
