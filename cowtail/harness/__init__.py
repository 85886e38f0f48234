"""Holding an implementation to the model: targets, lockstep, fuzzing, reduction, tours, kills.

What a regression test needs is here by name; the rest is in the modules.
"""

from cowtail.harness.lockstep import (
    Diverged,
    Divergence,
    Lockstep,
    NotATrace,
    Result,
    assert_lockstep,
    run,
)
from cowtail.harness.notation import parse_actions
from cowtail.harness.target import Level, ModelTarget, Session, Target, TorchTarget

__all__ = [
    "Diverged",
    "Divergence",
    "Level",
    "Lockstep",
    "ModelTarget",
    "NotATrace",
    "Result",
    "Session",
    "Target",
    "TorchTarget",
    "assert_lockstep",
    "parse_actions",
    "run",
]
