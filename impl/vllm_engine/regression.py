"""One small regression test for a finding on real vLLM: to be read, pasted, and run.

>>> from cowtail.models.actions import Submit
>>> as_source((Submit("a"), RunLoad(1, failed=True)))
"(Submit(request='a'), RunLoad(rank=1, failed=True))"
"""

from __future__ import annotations

import enum
import re
from typing import Any

import attrs

from cowtail.impl.vllm_engine.config import RunLoad
from cowtail.impl.vllm_engine.fuzz import Finding
from cowtail.models.actions import Action

_TEMPLATE = '''"""{identifier}: {reason}

Found by `cowtail fuzz --target vllm`, seed {seed}, episode {episode}. It fails as long as real
vLLM does this, after the actions or in the drain that follows them.
"""

from cowtail.impl.vllm_engine.config import {configs}
from cowtail.impl.vllm_engine.fuzz import replay
{actions}from cowtail.models.scope import RequestSpec, Role

CONFIG = EngineConfig(
{config}
)
ACTIONS = (
{listed}
)


def test_{name}() -> None:
    replay(CONFIG, ACTIONS)
'''


def regression(finding: Finding) -> str:
    """Return the source of a test that fails as long as the finding is there."""
    kinds = {type(action) for action in finding.actions}
    names = {kind.__name__ for kind in kinds if kind is not RunLoad}
    if any("JobOutcome" in as_source(action) for action in finding.actions):
        names.add("JobOutcome")
    return _TEMPLATE.format(
        identifier=finding.identifier,
        reason=_in_docstring(finding.reason),
        seed=finding.seed,
        episode=finding.episode,
        configs=", ".join(["EngineConfig", "RunLoad"] if RunLoad in kinds else ["EngineConfig"]),
        actions=f"from cowtail.models.actions import {', '.join(sorted(names))}\n" if names else "",
        config="\n".join(f"    {line}," for line in _changed_fields(finding.config)),
        listed="\n".join(f"    {as_source(action)}," for action in finding.actions),
        name=re.sub(r"\W+", "_", f"{finding.identifier}_seed_{finding.seed}").lower(),
    )


def _in_docstring(text: str) -> str:
    """Return ``text`` on one line, with nothing in it that ends or changes a docstring."""
    return " ".join(text.split()).replace("\\", "\\\\").replace('"', "'")


def _changed_fields(value: Any) -> list[str]:
    """Return ``name=value`` of each field that is not at its default."""
    return [
        f"{field.name}={as_source(getattr(value, field.name))}"
        for field in attrs.fields(type(value))
        if getattr(value, field.name) != field.default
    ]


def as_source(value: object) -> str:
    """Return Python source that evaluates to an action, a configuration, or what is in them."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        inner = ", ".join(as_source(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Action) or attrs.has(type(value)):
        return f"{type(value).__name__}({', '.join(_changed_fields(value))})"
    return repr(value)
