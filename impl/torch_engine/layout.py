"""The engine's own account of how the caches of a scope are laid out, and where prompts replay.

Worked out from the sizes of the groups and the hash unit alone. The engine does not ask the model
for any of it: a rule that both shared could be wrong in both, and comparing them would not tell.

>>> from cowtail.models.scope import RequestSpec, Scope, full_attention, mamba
>>> layout = CacheLayout.of(Scope(name="tiny", groups=(full_attention(6), mamba(4)), hash_unit=2,
...                               num_blocks=16, requests=(RequestSpec("a", "abcd"),)))
>>> layout.lcm, layout.partial_hits, layout.alignment, layout.chunk_block
(12, True, 2, 4)
>>> [layout.replay_boundary(length) for length in (1, 2, 3, 4, 5)]
[0, 0, 2, 2, 4]
"""

from __future__ import annotations

import math

import attrs

from cowtail.models.scope import Scope


@attrs.frozen
class CacheLayout:
    """Lengths that the caches of all groups go by, in tokens.

    ``hash_unit``: the grid that keys lie on. ``block_sizes``: one per group. ``lcm``: the
    smallest length that every group fills with whole blocks; normal saves are multiples of it.
    ``partial_hits``: whether a hit may end inside a block. ``alignment``: what every hit's
    length is a multiple of. ``chunk_block``: the block that prefill chunks end on, None if no
    group keeps a state.
    """

    hash_unit: int
    block_sizes: tuple[int, ...]
    lcm: int
    partial_hits: bool
    alignment: int
    chunk_block: int | None

    @classmethod
    def of(cls, scope: Scope) -> CacheLayout:
        """Return the layout of a scope's caches.

        A hit inside a block needs a state on the hash grid that is not on the block grid. So
        one Mamba group with blocks above the hash unit turns partial hits on for all groups.
        Chunks follow the first Mamba group.
        """
        unit = scope.hash_unit
        sizes = tuple(group.block_size for group in scope.groups)
        state_sizes = [group.block_size for group in scope.groups if group.is_mamba]
        lcm = math.lcm(*sizes)
        partial = bool(state_sizes) and max(state_sizes) > unit
        return cls(
            hash_unit=unit,
            block_sizes=sizes,
            lcm=lcm,
            partial_hits=partial,
            alignment=unit if partial else lcm,
            chunk_block=state_sizes[0] if state_sizes else None,
        )

    def replay_boundary(self, prompt_length: int) -> int:
        """Return the last point of the hash grid that a resent prompt can be resumed from.

        One token at least must be left to compute, so a prompt that ends on the grid resumes
        one unit earlier. 0: from nowhere.
        """
        past_grid = prompt_length % self.hash_unit
        return prompt_length - (past_grid or self.hash_unit)

    def saved_whole(self, length: int) -> int:
        """Return the part of ``length`` tokens that a normal save covers: whole blocks of all."""
        return length - length % self.lcm
