"""The monitor: events in, the first violation out.

Engine-neutral and at the safety level: it follows what the log says was decided, and checks
what must hold whatever is decided. It remembers as much as the pool and the live requests.

>>> monitor = Monitor('{"event": "log", "format": 9}')
Traceback (most recent call last):
    ...
cowtail.spec.monitor.reading.NotFollowed: the log has format 9; this is cowtail for format 1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from cowtail.spec.monitor import blocks, jobs, loads, rest, tails
from cowtail.spec.monitor.events import (
    Allocate,
    Copy,
    Defer,
    Drop,
    Emit,
    End,
    Event,
    Failed,
    Finish,
    Free,
    Job,
    Keyed,
    Load,
    Loaded,
    Lookup,
    Mark,
    Preempt,
    Raised,
    Release,
    Report,
    Reset,
    Schedule,
    Settled,
    Submit,
    Table,
    Touch,
    Truncated,
    Undefer,
    Unkeyed,
    Unmark,
    Update,
)
from cowtail.spec.monitor.property import Broken, Property, Subject, Unlikely
from cowtail.spec.monitor.reading import LogError, parse, parse_header
from cowtail.spec.monitor.state import Life, State

PROPERTIES: tuple[Property, ...] = (
    *blocks.PROPERTIES,
    *tails.PROPERTIES,
    *jobs.PROPERTIES,
    *loads.PROPERTIES,
    *rest.PROPERTIES,
)
"""All that the monitor checks, in the order of the reference."""


@attrs.frozen
class Violation:
    """The first line of a log that breaks a property."""

    line: int
    prop: Property
    reason: str
    subjects: tuple[Subject, ...]

    def __str__(self) -> str:
        """Print in one line."""
        return f"line {self.line}: {self.prop.identifier} ({self.prop.name}): {self.reason}"


class Monitor:
    """Follows one log. ``violation`` is the first one; nothing is checked after it."""

    def __init__(self, header: str) -> None:
        """Start with the first line of a log. Raises LogError or NotFollowed."""
        self.state = State(parse_header(header))
        self.violation: Violation | None = None
        self.ended: Event | None = None
        self.lines = 1
        self.steps = 0

    @property
    def why_undetermined(self) -> str | None:
        """Why the log so far does not say whether everything came to rest; None if it does."""
        if isinstance(self.ended, Truncated):
            return f"the log was cut off at {self.ended.max_bytes} bytes"
        if isinstance(self.ended, Failed):
            return f"the recorder failed and switched itself off: {self.ended.error}"
        if rest.is_at_rest(self.state):
            return None
        state = self.state
        live = sum(not life.finished or not life.announced for life in state.requests.values())
        loading = sum(bool(life.loading) for life in state.requests.values())
        counts = {
            "live requests": live,
            "steps in flight": len(state.steps),
            "jobs that ranks have yet to report": len(state.pins),
            "loads": loading,
        }
        left = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        return f"the log ends before the engine is at rest: {left}"

    def feed(self, line: str) -> Violation | None:
        """Take the next line; return the first violation, once there is one.

        Raises LogError for a line that is not what the format says, or that cannot follow.
        """
        if self.violation is not None:
            return self.violation
        self.lines += 1
        event = parse(line, self.lines)
        if self.ended is not None:
            raise LogError(f"line {self.lines}: nothing may follow {self.ended.event}")
        try:
            self._take(event)
        except Broken as broken:
            self.violation = Violation(self.lines, broken.prop, broken.reason, broken.subjects)
        except Unlikely as unlikely:
            raise LogError(f"line {self.lines}: {unlikely}") from None
        return self.violation

    def finish(self) -> Violation | None:
        """Return the first violation of a log of which all lines have been taken."""
        if self.violation is None:
            try:
                rest.settle(self.state)
            except Broken as broken:
                self.violation = Violation(self.lines, broken.prop, broken.reason, broken.subjects)
        return self.violation

    def _take(self, event: Event) -> None:
        name = getattr(event, "request", None)
        if name is not None and name not in self.state.requests and not isinstance(event, Submit):
            raise Unlikely(f"request {name} was never submitted, or is over")
        group = getattr(event, "group", 0)
        puts = [put[0] for put in getattr(event, "puts", ())]
        for number in (group, *puts):
            if not 0 <= number < len(self.state.header.groups):
                raise Unlikely(f"group {number} is none of {len(self.state.header.groups)}")
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise Unlikely(f"{event.event} belongs on the first line")
        handler(self, event)

    def _submit(self, event: Submit) -> None:
        if event.request < self.state.next_request:
            raise Unlikely(f"request {event.request} is not numbered after the last one")
        self.state.next_request = event.request + 1
        self.state.requests[event.request] = Life(event.id)

    def _preempt(self, event: Preempt) -> None:
        self.state.requests[event.request].handed_off.clear()

    def _finish(self, event: Finish) -> None:
        life = self.state.requests[event.request]
        life.finished = True
        self.state.touched_requests.add(event.request)

    def _job(self, event: Job) -> None:
        tails.hand_off(self.state, event)
        jobs.create(self.state, event)

    def _schedule(self, event: Schedule) -> None:
        state = self.state
        if event.step != state.next_step:
            raise Unlikely(f"step {event.step} does not follow step {state.next_step - 1}")
        state.next_step += 1
        self.steps += 1
        touched = {number for c in state.copies for number in (c.source, c.destination)}
        if not len(event.requests) == len(event.starts) == len(event.tokens):
            raise Unlikely("requests, starts and tokens should be of one length")
        for name, start, count in zip(event.requests, event.starts, event.tokens, strict=True):
            if name not in state.requests:
                raise Unlikely(f"request {name} was never submitted, or is over")
            touched |= self._written(state.requests[name], start, start + count)
        state.steps[event.step] = frozenset(touched)
        for name in event.finished:
            if name in state.requests:
                state.requests[name].announced = True
                state.touched_requests.add(name)

    def _written(self, life: Life, start: int, end: int) -> set[int]:
        """Return the blocks that a chunk writes, by the tables as they are after its pass."""
        written: set[int] = set()
        for group, table in life.tables.items():
            size = self.state.header.groups[group][1]
            last = (end - 1) // size
            first = last if self.state.is_boundary_group(group) else start // size
            written.update(table[first : last + 1])
        written.discard(self.state.header.null_block)
        return written

    def _update(self, event: Update) -> None:
        if self.state.steps.pop(event.step, None) is None:
            raise Unlikely(f"step {event.step} is not in flight")

    def _settled(self, event: Settled) -> None:
        state = self.state
        copied = {(c.request, c.group, c.source) for c in state.copies}
        jobs.settle(state)
        blocks.settle(state, event)
        tails.settle(state, event, copied)
        rest.settle(state)
        state.consumed.clear()
        state.dropped.clear()
        for name in state.touched_requests:
            life = state.requests[name]
            if life.finished and life.announced and not life.tables and not life.loading:
                del state.requests[name]
        state.touched_requests.clear()

    def _end(self, event: Event) -> None:
        self.ended = event


def _on_state(function: Callable[[State, Any], None]) -> Callable[[Monitor, Any], None]:
    return lambda monitor, event: function(monitor.state, event)


_HANDLERS: dict[type[Event], Callable[[Monitor, Any], None]] = {
    Submit: Monitor._submit,
    Lookup: _on_state(loads.lookup),
    Allocate: _on_state(blocks.allocate),
    Touch: _on_state(blocks.touch),
    Free: _on_state(blocks.free),
    Keyed: _on_state(blocks.keyed),
    Unkeyed: _on_state(blocks.unkeyed),
    Table: _on_state(blocks.table),
    Drop: _on_state(blocks.drop),
    Defer: _on_state(blocks.defer),
    Undefer: _on_state(blocks.undefer),
    Copy: _on_state(blocks.copy),
    Mark: _on_state(tails.mark),
    Unmark: _on_state(tails.unmark),
    Job: Monitor._job,
    Emit: _on_state(jobs.emit),
    Report: _on_state(jobs.report),
    Release: _on_state(jobs.release),
    Load: _on_state(loads.load),
    Loaded: _on_state(loads.loaded),
    Preempt: Monitor._preempt,
    Finish: Monitor._finish,
    Schedule: Monitor._schedule,
    Update: Monitor._update,
    Reset: _on_state(blocks.reset),
    Settled: Monitor._settled,
    Raised: _on_state(rest.raised),
    Truncated: Monitor._end,
    Failed: Monitor._end,
    End: Monitor._end,
}
"""What each event does to the books."""
