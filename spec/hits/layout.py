"""The constants of the arithmetic: groups, hash unit, and the boundaries that follow from them.

Written from docs/reference/semantics.md (Words), apart from the model's own boundaries, so that
the two can disagree.

>>> from cowtail.models.scope import full_attention, mamba
>>> layout = Layout((full_attention(1792, eagle=True), mamba(1792)), hash_unit=128)
>>> layout.replay_boundary(7449), layout.margin(layout.groups[0])
(7296, 128)
"""

from __future__ import annotations

import math
from functools import cached_property

import attrs

from cowtail.models.scope import Group, GroupKind

DEFAULT_TOKEN_BUDGET = 8192

SHORT = {
    GroupKind.FULL_ATTENTION: "full",
    GroupKind.SLIDING_WINDOW: "swa",
    GroupKind.MAMBA: "mamba",
}


def label(group: Group) -> str:
    """Return a group as the command line writes it: ``full:1792:eagle``."""
    window = f":window={group.window}" if group.window else ""
    return f"{SHORT[group.kind]}:{group.block_size}{window}{':eagle' if group.eagle else ''}"


def floor_to(length: int, unit: int) -> int:
    """Return the largest multiple of ``unit`` that is not above ``length``."""
    return length // unit * unit


def ceil_div(length: int, unit: int) -> int:
    """Return how many units cover ``length``."""
    return -(-length // unit)


@attrs.frozen
class LookupSet:
    """Groups of one kind, block size and window, which a lookup takes together.

    ``members`` are indices of groups. ``eagle``: one of them holds a drafter's layers, so the
    last unit matched is dropped, for all of them.
    """

    kind: GroupKind
    block_size: int
    window: int
    eagle: bool
    members: tuple[int, ...]


@attrs.frozen(slots=False)
class Layout:
    """Groups, hash unit and the scheduler's settings; all lengths in tokens.

    ``companions``: the store gets EAGLE attention through the boundary and its margin; without,
    only to the boundary, as releases before PR 56615 had it. ``capped``: the replay boundary is
    at most one below the prompt's length; without, it may be the whole prompt (before 0.32).

    Raises ValueError, naming the value, the rule and the fix, when the sizes do not fit.
    """

    groups: tuple[Group, ...]
    hash_unit: int
    token_budget: int = DEFAULT_TOKEN_BUDGET
    retention_interval: int | None = None
    internal_checkpoints: bool = False
    companions: bool = True
    capped: bool = True

    def __attrs_post_init__(self) -> None:
        """Refuse sizes that contradict one another."""
        if not self.groups:
            raise ValueError("groups is empty: a cache has at least one group; add one")
        for name in ("hash_unit", "token_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be 1 or more; raise it")
        if (self.retention_interval or 0) < 0:
            raise ValueError(
                f"retention_interval={self.retention_interval}: must not be negative; raise it"
            )
        for group in self.groups:
            if group.block_size < 1 or group.block_size % self.hash_unit:
                raise ValueError(
                    f"group {label(group)}: its block size must be a multiple of the hash unit "
                    f"{self.hash_unit}; change one of them"
                )
            if (group.window > 1) != (group.kind is GroupKind.SLIDING_WINDOW):
                raise ValueError(
                    f"group {label(group)}: a window of 2 or more belongs to sliding windows and "
                    "to them only; change the kind or it"
                )
            if group.eagle and group.is_mamba:
                raise ValueError(f"group {label(group)}: drafters have attention only; drop eagle")
        if len({group.block_size for group in self.groups if group.is_mamba}) > 1:
            raise ValueError(
                "mamba groups of different block sizes: chunks align to one only; use one size"
            )

    @cached_property
    def state_block(self) -> int | None:
        """Block size of the Mamba groups, to which chunks align; None without any."""
        return next((group.block_size for group in self.groups if group.is_mamba), None)

    @cached_property
    def lcm(self) -> int:
        """Least common multiple of all block sizes: the unit of normal saves."""
        return math.lcm(*(group.block_size for group in self.groups))

    @cached_property
    def partial(self) -> bool:
        """Whether hits may end inside a block."""
        return (self.state_block or 0) > self.hash_unit and all(
            group.block_size == self.hash_unit
            for group in self.groups
            if group.kind is GroupKind.SLIDING_WINDOW
        )

    @cached_property
    def alignment(self) -> int:
        """What every hit is a multiple of."""
        return self.hash_unit if self.partial else self.lcm

    @cached_property
    def drops(self) -> bool:
        """Whether some lookup drops the last unit that it matched."""
        return any(group.eagle for group in self.groups)

    @cached_property
    def sets(self) -> tuple[LookupSet, ...]:
        """Lookup sets in the order in which they are asked: full, windows, states."""
        members: dict[tuple[GroupKind, int, int], list[int]] = {}
        for index, group in enumerate(self.groups):
            members.setdefault((group.kind, group.block_size, group.window), []).append(index)
        found = [
            LookupSet(*key, any(self.groups[i].eagle for i in indices), tuple(indices))
            for key, indices in members.items()
        ]
        return tuple(each for kind in GroupKind for each in found if each.kind is kind)

    def set_of(self, group: int) -> LookupSet:
        """Return the lookup set of a group, by the group's index."""
        return next(each for each in self.sets if group in each.members)

    def margin_of(self, each: LookupSet) -> int:
        """Return how far beyond a hit an EAGLE set must be proved; 0 for others (R24)."""
        if not each.eagle:
            return 0
        return (
            self.hash_unit if self.partial and each.block_size > self.hash_unit else each.block_size
        )

    def margin(self, group: Group) -> int:
        """Return the proof margin of a group's set."""
        return self.margin_of(self.set_of(self.groups.index(group)))

    def checkpoint(self, length: int, unit: int) -> int:
        """Return the replay boundary of ``length`` tokens in multiples of ``unit``: ck(x, u)."""
        if self.drops:
            return max(floor_to(length, unit) - unit, 0)
        return floor_to(length - 1 if self.capped else length, unit)

    def replay_boundary(self, prompt: int) -> int:
        """Return ck(P): where the state that a resend finds is kept."""
        return self.checkpoint(prompt, self.hash_unit)
