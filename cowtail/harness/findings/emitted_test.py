"""One test for a finding that needs pytest and vLLM only: to be read, pasted into an issue, run.

It uses the driver that is written beside it, ``vllm_driver.py``, and asserts one property.

>>> text_expression("xxxxxyz")
'"x" * 5 + "yz"'
"""

from __future__ import annotations

import ast
import enum
import functools
import itertools
import re
import textwrap
from importlib import resources
from typing import Any

import attrs

from cowtail.harness.findings.trace import VllmTrace
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.promises import PROPERTIES
from cowtail.models.scope import RequestSpec

DRIVER = "vllm_driver.py"
"""The file that is written beside an emitted test."""

_TEMPLATE = '''"""{summary}

{about}
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from vllm_driver import Engine, Request

ACTIONS = """
{actions}
"""


def test_{name}() -> None:
    engine = Engine(
{settings}
    )
    engine.run(ACTIONS, watching="{watching}")
'''
_WIDTH = 96
MAX_SUMMARY = 280
"""Characters of the sentence that a test begins with; what hangs can leave long lists behind."""
_RUN = 4
"""Letters repeated as often as this are written as a product."""


_BOUNDS = ("max_evictions", "max_resets")
"""Settings that bound what is drawn: the actions of a test say themselves what happens."""


class NotEmitted(ValueError):
    """A trace has a feature or an action that the driver of emitted tests does not have."""


def driver_source() -> str:
    """Return the source of the driver that is written beside every emitted test."""
    return (resources.files("cowtail.impl.vllm_engine.emitted") / DRIVER).read_text("utf-8")


@functools.cache
def _driver() -> tuple[frozenset[str], frozenset[str]]:
    """Return the settings and the actions that the driver has."""
    tree = ast.parse(driver_source())
    (engine,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Engine")
    methods = {node.name: node for node in engine.body if isinstance(node, ast.FunctionDef)}
    settings = frozenset(each.arg for each in methods["__init__"].args.args)
    actions = {name.removeprefix("_") for name in methods if re.match(r"_[a-z]", name)}
    return settings, frozenset(actions | {"step", "run_to_rest"})


def emitted_test(trace: VllmTrace) -> str:
    """Return the source of the test that fails as long as vLLM violates the trace's property.

    Raises NotEmitted where the driver lacks what the trace needs.
    """
    settings = driver_settings(trace)
    name = next(
        (p.name for p in PROPERTIES if p.identifier == trace.property),
        "nothing_is_raised",
    )
    lines = [f"{field}={_expression(value)}," for field, value in settings.items()]
    return _TEMPLATE.format(
        summary=_in_docstring(_filled(_summary(trace))),
        about=_filled(_about(trace)),
        actions="\n".join(textwrap.wrap(actions_text(trace), width=_WIDTH, break_long_words=False)),
        name=name,
        settings=textwrap.indent("\n".join(lines), " " * 8),
        watching=trace.property,
    )


def _summary(trace: VllmTrace) -> str:
    return textwrap.shorten(
        f"{trace.property} on vLLM {trace.release}: {trace.reason}", MAX_SUMMARY, placeholder=" …"
    )


def _about(trace: VllmTrace) -> str:
    found = (
        f" Found by `cowtail fuzz --target vllm`, seed {trace.seed}, episode {trace.episode}."
        if trace.seed is not None
        else ""
    )
    known = f" It is known: {trace.known}." if trace.known else ""
    return (
        f"Needs pytest, vLLM, and {DRIVER} beside it. Fails as long as vLLM does this, here or "
        f"while all runs to rest afterwards; passes where it is mended.{found}{known}"
    )


def actions_text(trace: VllmTrace) -> str:
    """Return the actions as the driver reads them, on one line."""
    return " ".join(f"{each.name}({', '.join(_arguments(each))})" for each in trace.actions)


def _arguments(action: Any) -> list[str]:
    values = [getattr(action, field.name) for field in attrs.fields(type(action))]
    while values and values[-1] is False:
        values.pop()
    return [str(value.value if isinstance(value, enum.Enum) else value) for value in values]


def driver_settings(trace: VllmTrace) -> dict[str, Any]:
    """Return the driver's settings for a trace, defaults left out; raises NotEmitted."""
    known, actions = _driver()
    settings = {
        field.name: getattr(trace.config, field.name)
        for field in attrs.fields(EngineConfig)
        if getattr(trace.config, field.name) != field.default and field.name not in _BOUNDS
    }
    for name in settings:
        if name not in known:
            raise NotEmitted(f"{name}={settings[name]!r}: the driver of tests has no such setting")
    for action in trace.actions:
        if action.name not in actions:
            raise NotEmitted(f"{action}: the driver of tests has no such action")
    return settings


def _expression(value: object) -> str:
    """Return Python source for a setting."""
    if isinstance(value, enum.Enum):
        return f'"{value.value}"'
    if isinstance(value, RequestSpec):
        return _request(value)
    if isinstance(value, tuple):
        items = [_expression(item) for item in value]
        line = f"[{', '.join(items)}]"
        if len(line) <= 70 or not items:
            return line
        return "[\n" + textwrap.indent("".join(f"{item},\n" for item in items), " " * 4) + "]"
    return repr(value)


def _request(spec: RequestSpec) -> str:
    parts = [f'"{spec.name}"', text_expression(spec.prompt)]
    if spec.max_tokens != 1:
        parts.append(f"max_tokens={spec.max_tokens}")
    if spec.output:
        parts.append(f"output={text_expression(spec.output)}")
    if spec.priority:
        parts.append(f"priority={spec.priority}")
    return f"Request({', '.join(parts)})"


def text_expression(text: str) -> str:
    """Return Python source for a text, long runs of one letter as products."""
    parts: list[str] = []
    plain = ""
    for letter, group in itertools.groupby(text):
        length = len(list(group))
        if length < _RUN:
            plain += letter * length
            continue
        parts += [f'"{plain}"'] if plain else []
        parts.append(f'"{letter}" * {length}')
        plain = ""
    if plain or not parts:
        parts.append(f'"{plain}"')
    return " + ".join(parts)


def _filled(text: str) -> str:
    return textwrap.fill(text, width=_WIDTH, break_long_words=False, break_on_hyphens=False)


def _in_docstring(text: str) -> str:
    """Return a text with nothing in it that ends or changes a docstring."""
    return text.replace("\\", "\\\\").replace('"', "'")
