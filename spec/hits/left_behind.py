"""What one request, alone in an empty engine with room enough, leaves behind: keys by length.

A key is a pair (group, length): the first ``length`` tokens, hashed, within that group. The
arithmetic goes chunk by chunk, because a recurrent state exists only where a chunk ended.
From docs/reference/semantics.md: Chunk length, Blocks (register keys, retained), The connector.
Left out: drafts, preemption, failed puts and evictions, which make what is found less certain.

>>> from cowtail.models.scope import full_attention, mamba
>>> layout = Layout((full_attention(8), mamba(8)), hash_unit=2)
>>> left = left_behind(layout, prompt=13)
>>> [chunk.end for chunk in left.chunks], [sorted(keys) for keys in left.store]
([8, 12, 13], [[8, 12], [8, 12]])
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from cowtail.models.scope import GroupKind
from cowtail.spec.hits.layout import Layout, ceil_div, floor_to

Keys = tuple[frozenset[int], ...]
"""Lengths that have a key, per group."""


@attrs.frozen
class Chunk:
    """Prompt tokens [start, end) of one pass. ``checkpoint``: a state exported within; or 0."""

    start: int
    end: int
    checkpoint: int = 0


@attrs.frozen
class LeftBehind:
    """Chunks of the prefill; ``computed`` tokens in the end; keys in the cache and the store."""

    chunks: tuple[Chunk, ...]
    computed: int
    local: Keys
    store: Keys


def left_behind(layout: Layout, prompt: int, max_tokens: int = 1) -> LeftBehind:
    """Return what a prompt of ``prompt`` tokens leaves that samples ``max_tokens``."""
    chunks = tuple(_chunks(layout, prompt))
    computed = prompt + max_tokens - 1
    local = tuple(
        frozenset(
            _state_keys(layout, prompt, chunks, computed)
            if group.is_mamba
            else _attention_keys(layout, index, prompt, computed)
        )
        for index, group in enumerate(layout.groups)
    )
    return LeftBehind(chunks, computed, local, _stored(layout, prompt, chunks))


def _chunks(layout: Layout, prompt: int) -> Iterator[Chunk]:
    """Yield the prefill's chunks; decode adds one token a chunk and needs no arithmetic."""
    start = 0
    while start < prompt:
        chunk = _chunk(layout, prompt, start)
        yield chunk
        start = chunk.end


def _chunk(layout: Layout, prompt: int, start: int) -> Chunk:
    end = min(prompt, start + layout.token_budget)
    block = layout.state_block
    if block is None:
        return Chunk(start, end)
    inside = layout.checkpoint(prompt, layout.hash_unit if layout.partial else block)
    if (
        layout.internal_checkpoints
        and end == prompt
        and start % layout.hash_unit == 0
        and start + layout.hash_unit <= inside < end
        and ceil_div(end, block) - 2 > (start - 1) // block
    ):
        return Chunk(start, end, inside)
    aligned = floor_to(end, block)
    if end < prompt and (aligned > start or block <= layout.token_budget):
        end = aligned
    last = layout.checkpoint(prompt, block)
    stops = [last]
    if start % block:
        stops.append(floor_to(start, block) + block)
    if layout.partial and last < layout.replay_boundary(prompt) < prompt:
        stops.append(layout.replay_boundary(prompt))
    return Chunk(start, min((stop for stop in stops if start < stop < end), default=end))


def _reachable(layout: Layout, prompt: int) -> set[int]:
    """Return the boundaries whose blocks are kept at any retention interval."""
    ends = [prompt - 1]
    if layout.drops:
        ends = [max(floor_to(end, layout.lcm) - layout.lcm, 0) for end in (prompt - 1, prompt)]
    return {floor_to(end, layout.alignment) for end in ends}


def _state_retained(layout: Layout, prompt: int, end: int) -> bool:
    """Whether the state at ``end``, a multiple of the block size, gets its key as a full block."""
    block, interval = layout.state_block, layout.retention_interval
    assert block is not None
    if interval is None:
        return True
    blocks = interval // block
    if interval and (blocks <= 1 or end // block % blocks == 0):
        return True
    return any(end // block == boundary // block for boundary in _reachable(layout, prompt))


def _window_retained(layout: Layout, group: int, prompt: int, column: int) -> bool:
    """Whether a sliding-window block gets a key: what a hit on a likely boundary would need."""
    size, interval = layout.groups[group].block_size, layout.retention_interval
    if layout.alignment % size:
        return True
    eagle = int(layout.set_of(group).eagle)
    needed = ceil_div(layout.groups[group].window - 1, size) + eagle
    segment = layout.alignment if interval is None else interval
    if segment:
        period = segment // size
        if needed >= period:
            return True
        if column >= eagle and (column - eagle) % period >= period - needed:
            return True
    return interval is not None and any(
        0 <= boundary // size + eagle - 1 - column < needed
        for boundary in _reachable(layout, prompt)
    )


def _attention_keys(layout: Layout, group: int, prompt: int, computed: int) -> Iterator[int]:
    """Yield the lengths that an attention group has keys for in the local cache."""
    size = layout.groups[group].block_size
    if layout.groups[group].kind is GroupKind.SLIDING_WINDOW:
        for column in range(computed // size):
            if _window_retained(layout, group, prompt, column):
                yield (column + 1) * size
        return
    yield from range(size, computed + 1, size)
    if layout.partial:
        proof = layout.replay_boundary(prompt) + layout.margin_of(layout.set_of(group))
        if 0 < proof <= min(computed, prompt):
            yield proof


def _state_keys(
    layout: Layout, prompt: int, chunks: tuple[Chunk, ...], computed: int
) -> Iterator[int]:
    """Yield the lengths that a Mamba group has a state for in the local cache."""
    for chunk in chunks:
        yield from _full_states(layout, prompt, chunk)
        if layout.partial and 0 < chunk.end == layout.replay_boundary(prompt):
            yield chunk.end
    block = layout.state_block
    assert block is not None
    for end in range(floor_to(prompt, block) + block, computed + 1, block):
        if _state_retained(layout, prompt, end):
            yield end


def _full_states(layout: Layout, prompt: int, chunk: Chunk) -> Iterator[int]:
    """Yield what a chunk registers and offers at once: the state at its end, and within it.

    The state exported within a chunk sits in the column before the last, which is full when the
    chunk is scheduled: so it is offered, at its own boundary.
    """
    block = layout.state_block
    assert block is not None
    within = chunk.checkpoint
    if within and (
        within == layout.checkpoint(prompt, layout.alignment)
        or (within % block == 0 and _state_retained(layout, prompt, within))
    ):
        yield within
    replayed = layout.partial and not within and chunk.end == layout.replay_boundary(prompt)
    if chunk.end % block == 0 and (replayed or _state_retained(layout, prompt, chunk.end)):
        yield chunk.end


def _stored(layout: Layout, prompt: int, chunks: tuple[Chunk, ...]) -> Keys:
    """Return the keys in the store once every job of the request has been carried out."""
    keys: list[set[int]] = [set() for _ in layout.groups]
    boundary = layout.replay_boundary(prompt)
    registered = False
    saved = 0
    for chunk in chunks:
        states = set(_full_states(layout, prompt, chunk)) if layout.state_block else set()
        if registered:
            states.add(boundary)
        registered = _registers_tail(layout, prompt, chunk)
        save_to = floor_to(chunk.end, layout.lcm)
        publish = layout.partial and chunk.end == prompt
        if publish or any(state % (layout.state_block or 1) for state in states):
            _put_tail(layout, prompt, chunk, publish or boundary in states, keys)
        for index, group in enumerate(layout.groups):
            if group.is_mamba:
                keys[index] |= states
            else:
                keys[index] |= set(_saved(layout, index, prompt, chunk.start, saved, save_to))
        saved = max(saved, save_to)
    if registered:
        # The prompt ends on its own boundary: handed over by the first decode step or at finish.
        for index, group in enumerate(layout.groups):
            if group.is_mamba:
                keys[index].add(boundary)
    return tuple(map(frozenset, keys))


def _registers_tail(layout: Layout, prompt: int, chunk: Chunk) -> bool:
    """Whether the chunk ends on the replay boundary inside a block: its state is copied next."""
    return (
        layout.partial
        and not chunk.checkpoint
        and 0 < chunk.end == layout.replay_boundary(prompt)
        and chunk.end % (layout.state_block or 1) != 0
    )


def _put_tail(
    layout: Layout, prompt: int, chunk: Chunk, wanted: bool, keys: list[set[int]]
) -> None:
    """Add the attention blocks that go with the replay boundary (R16, R25, R26)."""
    boundary = layout.replay_boundary(prompt)
    if not wanted or not boundary:
        return
    inside = boundary % (layout.state_block or 1) != 0
    for index, group in enumerate(layout.groups):
        if group.is_mamba:
            continue
        end = boundary + (layout.margin_of(layout.set_of(index)) if layout.companions else 0)
        if end > chunk.end and inside:
            end = boundary
        if end > chunk.end:
            continue
        size = group.block_size
        first = floor_to(boundary, layout.lcm) // size
        for column in range(max(first, _skipped(layout, index, chunk.start)), ceil_div(end, size)):
            keys[index].add(min((column + 1) * size, end))


def _saved(
    layout: Layout, group: int, prompt: int, start: int, saved: int, save_to: int
) -> Iterator[int]:
    """Yield the lengths that the normal save of a pass puts: real, retained blocks."""
    size = layout.groups[group].block_size
    windowed = layout.groups[group].kind is GroupKind.SLIDING_WINDOW
    first = max(saved // size, _skipped(layout, group, start))
    for column in range(first, save_to // size):
        if not windowed or _window_retained(layout, group, prompt, column):
            yield (column + 1) * size


def _skipped(layout: Layout, group: int, start: int) -> int:
    """Return how many leading columns are null in a pass whose chunk begins at ``start``."""
    window = layout.groups[group].window
    return max(0, start - window + 1) // layout.groups[group].block_size if window else 0
