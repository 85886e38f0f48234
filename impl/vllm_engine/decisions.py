"""What the real scheduler decides within a pass, in the order in which it decides it.

A ``SchedulerOutput`` says what came of a pass, not in which order, and not what was withdrawn
again. So the calls in which a decision takes effect are listened to: blocks were allocated for a
request, a request was preempted, a request whose load is over was taken up again. Listening changes
nothing: arguments and results pass through.
"""

from __future__ import annotations

import enum
from typing import Any

import attrs

from cowtail.models.observations import Handoff


class Decided(enum.StrEnum):
    """The kinds of decision.

    ``PROMOTE``: a load's blocks are taken over, and keyed. ``MISS``: a running request does not
    fit.
    """

    ADMIT = "admit"
    EXTEND = "extend"
    MISS = "miss"
    LOAD = "load"
    PREEMPT = "preempt"
    PROMOTE = "promote"


@attrs.frozen
class Decision:
    """One decision about a request.

    ``start`` and ``end`` are the tokens of its chunk, drafts included, or, for a load, where the
    local hit that it goes on from ends, and its own end. ``hit``: tokens that the local cache
    supplies to an admission that looked, else None.
    """

    kind: Decided
    request: str
    start: int = 0
    end: int = 0
    hit: int | None = None


class Decisions:
    """Listens to one scheduler; ``taken`` are the decisions since it was last cleared.

    ``offered`` are the boundary states that the pass handed to its connector.
    """

    def __init__(self, scheduler: Any) -> None:
        """Listen to ``scheduler`` from now on."""
        self.taken: list[Decision] = []
        self.offered: list[Handoff] = []
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._allocate = self._manager.allocate_slots
        self._take_offers = self._manager.take_boundary_state_offloads
        self._preempt = scheduler._preempt_request
        self._promote = scheduler._update_waiting_for_remote_kv
        self._manager.allocate_slots = self._hear_allocation
        self._manager.take_boundary_state_offloads = self._hear_offers
        scheduler._preempt_request = self._hear_preemption
        scheduler._update_waiting_for_remote_kv = self._hear_promotion

    def clear(self) -> None:
        """Forget what was decided: a pass begins."""
        self.taken.clear()
        self.offered.clear()

    def _hear_allocation(self, request: Any, num_new_tokens: int, **options: Any) -> Any:
        running = request in self._scheduler.running
        looked = not running and request.num_computed_tokens == 0
        local = options.get("num_new_computed_tokens", 0)
        external = options.get("num_external_computed_tokens", 0)
        start = request.num_computed_tokens + local
        blocks = self._allocate(request, num_new_tokens, **options)
        name = request.request_id
        if blocks is None:
            if running:
                self.taken.append(Decision(Decided.MISS, name))
            return None
        if options.get("delay_cache_blocks", False):
            self.taken.append(Decision(Decided.LOAD, name, start, start + external))
        elif running:
            end = start + num_new_tokens
            self.taken.append(Decision(Decided.EXTEND, name, start, end))
        else:
            hit = start if looked else None
            end = start + num_new_tokens
            self.taken.append(Decision(Decided.ADMIT, name, start, end, hit))
        return blocks

    def _hear_offers(self) -> Any:
        offers = self._take_offers()
        for name, entries in (offers or {}).items():
            self.offered += [
                Handoff(name, group, block, boundary) for group, block, boundary in entries
            ]
        return offers

    def _hear_preemption(self, request: Any, *args: Any, **options: Any) -> Any:
        self.taken.append(Decision(Decided.PREEMPT, request.request_id))
        return self._preempt(request, *args, **options)

    def _hear_promotion(self, request: Any) -> Any:
        self.taken.append(Decision(Decided.PROMOTE, request.request_id))
        return self._promote(request)
