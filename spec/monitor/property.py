"""What the monitor holds a log to: identifiers, names, sentences, sources."""

from __future__ import annotations

import attrs


@attrs.frozen
class Property:
    """A named property of logs. ``source`` is the requirement or the page that it comes from."""

    identifier: str
    name: str
    sentence: str
    source: str


@attrs.frozen
class Subject:
    """What a violation is about: a block, a request or a job (with its connector)."""

    kind: str
    number: int
    connector: int = 0

    def __str__(self) -> str:
        """Print as ``block 3``."""
        return f"{self.kind} {self.number}"


class Broken(Exception):
    """An event breaks a property. Caught by the monitor, which knows the line."""

    def __init__(self, prop: Property, reason: str, *subjects: Subject) -> None:
        """Say which property, why, and what it is about."""
        super().__init__(reason)
        self.prop = prop
        self.reason = reason
        self.subjects = subjects


class Unlikely(ValueError):
    """An event cannot follow the ones before it: the log is not one that a recorder writes."""


def block(number: int) -> Subject:
    """Return a block as a subject."""
    return Subject("block", number)


def request(number: int) -> Subject:
    """Return a request as a subject."""
    return Subject("request", number)


def job(number: int, connector: int) -> Subject:
    """Return a store job as a subject."""
    return Subject("job", number, connector)
