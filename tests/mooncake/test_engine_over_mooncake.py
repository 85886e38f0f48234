"""The torch engine over a real store: between processes, and in lockstep with the model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from cowtail.harness import Lockstep, TorchTarget
from cowtail.harness.target import TorchSession
from cowtail.impl.torch_engine import TorchEngine
from cowtail.impl.torch_engine.mooncake_master import MooncakeMaster
from cowtail.impl.torch_engine.mooncake_store import MooncakeStore
from cowtail.models import lifecycle
from cowtail.models.scope import Scope
from cowtail.spec.traces import read_trace

pytestmark = pytest.mark.mooncake

SCRIPT = Path(__file__).with_name("engine_process.py")
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def master() -> Iterator[MooncakeMaster]:
    with MooncakeMaster() as started:
        yield started


def side(role: str, master: MooncakeMaster, namespace: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), role, master.address, namespace],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_tail_offloaded_at_finish_is_loaded_by_another_process_byte_for_byte(
    master: MooncakeMaster,
) -> None:
    with side("consume", master, "tail") as early:
        assert json.loads(early.communicate()[0]) == [], "nothing is there before it is produced"
    with side("produce", master, "tail") as producer:
        assert producer.stdout is not None
        produced = json.loads(producer.stdout.readline())
        with side("consume", master, "tail") as consumer:
            consumed = json.loads(consumer.communicate()[0])
        producer.communicate("leave\n")
    assert consumed == produced
    assert [early.returncode, producer.returncode, consumer.returncode] == [0, 0, 0]
    tail = [entry for entry in consumed if entry["prefix"] == "abcdefghij"]
    assert [(each["rank"], each["group"], each["contents"]) for each in tail] == [
        (rank, group, contents)
        for rank in (0, 1)
        for group, contents in [(0, ["abcdefghi", "abcdefghij"]), (1, ["abcdefghij"])]
    ]
    assert len({entry["sha256"] for entry in consumed}) == len(consumed), "ranks' shards differ"


@attrs.frozen(kw_only=True)
class OverMooncake(TorchTarget):
    """The torch engine, every session over a store of its own at ``master``."""

    master: MooncakeMaster
    namespace: str

    def open(self, scope: Scope) -> TorchSession:
        store = MooncakeStore(self.master.address, namespace=self.namespace)
        return SessionOverMooncake(store, TorchEngine(scope, store=store))


class SessionOverMooncake(TorchSession):
    def __init__(self, store: MooncakeStore, engine: TorchEngine) -> None:
        super().__init__(engine)
        self._store = store

    def close(self) -> None:
        super().close()
        self._store.close()


@pytest.mark.parametrize("trace", sorted(GOLDEN.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_engine_over_a_real_store_keeps_in_lockstep_with_the_model(
    trace: Path, master: MooncakeMaster
) -> None:
    story = read_trace(trace)
    target = OverMooncake(master=master, namespace=trace.stem)
    with Lockstep(story.scope, target) as pair:
        for action in story.actions:
            pair.perform(action)
        assert lifecycle.is_quiescent(story.scope, pair.state)
