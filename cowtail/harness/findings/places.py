"""Where in the release's code: names of functions, with file and line as they are installed.

A known finding names its functions. For a new one, the code that only the failing run executes
is compared with the same trace with one action left out, which does not fail.
"""

from __future__ import annotations

import inspect
import os.path
import re
import sys
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

from cowtail.harness.findings.trace import VllmTrace
from cowtail.impl.vllm_engine.failures import attempt
from cowtail.impl.vllm_engine.known import KNOWN_FINDINGS
from cowtail.impl.vllm_engine.session import place_in_release

MAX_PLACES = 8
"""How many functions are named."""
_WATCHED = (
    os.path.join("vllm", "v1", "core"),
    os.path.join("vllm", "v1", "request.py"),
    os.path.join("kv_connector", "v1", "mooncake"),
    os.path.join("kv_connector", "v1", "multi_connector"),
)
"""Where the life of a block is decided; executed lines of other files are not compared."""

_Line = tuple[str, str, int]
"""File, qualified name of the function, line."""


def places_of(trace: VllmTrace) -> list[str]:
    """Return where in the installed release the trace goes wrong, one line each.

    Of a known finding, what its entry names; else the functions with most lines that no
    neighbour of the trace executes. Empty where there are none.
    """
    known = next((each for each in KNOWN_FINDINGS if each.name == trace.known), None)
    if known is not None:
        names = re.findall(r"[A-Za-z_][\w.]*_\w+(?:\.\w+)*|[A-Z]\w+\.\w+", known.place)
        return [found for name in names if (found := located(name)) is not None]
    only = _lines(trace, trace.actions)
    for index in range(len(trace.actions)):
        fewer = trace.actions[:index] + trace.actions[index + 1 :]
        if attempt(trace.config, fewer).failure is None:
            only -= _lines(trace, fewer)
    count = Counter((file, function) for file, function, _ in only)
    first = {(file, function): line for file, function, line in sorted(only, reverse=True)}
    return [
        f"`{function}` ({place_in_release(file)}:{first[file, function]}), "
        f"{lines} lines that run only here"
        for (file, function), lines in sorted(count.items(), key=lambda item: (-item[1], item[0]))
    ][:MAX_PLACES]


def located(name: str) -> str | None:
    """Return ``Class.method`` or a function of vLLM with its file and line; None if not found."""
    owner, _, attribute = name.rpartition(".")
    for module_name, module in sorted(sys.modules.items()):
        if not module_name.startswith("vllm."):
            continue
        holder: Any = getattr(module, owner, None) if owner else module
        found = vars(holder).get(attribute) if holder is not None else None
        if inspect.isfunction(found) and found.__module__ == module_name:
            code = inspect.unwrap(found).__code__
            return f"`{name}` ({place_in_release(code.co_filename)}:{code.co_firstlineno})"
    return None


def _lines(trace: VllmTrace, actions: Sequence[Any]) -> set[_Line]:
    """Return the watched lines that a replay executes."""
    lines: set[_Line] = set()

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno))
        return on_line

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        return on_line if any(part in file for part in _WATCHED) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        attempt(trace.config, actions)
    finally:
        sys.settrace(before)
    return lines
