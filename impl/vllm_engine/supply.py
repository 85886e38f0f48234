"""What a store can supply of a prompt, from its keys alone, to hold the release's lookup to.

>>> keys = {(0, 0, "abcd"), (0, 0, "abcdef"), (0, 1, "abcdef"), (0, 0, "abcdefgh")}
>>> config = EngineConfig(
...     (), attention_block_size=4, mamba_block_size=4, hash_unit=2, num_ranks=1
... )
>>> longest_supply(config, keys, "abcdefgh")
6
"""

from __future__ import annotations

from collections.abc import Collection

from cowtail.impl.vllm_engine.config import EngineConfig

Keys = Collection[tuple[int, int, str]]
"""(rank, group, prefix) of everything that a store holds."""

_ATTENTION, _STATES = 0, 1


def longest_supply(config: EngineConfig, keys: Keys, prompt: str) -> int:
    """Return how many tokens of ``prompt`` every group can supply on every rank.

    At least one token is computed again: where all is found, what ends before the last is asked
    for anew. A state counts at its exact length. A block of attention
    counts as far as the longest of its keys goes, after whole blocks only; with EAGLE it must go
    one hash unit further than what it supplies (R23, R28, S4 and S12 of the domain).
    """
    found = _within(config, keys, prompt, len(prompt))
    return found if found < len(prompt) else _within(config, keys, prompt, len(prompt) - 1)


def _within(config: EngineConfig, keys: Keys, prompt: str, limit: int) -> int:
    """Return how many tokens of the first ``limit`` are supplied, keys beyond them not counting."""
    unit = config.hash_unit
    drop = unit if config.eagle else 0
    attention = _attention(config, keys, prompt[: limit + drop]) - drop
    end = min(attention, limit // unit * unit)
    while end > 0 and not _on_every_rank(config, keys, _STATES, prompt[:end]):
        end -= unit
    return max(end, 0)


def _attention(config: EngineConfig, keys: Keys, prompt: str) -> int:
    """Return how far attention's keys go without a gap, in tokens."""
    size, unit = config.attention_block_size, config.hash_unit
    supplied = 0
    for start in range(0, len(prompt), size):
        stop = min(start + size, len(prompt)) // unit * unit
        ends = range(start + unit, stop + 1, unit)
        held = [e for e in ends if _on_every_rank(config, keys, _ATTENTION, prompt[:e])]
        supplied = max(held, default=supplied)
        if supplied != start + size:
            break
    return supplied


def _on_every_rank(config: EngineConfig, keys: Keys, group: int, prefix: str) -> bool:
    return all((rank, group, prefix) in keys for rank in range(config.num_ranks))
