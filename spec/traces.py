"""Traces: a scope and the actions taken in it, as JSON Lines that stand alone.

The first line is the header: the version, the whole scope, and where the trace comes from.
Every other line is one action, or ``{"refused": ...}`` around one that must be refused.

>>> from cowtail.models.actions import Admit, BeginPass, Submit
>>> from cowtail.spec.scopes import scope_named
>>> trace = Trace(scope_named("lone_producer"), (Submit("a"), BeginPass(), Admit("a")), seed=1)
>>> print(dump_trace(trace).splitlines()[1])
{"action": "submit", "request": "a"}
>>> parse_trace(dump_trace(trace)) == trace
True
"""

from __future__ import annotations

import difflib
import enum
import functools
import hashlib
import json
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import cattrs

from cowtail import models
from cowtail.models.actions import ACTIONS, Action, JobOutcome, LoadOutcome
from cowtail.models.scope import ChildKind, GroupKind, LoadPolicy, Lookup, Policy, Role, Scope
from cowtail.spec.files import write_text

VERSION = 1
"""The version of the format that this module reads and writes."""

_ACTIONS = {kind.name: kind for kind in ACTIONS}
_ENUMERATIONS: tuple[type[enum.Enum], ...] = (
    ChildKind,
    GroupKind,
    JobOutcome,
    LoadOutcome,
    LoadPolicy,
    Lookup,
    Policy,
    Role,
)
_HEADER_FIELDS = ("cowtail_trace", "scope", "seed", "model_digest", "target", "faults", "note")


class TraceError(ValueError):
    """A trace that cannot be read: the message names file and line, value, rule and fix."""


@functools.cache
def model_digest() -> str:
    """Return a digest of the model's source, so that a trace says which rules made it.

    The first 16 hexadecimal digits of the SHA-256 over the names and bytes of ``models/*.py``.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(models.__path__[0]).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@attrs.frozen
class Trace:
    """Actions in a scope, and where they come from.

    ``seed`` is that of the run that found them, if any; ``target`` and ``faults`` say what they
    were run against; ``note`` is one line for the reader. A ``model_digest`` other than that of
    the model at hand is worth a remark, not an error: old traces are meant to be replayed.
    """

    scope: Scope
    actions: tuple[Action, ...]
    seed: int | None = None
    model_digest: str = attrs.field(factory=model_digest)
    target: str = ""
    faults: tuple[str, ...] = ()
    note: str = ""


@attrs.frozen(repr=False)
class Refused(Action):
    """``action`` is sent although it is not enabled; it must be refused, and change nothing.

    The model does not have it, traces and lockstep do.
    """

    name: ClassVar[str] = "refused"
    action: Action

    def __repr__(self) -> str:
        """Print as ``refused(execute())``."""
        return f"{self.name}({self.action!r})"


def dump_trace(trace: Trace) -> str:
    """Return the trace as JSON Lines."""
    header: dict[str, Any] = {
        "cowtail_trace": VERSION,
        "scope": _CONVERTER.unstructure(trace.scope),
        "seed": trace.seed,
        "model_digest": trace.model_digest,
    }
    optional = {"target": trace.target, "faults": list(trace.faults), "note": trace.note}
    header.update({name: value for name, value in optional.items() if value})
    lines = [header, *(_action_fields(action) for action in trace.actions)]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _action_fields(action: Action) -> dict[str, Any]:
    if isinstance(action, Refused):
        return {"refused": _action_fields(action.action)}
    return {"action": action.name, **_CONVERTER.unstructure(action)}


def write_trace(path: Path, trace: Trace) -> None:
    """Write the trace to ``path``, atomically."""
    write_text(path, dump_trace(trace))


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises TraceError with file and line, the value, the rule and the fix."""
    return parse_trace(read_text(path), source=str(path))


def read_text(path: Path) -> str:
    """Return a file's text. Raises TraceError where there is none to be had."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file; check the path") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not UTF-8 text; a trace is JSON Lines, check the path") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; check the path") from None


def parse_trace(text: str, source: str = "trace") -> Trace:
    """Return the trace that ``text`` holds; ``source`` names it in errors (TraceError)."""
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise TraceError(f"{source}:1: empty: a trace begins with a header line; record it again")
    header = located(source, 1, lambda: _parse_header(parse_line(lines[0])))
    actions = tuple(
        located(source, number, functools.partial(_parse_action, header.scope, line))
        for number, line in enumerate(lines[1:], start=2)
    )
    return attrs.evolve(header, actions=actions)


def build_action(
    name: str, fields: Mapping[str, Any], kinds: Mapping[str, type[Action]] = _ACTIONS
) -> Action:
    """Return the action called ``name``. Raises ValueError for a wrong name, field or type.

    ``kinds`` are those of the model, by name, unless an implementation has others.
    """
    kind = kinds.get(name)
    if kind is None:
        raise ValueError(f"action {name!r}: no such action; {_hint(name, list(kinds))}")
    wanted = attrs.fields(kind)
    for field in fields:
        if field not in {attribute.name for attribute in wanted}:
            raise ValueError(f"{field!r}: not a field of {name}, which has {_names(wanted)}")
    for attribute in wanted:
        if attribute.default is attrs.NOTHING and attribute.name not in fields:
            raise ValueError(f"{attribute.name!r} is missing from {name}; add it")
    action: Action = structure(fields, kind, name)
    return action


def check_action(scope: Scope, action: Action) -> None:
    """Raise ValueError if the action names what the scope does not have.

    That is a request, a rank, a group or a connector.
    """
    request = getattr(action, "request", None)
    if request is not None:
        scope.index(request)
    counts = {
        "rank": scope.num_ranks,
        "group": len(scope.groups),
        "child": len(scope.children),
    }
    for field, count in counts.items():
        number = getattr(action, field, None)
        if number is not None and not 0 <= number < count:
            raise ValueError(f"{field}={number}: the scope has {field}s 0 to {count - 1}; use one")


_T = typing.TypeVar("_T")


def located(source: str, number: int, parse: Callable[[], _T]) -> _T:
    """Return what ``parse`` does; a ValueError of its becomes a TraceError with file and line."""
    try:
        return parse()
    except ValueError as error:
        raise TraceError(f"{source}:{number}: {error}") from None


def parse_line(line: str) -> dict[str, Any]:
    """Return the JSON object on a line. Raises ValueError saying what it is instead."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{_shortened(line)}: not JSON ({error.msg}, column {error.colno}); "
            "each line is one JSON object, mend or remove it"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{_shortened(line)}: not a JSON object; each line is one, mend it")
    return value


def _parse_header(header: dict[str, Any]) -> Trace:
    if "cowtail_trace" not in header:
        raise ValueError(
            f"{_shortened(json.dumps(header))}: not a header; the first line of a trace has "
            f'"cowtail_trace": {VERSION} and the scope, add it'
        )
    version = header["cowtail_trace"]
    if version != VERSION or isinstance(version, bool):
        raise ValueError(
            f"cowtail_trace={version!r}: this cowtail reads version {VERSION}; "
            "record the trace again, or use the cowtail that wrote it"
        )
    for field in header:
        if field not in _HEADER_FIELDS:
            raise ValueError(f"{field!r}: not a header field; {_hint(field, _HEADER_FIELDS)}")
    if "scope" not in header:
        raise ValueError("'scope' is missing: a header holds the whole scope; add it")
    return Trace(
        scope=structure(header["scope"], Scope, "scope"),
        actions=(),
        seed=structure(header.get("seed"), typing.Optional[int], "seed"),  # noqa: UP045
        model_digest=structure(header.get("model_digest", ""), str, "model_digest"),
        target=structure(header.get("target", ""), str, "target"),
        faults=structure(header.get("faults", []), tuple[str, ...], "faults"),
        note=structure(header.get("note", ""), str, "note"),
    )


def _parse_action(scope: Scope, line: str) -> Action:
    fields = parse_line(line)
    refused = fields.get("refused")
    if isinstance(refused, dict) and len(fields) == 1:
        return Refused(_action_of(scope, line, refused))
    return _action_of(scope, line, fields)


def _action_of(scope: Scope, line: str, fields: dict[str, Any]) -> Action:
    name = fields.pop("action", None)
    if not isinstance(name, str):
        raise ValueError(f'{_shortened(line)}: "action" is missing or no name; add it')
    action = build_action(name, fields)
    check_action(scope, action)
    return action


def unstructure(value: object) -> Any:
    """Return a value as plain JSON types."""
    return _CONVERTER.unstructure(value)


def structure(value: object, kind: Any, path: str) -> Any:
    """Return ``value`` as ``kind``. Raises ValueError naming the path, the value and the rule."""
    try:
        return _CONVERTER.structure(value, kind)
    except (cattrs.BaseValidationError, cattrs.ForbiddenExtraKeysError, ValueError) as error:
        raise ValueError("; ".join(_reasons(error, path))) from None


def _reasons(error: BaseException, path: str) -> list[str]:
    if isinstance(error, cattrs.BaseValidationError):
        return list(cattrs.transform_error(error, path, _reason))
    return [f"{_reason(error, None)} @ {path}"]


def _reason(error: BaseException, kind: type | None) -> str:
    del kind
    if isinstance(error, KeyError):
        return f"the field {error.args[0]!r} is missing; add it"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown field {', '.join(sorted(map(repr, error.extra_fields)))}; remove it"
    return str(error)


def _shortened(text: str, width: int = 60) -> str:
    return repr(text if len(text) <= width else text[: width - 3] + "...")


def _names(attributes: tuple[Any, ...]) -> str:
    return ", ".join(attribute.name for attribute in attributes) or "no fields"


def _hint(name: str, known: typing.Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}"


def _strict(kind: type, what: str) -> Callable[[Any, Any], Any]:
    """Return a hook that takes a JSON value of one type as it is, and nothing else for it."""

    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{value!r}: must be {what}; change it")
        return value

    return structure


def _is_tuple(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


def _tuple_hook(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    (element, _) = typing.get_args(kind)

    def structure(value: Any, _: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):  # a string would pass for a tuple of its characters
            raise ValueError(f"{value!r}: must be a list; change it")
        return tuple(converter.structure(item, element) for item in value)

    return structure


def _one_of(kind: type[enum.Enum]) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        known = [member.value for member in kind]
        if value not in known:
            raise ValueError(f"{value!r}: must be one of {', '.join(known)}; change it")
        return kind(value)

    return structure


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(int, _strict(int, "a whole number"))
    converter.register_structure_hook(bool, _strict(bool, "true or false"))
    converter.register_structure_hook(str, _strict(str, "a string"))
    for kind in _ENUMERATIONS:  # else, as strings, they would go the way of str
        converter.register_structure_hook(kind, _one_of(kind))
    converter.register_structure_hook_factory(_is_tuple, _tuple_hook)
    return converter


_CONVERTER = _converter()
