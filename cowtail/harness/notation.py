"""Actions and scopes as a person writes them, for regression tests and error messages.

>>> actions = parse_actions("submit(a) begin_pass() run_job(1, failed) report(0, 2, True)")
>>> actions[2:]
(run_job(1, failed), report(0, 2, True))
>>> parse_actions(" ".join(map(repr, actions))) == actions
True
>>> parse_actions("refused(execute())")
(refused(execute()),)
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Any

import attrs

from cowtail.models.actions import ACTIONS, Action
from cowtail.models.scope import (
    BASE,
    STORE,
    Child,
    ChildKind,
    Group,
    GroupKind,
    RequestSpec,
    Scope,
)
from cowtail.spec.traces import Refused, build_action

_ACTION = re.compile(r"\s*(\w+)\(([^()]*)\)")
_REFUSED = re.compile(r"\s*refused\((\s*\w+\([^()]*\)\s*)\)")
_KINDS = {kind.name: kind for kind in ACTIONS}
_NUMBERS = ("rank", "job", "child", "group")
_FLAGS = ("again", "failed", "lookup_failed", "running", "store")


def parse_actions(text: str) -> tuple[Action, ...]:
    """Return the actions that ``text`` lists, each as it prints, separated by white space.

    Raises ValueError naming what could not be read.
    """
    actions: list[Action] = []
    position = 0
    while text[position:].strip():
        refused = _REFUSED.match(text, position)
        if refused is not None:
            actions += map(Refused, parse_actions(refused[1]))
            position = refused.end()
            continue
        match = _ACTION.match(text, position)
        if match is None:
            rest = text[position:].split()[0]
            raise ValueError(f"{rest!r}: not an action; write it as it prints, like admit(a)")
        name, arguments = match.groups()
        values = [value.strip() for value in arguments.split(",") if value.strip()]
        actions.append(build_action(name, _fields(name, values)))
        position = match.end()
    return tuple(actions)


def _fields(name: str, values: list[str]) -> dict[str, Any]:
    """Return the arguments by field name, whole numbers and truth values as such."""
    kind = _KINDS.get(name, Action)
    names = [field.name for field in attrs.fields(kind)]
    if len(values) > len(names) and kind is not Action:
        raise ValueError(f"{name}({', '.join(values)}): has at most {len(names)} arguments")
    fields: dict[str, Any] = {}
    for field, value in zip(names, values, strict=False):
        if field in _NUMBERS and value.isdigit():
            fields[field] = int(value)
        elif field in _FLAGS and value in ("True", "False"):
            fields[field] = value == "True"
        else:
            fields[field] = value
    return fields


def format_actions(actions: Iterable[Action], width: int = 96, indent: str = "    ") -> str:
    """Return the actions as ``parse_actions`` reads them, wrapped to ``width`` columns."""
    return "\n".join(_wrapped(map(repr, actions), " ", width, indent))


def format_scope(scope: Scope, width: int = 96, indent: str = "    ") -> str:
    """Return the scope as the Python expression that builds it, defaults left out."""
    arguments = [
        f"{field.name}={_expression(getattr(scope, field.name))}"
        for field in attrs.fields(Scope)
        if getattr(scope, field.name) != field.default
    ]
    lines = _wrapped((f"{argument}," for argument in arguments), " ", width, indent)
    return "Scope(\n" + "\n".join(lines) + "\n)"


def _expression(value: object) -> str:
    match value:
        case enum.Enum():
            return f"{type(value).__name__}.{value.name}"
        case Group():
            return _group(value)
        case Child(kind=ChildKind.PEER):
            flags = [f"{name}=True" for name in ("serves", "retains") if getattr(value, name)]
            return f"peer({', '.join(flags)})"
        case Child():
            return {STORE: "STORE", BASE: "BASE"}[value]
        case RequestSpec():
            return _request(value)
        case tuple():
            inner = ", ".join(map(_expression, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _group(group: Group) -> str:
    arguments = [str(group.block_size)]
    if group.kind is GroupKind.SLIDING_WINDOW:
        arguments.append(str(group.window))
    if group.eagle:
        arguments.append("eagle=True")
    return f"{group.kind.value}({', '.join(arguments)})"


def _request(spec: RequestSpec) -> str:
    arguments = [repr(spec.name), repr(spec.prompt)]
    if spec.max_tokens != 1 or spec.output:
        arguments.append(f"max_tokens={spec.max_tokens}")
    for name in ("output", "accepts", "priority"):
        if getattr(spec, name):
            arguments.append(f"{name}={getattr(spec, name)!r}")
    return f"RequestSpec({', '.join(arguments)})"


def _wrapped(parts: Iterable[str], separator: str, width: int, indent: str) -> list[str]:
    """Return lines of whole parts; a part longer than the width has a line of its own."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{separator}{part}" if lines else ""
        if lines and len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(indent + part)
    return lines
