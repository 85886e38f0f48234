"""Traces of real vLLM: a configuration and the actions taken in it, as JSON Lines.

The first line is the header: the version, the whole configuration, and where the trace comes
from; every other line is one action. After the last, everything runs to rest: many a failure
shows only then, and the header says so.

>>> from cowtail.models.actions import Submit
>>> from cowtail.models.scope import RequestSpec
>>> config = EngineConfig(requests=(RequestSpec("a", "abcde"),))
>>> trace = VllmTrace(config, (Submit("a"), RunToRest()), release="0.32.0")
>>> print(dump_vllm_trace(trace).splitlines()[1])
{"action": "submit", "request": "a"}
>>> parse_vllm_trace(dump_vllm_trace(trace)) == trace
True
"""

from __future__ import annotations

import functools
import json
import typing
from pathlib import Path
from typing import Any

import attrs

from cowtail.impl.vllm_engine.composite import RunToRest, WholeStep
from cowtail.impl.vllm_engine.config import ENGINE_ACTIONS, EngineConfig
from cowtail.models.actions import Action
from cowtail.spec.traces import (
    TraceError,
    build_action,
    located,
    parse_line,
    read_text,
    structure,
    unstructure,
)

VERSION = 1
"""The version of the format that this module reads and writes."""
HEADER = "cowtail_vllm_trace"
"""The header field that tells these traces from those of the model."""

_ALL: tuple[type[Action], ...] = (*ENGINE_ACTIONS, WholeStep, RunToRest)
_KINDS = {kind.name: kind for kind in _ALL}
_NOTES = ("release", "property", "reason", "known", "seed", "episode", "in_drain")


@attrs.frozen
class VllmTrace:
    """Actions on real vLLM, and what they lead to.

    ``release`` is the one that they were found in, ``property`` and ``reason`` what they violate
    there, ``known`` the name of the known finding that it is; ``in_drain``: it fails when
    everything runs to rest after the last action.
    """

    config: EngineConfig
    actions: tuple[Action, ...]
    release: str = ""
    property: str = ""
    reason: str = ""
    known: str = ""
    seed: int | None = None
    episode: int | None = None
    in_drain: bool = False


def is_vllm_trace(text: str) -> bool:
    """Whether a text begins like such a trace, so that a command knows which kind it was given."""
    return HEADER in text.partition("\n")[0]


def dump_vllm_trace(trace: VllmTrace) -> str:
    """Return the trace as JSON Lines."""
    header: dict[str, Any] = {HEADER: VERSION, "config": unstructure(trace.config)}
    notes = {name: getattr(trace, name) for name in _NOTES}
    header.update({name: note for name, note in notes.items() if note not in ("", None, False)})
    lines = [header]
    lines += [{"action": action.name, **unstructure(action)} for action in trace.actions]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def read_vllm_trace(path: Path) -> VllmTrace:
    """Read a trace. Raises TraceError with file and line, the value, the rule and the fix."""
    return parse_vllm_trace(read_text(path), source=str(path))


def parse_vllm_trace(text: str, source: str = "trace") -> VllmTrace:
    """Return the trace that ``text`` holds; ``source`` names it in errors (TraceError)."""
    lines = text.rstrip("\n").split("\n")
    if not lines[0].strip():
        raise TraceError(f"{source}:1: empty: a trace begins with a header line; record it again")
    header = located(source, 1, lambda: _header(parse_line(lines[0])))
    actions = tuple(
        located(source, number, functools.partial(_action, header.config, line))
        for number, line in enumerate(lines[1:], start=2)
    )
    return attrs.evolve(header, actions=actions)


def _header(header: dict[str, Any]) -> VllmTrace:
    version = header.pop(HEADER, None)
    if version != VERSION or isinstance(version, bool):
        raise ValueError(
            f"{HEADER}={version!r}: this cowtail reads version {VERSION}; record the trace again, "
            "or use the cowtail that wrote it"
        )
    if "config" not in header:
        raise ValueError("'config' is missing: a header holds the whole configuration; add it")
    config = structure(header.pop("config"), EngineConfig, "config")
    kinds = typing.get_type_hints(VllmTrace)
    for name in header:
        if name not in _NOTES:
            raise ValueError(f"{name!r}: not a header field; use one of {', '.join(_NOTES)}")
    notes = {name: structure(value, kinds[name], name) for name, value in header.items()}
    return VllmTrace(config=config, actions=(), **notes)


def _action(config: EngineConfig, line: str) -> Action:
    fields = parse_line(line)
    name = fields.pop("action", None)
    if not isinstance(name, str):
        raise ValueError(f'{line[:60]!r}: "action" is missing or no name; add it')
    action = build_action(name, fields, _KINDS)
    request = getattr(action, "request", None)
    if request is not None:
        config.request(request)
    rank = getattr(action, "rank", None)
    ranks = config.num_numbered_ranks
    if rank is not None and not 0 <= rank < ranks:
        raise ValueError(f"rank={rank}: there are ranks 0 to {ranks - 1}; use one")
    return action
