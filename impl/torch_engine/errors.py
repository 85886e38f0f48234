"""What the engine raises: an impossible action, broken bookkeeping, a device that is not there."""

from __future__ import annotations


class EngineError(Exception):
    """An action that the engine cannot carry out now; the message says why."""


class ConservationError(EngineError):
    """Block bookkeeping is broken: a count below zero, the null block used, a block freed twice."""


class DeviceNotAvailable(Exception):
    """The device that was asked for cannot be used; one line says why and what to do."""
