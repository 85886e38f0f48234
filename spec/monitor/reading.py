"""Reading a log: one line to one event, or what was expected instead.

>>> parse('{"event": "free", "blocks": [3]}', 7)
Free(blocks=[3])
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs

from cowtail.spec.monitor.events import EVENTS, FORMAT, Event, Header

MAX_LINE = 64 * 1024 * 1024
"""The most characters that a line may have: what is longer is no log."""


class LogError(ValueError):
    """A line is not what the format says; the message names the line and what was expected."""


class NotFollowed(Exception):
    """The log is of another version of the format, or of a connector that nobody follows."""


CONNECTORS = ("MooncakeStoreScheduler",)
"""Connectors whose references to blocks are recorded. Others take some that no event explains."""


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_ints(value: Any) -> bool:
    return type(value) is list and all(type(item) is int for item in value)


def _tuples(value: Any, length: int) -> bool:
    return type(value) is list and all(_is_ints(item) and len(item) == length for item in value)


def _is_groups(value: Any) -> bool:
    return type(value) is list and all(
        type(item) is list and len(item) == 2 and type(item[0]) is str and type(item[1]) is int
        for item in value
    )


def _is_strs(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an integer", _is_int),
    "int?": ("an integer or null", lambda value: value is None or _is_int(value)),
    "bool": ("true or false", lambda value: type(value) is bool),
    "str": ("a string", lambda value: type(value) is str),
    "strs": ("a list of strings", _is_strs),
    "ints": ("a list of integers", _is_ints),
    "pairs": ("a list of pairs of integers", lambda value: _tuples(value, 2)),
    "triples": ("a list of three integers each", lambda value: _tuples(value, 3)),
    "groups": (
        "a list of pairs of a kind and a block size of at least 1",
        lambda value: _is_groups(value) and all(size >= 1 for _, size in value),
    ),
}
"""What each shape of a field is called, and how a JSON value is tested for it."""

_FIELDS = {
    kind.event: tuple((field.name, field.metadata["shape"]) for field in attrs.fields(kind))
    for kind in EVENTS
}
_KINDS = {kind.event: kind for kind in EVENTS}


def parse(line: str, number: int) -> Event:
    """Return the event of a line. Raises LogError, naming the line by ``number``."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise LogError(f"line {number}: expected one JSON object ({error})") from None
    if type(value) is not dict:
        raise LogError(f"line {number}: expected one JSON object, got {_short(value)}")
    name = value.pop("event", None)
    if type(name) is not str or name not in _KINDS:
        known = ", ".join(_KINDS)
        raise LogError(f'line {number}: "event" must be one of {known}; got {_short(name)}')
    for field, shape in _FIELDS[name]:
        if field not in value:
            raise LogError(f'line {number}: {name} needs "{field}", {SHAPES[shape][0]}')
        if not SHAPES[shape][1](value[field]):
            raise LogError(
                f'line {number}: "{field}" of {name} must be {SHAPES[shape][0]}, '
                f"got {_short(value[field])}"
            )
    if len(value) != len(_FIELDS[name]):
        extra = sorted(set(value) - {field for field, _ in _FIELDS[name]})
        raise LogError(f"line {number}: {name} has no field {', '.join(extra)}")
    return _KINDS[name](**value)


def parse_header(line: str) -> Header:
    """Return the header of a log. Raises LogError or NotFollowed."""
    if not line:
        raise LogError(
            "empty: a log begins with its header; nothing was recorded, or not here (COWTAIL_LOG)"
        )
    try:
        value = json.loads(line)
    except ValueError as error:
        raise LogError(f"line 1: expected the header of a log ({error})") from None
    if type(value) is not dict or value.get("event") != Header.event:
        raise LogError(f'line 1: a log begins with "event": "log", got {_short(value)}')
    if _is_int(version := value.get("format")) and version != FORMAT:
        raise NotFollowed(f"the log has format {version}; this is cowtail for format {FORMAT}")
    header = parse(line, 1)
    assert isinstance(header, Header)
    if header.num_blocks < 1 or header.num_ranks < 1 or not header.groups:
        raise LogError("line 1: num_blocks, num_ranks and groups must not be empty")
    for name in header.connectors:
        if name not in CONNECTORS:
            raise NotFollowed(f"the log is of the connector {name}, whose pins are not recorded")
    return header


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
