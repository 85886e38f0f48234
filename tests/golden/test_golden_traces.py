"""Golden traces go on working: each tells its story on the model, and on the torch engine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cowtail.harness import Lockstep, ModelTarget, Target, TorchTarget
from cowtail.models import lifecycle
from cowtail.spec.traces import read_trace

FOLDER = Path(__file__).parent


def _stories() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_stories", FOLDER / "write_stories.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


STORIES = {story.name: story for story in _stories().STORIES}


def test_every_story_has_its_trace_and_every_trace_its_story() -> None:
    assert sorted(STORIES) == sorted(path.stem for path in FOLDER.glob("*.jsonl"))


@pytest.mark.parametrize("target", [ModelTarget(), TorchTarget()], ids=["model", "torch"])
@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_down_to_rest(name: str, target: Target) -> None:
    trace = read_trace(FOLDER / f"{name}.jsonl")
    with Lockstep(trace.scope, target) as pair:
        for action in trace.actions:
            pair.perform(action)
        assert pair.events[STORIES[name].event] >= 1
        assert lifecycle.is_quiescent(trace.scope, pair.state)
