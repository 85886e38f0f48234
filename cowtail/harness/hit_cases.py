"""The small worlds in which expected hits are compared with runs, and the second requests.

A world is a layout and a first request. Three parts, each with every prompt length up to four of
its largest blocks: every pair of attention groups with a Mamba group; layouts without one; and
one or two layouts of each kind with the settings that move chunks and keys.

Left out: three and more attention groups, Mamba groups of two sizes, and the product of all the
settings with all the pairs, which would take hours and only repeat what the parts show.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from cowtail.models.scope import Group, full_attention, mamba, sliding_window
from cowtail.spec.expected_hit import Continuation, Layout, Resend, Second, Sibling
from cowtail.spec.hits.layout import ceil_div, label

SIZES = {1: (1, 2, 4), 2: (2, 4)}
"""Block sizes in tokens, by hash unit."""

BLOCKS = 4
"""Prompts are up to this many of the largest block."""

ROOMY_BUDGET = 4096
"""A token budget that cuts no prompt."""


@attrs.frozen
class Settings:
    """What the scheduler and the cache are told: see ``Layout``."""

    token_budget: int
    retention_interval: int | None
    internal_checkpoints: bool

    def layout(self, groups: tuple[Group, ...]) -> Layout:
        """Return a layout of these groups with these settings, and a hash unit of one token."""
        return Layout(
            groups,
            1,
            self.token_budget,
            self.retention_interval,
            internal_checkpoints=self.internal_checkpoints,
        )


SETTINGS = tuple(
    Settings(budget, interval, inside)
    for budget in (3, 4, ROOMY_BUDGET)
    for interval in (None, 0, 4)
    for inside in (False, True)
)
"""Settings of the third part: chunks cut below and at a block, keys thinned out, checkpoints."""


@attrs.frozen
class World:
    """A layout, and a first request: its prompt length and how many tokens it samples."""

    layout: Layout
    prompt: int
    max_tokens: int = 1

    def __str__(self) -> str:
        """Print as the options of ``cowtail hit``."""
        layout = self.layout
        words = [f"--prompt {self.prompt} --hash-unit {layout.hash_unit}"]
        words += [f"--group {label(group)}" for group in layout.groups]
        words += [f"--max-tokens {self.max_tokens}"] * (self.max_tokens != 1)
        words += [f"--token-budget {layout.token_budget}"]
        if layout.retention_interval is not None:
            words.append(f"--retention-interval {layout.retention_interval}")
        words += ["--internal-checkpoints"] * layout.internal_checkpoints
        return " ".join(words)


TRUE_SCALE = tuple(
    World(Layout((full_attention(1792, eagle=True), mamba(1792)), 128), prompt)
    for prompt in (7449, 23196, 41300)
)
"""The prompts of R28, which model and engine can run as they are."""


def worlds() -> Iterator[World]:
    """Yield every world, in a fixed order."""
    for unit, sizes in SIZES.items():
        attention = attention_choices(sizes)
        pairs: list[tuple[Group, ...]] = [(one,) for one in attention]
        pairs += itertools.combinations_with_replacement(attention, 2)
        for pair, size in itertools.product(pairs, sizes):
            yield from _prompts(Layout((*pair, mamba(size)), unit, ROOMY_BUDGET))
        for pair in pairs[:: unit + 2]:
            yield from _prompts(Layout(tuple(pair), unit, ROOMY_BUDGET))
    for groups, settings in itertools.product(setting_choices(), SETTINGS):
        yield from _prompts(settings.layout(groups), max_tokens=3)


def attention_choices(sizes: tuple[int, ...]) -> list[Group]:
    """Return attention groups of every kind and size, without a drafter and with one."""
    found = []
    for size, eagle in itertools.product(sizes, (False, True)):
        found.append(full_attention(size, eagle=eagle))
        found.append(sliding_window(size, size + 1 + (size == 1), eagle=eagle))
    return found


def setting_choices() -> list[tuple[Group, ...]]:
    """Return the layouts of the third part."""
    return [
        (full_attention(2, eagle=True), mamba(4)),
        (full_attention(4), sliding_window(1, 3, eagle=True), mamba(2)),
        (full_attention(1), sliding_window(2, 4), mamba(4)),
        (full_attention(2), sliding_window(2, 3, eagle=True)),
    ]


def _prompts(layout: Layout, max_tokens: int = 1) -> Iterator[World]:
    longest = BLOCKS * max(group.block_size for group in layout.groups)
    for prompt in range(1, longest + 1):
        yield World(layout, prompt, max_tokens)


def seconds(world: World) -> tuple[Second, ...]:
    """Return what is sent after the first request: itself, longer siblings, continuations.

    A sibling shares each possible number of tokens, and is longer by one hash unit and one. At
    true scale there are no siblings: they would be tens of thousands.
    """
    prompt = world.prompt
    longer = prompt + world.layout.hash_unit + 1
    block = max(group.block_size for group in world.layout.groups)
    found: list[Second] = [Resend(), Continuation(1), Continuation(block)]
    if world in TRUE_SCALE:
        return tuple(found)
    return (*found, *(Sibling(longer, shared) for shared in range(1, prompt + 1)))


def blocks_enough(world: World, longest: int) -> int:
    """Return a pool in which nothing is ever evicted: for the first request and one more."""
    tokens = world.prompt + world.max_tokens + longest
    return 1 + sum(ceil_div(tokens, group.block_size) + 5 for group in world.layout.groups)
