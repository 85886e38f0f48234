"""The monitor inside a live process: the lines of each call are checked when it is over."""

from __future__ import annotations

import logging
from collections import deque

from cowtail.spec.monitor.context import WINDOW, context
from cowtail.spec.monitor.monitor import Monitor


class MonitorViolation(RuntimeError):
    """What a live scheduler did breaks a property; the message has the lines that led to it."""


class OnlineMonitor:
    """Checks what a recorder writes, as it is written.

    The first violation is logged once, or raised out of the scheduler's call (``raises``).
    Nothing is checked after it.
    """

    def __init__(self, logger: logging.Logger, *, raises: bool) -> None:
        """Start before the first line."""
        self._logger = logger
        self._raises = raises
        self._monitor: Monitor | None = None
        self._window: deque[tuple[int, str]] = deque(maxlen=WINDOW)
        self._over = False

    def watch(self, lines: list[str]) -> Exception | None:
        """Take lines; return what is to be raised. Raises LogError if they are no log."""
        if self._over:
            return None
        for line in lines:
            if self._monitor is None:
                self._monitor = Monitor(line)
                continue
            self._window.append((self._monitor.lines + 1, line))
            violation = self._monitor.feed(line)
            if violation is not None:
                self._over = True
                shown = context(self._window, violation.subjects, violation.line)
                message = "\n".join([f"cowtail: {violation}", *shown])
                if self._raises:
                    return MonitorViolation(message)
                self._logger.error("%s", message)
                return None
        return None
