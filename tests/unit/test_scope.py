"""A scope refuses what the rules would silently take for something else."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from cowtail.models.scope import (
    Child,
    Group,
    RequestSpec,
    full_attention,
)
from cowtail.spec.names import MANY, unknown
from cowtail.spec.scopes import SCOPES, scope_named


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"role": "producer"}, "role='producer': must be a Role, not a str; convert it"),
        ({"policy": "fcfs"}, "policy='fcfs': must be a Policy, not a str"),
        ({"num_ranks": 2.0}, "num_ranks=2.0: must be an int, not a float"),
        ({"num_ranks": True}, "num_ranks=True: must be an int, not a bool"),
        ({"retention_interval": "2"}, "retention_interval='2': must be an int, not a str"),
        ({"internal_checkpoints": 1}, "internal_checkpoints=1: must be a bool, not an int"),
        ({"may_abort": "a"}, "may_abort='a': must be a tuple, not a str"),
        ({"groups": [full_attention(2)]}, "must be a tuple, not a list"),
        ({"groups": (Group("mamba", 2),)}, "kind='mamba': must be a GroupKind, not a str"),  # type: ignore[arg-type]
        ({"children": (Child("store"),)}, "kind='store': must be a ChildKind, not a str"),  # type: ignore[arg-type]
        ({"requests": (RequestSpec("a", b"ab"),)}, "prompt=b'ab': must be a str, not a bytes"),  # type: ignore[arg-type]
    ],
)
def test_a_constant_of_another_type_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        attrs.evolve(scope_named("lone_producer"), **changes)


def test_a_name_that_comes_near_is_answered_with_what_is_near() -> None:
    said = unknown("lone_produce", "scope", SCOPES)
    assert len(SCOPES) > MANY
    assert "did you mean 'lone_producer'?" in said
    assert said.endswith(f"{len(SCOPES)} are known")


def test_a_name_that_comes_near_nothing_is_answered_with_all() -> None:
    assert unknown("?", "scope", SCOPES).endswith(f"use one of {', '.join(SCOPES)}")
