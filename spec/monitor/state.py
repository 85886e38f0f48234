"""What the monitor remembers: as much as the pool and the live requests, however long the log."""

from __future__ import annotations

from collections import Counter

import attrs

from cowtail.spec.monitor.events import Header


@attrs.define
class Life:
    """A live request: block tables by group, and what it has handed off since its last start.

    ``handed_off`` are (connector, group, boundary). ``finished`` says that it is over, and
    ``announced`` that the ranks have been told so.
    """

    name: str
    tables: dict[int, list[int]] = attrs.field(factory=dict)
    handed_off: set[tuple[int, int, int]] = attrs.field(factory=set)
    markers: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    loading: dict[int, set[int]] = attrs.field(factory=dict)
    finished: bool = False
    announced: bool = False


@attrs.define
class Pinned:
    """A store job that pins blocks, until every rank has reported it and the pin is gone."""

    request: int
    blocks: tuple[int, ...]
    ranks_left: int
    emitted: bool = False


@attrs.frozen
class CopyOrder:
    """A copy that the pass has ordered."""

    request: int
    group: int
    source: int
    destination: int


@attrs.define
class State:
    """All books. Sizes are bounded by the pool, the live requests and the steps in flight.

    ``references`` and ``owners`` leave out blocks that have none. ``touched`` are the blocks
    that the call in progress has used; ``consumed`` the markers that it has taken; ``steps``
    the blocks that each step in flight copies or writes.
    """

    header: Header
    requests: dict[int, Life] = attrs.field(factory=dict)
    next_request: int = 0
    references: dict[int, int] = attrs.field(factory=dict)
    owners: Counter[int] = attrs.field(factory=Counter)
    deferred: Counter[int] = attrs.field(factory=Counter)
    pins: dict[tuple[int, int], Pinned] = attrs.field(factory=dict)
    pin_counts: Counter[int] = attrs.field(factory=Counter)
    last_jobs: dict[int, int] = attrs.field(factory=dict)
    block_keys: dict[int, set[int]] = attrs.field(factory=dict)
    load_counts: Counter[int] = attrs.field(factory=Counter)
    copies: list[CopyOrder] = attrs.field(factory=list)
    touched: set[int] = attrs.field(factory=set)
    touched_requests: set[int] = attrs.field(factory=set)
    consumed: list[tuple[int, int, int, int]] = attrs.field(factory=list)
    dropped: set[tuple[int, int]] = attrs.field(factory=set)
    steps: dict[int, frozenset[int]] = attrs.field(factory=dict)
    next_step: int = 0

    def own(self, block: int, count: int) -> None:
        """Give a block ``count`` more owners, or fewer."""
        self.owners[block] += count
        if not self.owners[block]:
            del self.owners[block]
        self.touched.add(block)

    def is_boundary_group(self, group: int) -> bool:
        """Whether a group keeps one state a block, valid at one boundary only."""
        return bool(self.header.groups[group][0] == "mamba")


def take(counter: Counter[int], block: int) -> None:
    """Take one from a counter that leaves out zeros."""
    counter[block] -= 1
    if not counter[block]:
        del counter[block]
