"""Record the sample logs on the installed vLLM: python tests/logs/record.py

Writes ``good/`` and those logs of ``broken/`` that the release, or a fault planted here, breaks
by itself; ``edits.py`` writes the others. Small engines: two or three ranks, blocks of 16 tokens,
hash units of 4.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from cowtail import vllm_plugin
from cowtail.impl.vllm_engine import session as driver
from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.session import Session
from cowtail.impl.vllm_recorder.recorder import Recorder
from cowtail.models.actions import (
    Abort,
    Execute,
    Report,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role

HERE = Path(__file__).parent
TEXT = "the quick brown fox jumps over the lazy dog, and then it jumps back again"
STEP = (SchedulePass(), Execute(), UpdateFromOutput())


def tail_by_copy() -> Session:
    """A producer's tail is handed off by the copy; the cache is reset, in vain and for good."""
    config = EngineConfig(requests=(RequestSpec("p", TEXT[:44], max_tokens=3),))
    session = Session(config)
    session.do_all(Submit("p"), *STEP)
    session.scheduler.reset_prefix_cache()
    session.drain()
    session.scheduler.reset_prefix_cache()
    return session


def tail_at_finish() -> Session:
    """A request is aborted exactly at its boundary: its tail is handed off at finish."""
    session = Session(EngineConfig(requests=(RequestSpec("p", TEXT[:45]),), role=Role.PRODUCER))
    session.do(Submit("p"))
    while not session.view.has_marker("p"):
        session.do_all(*STEP)
    session.do(Abort("p"))
    session.drain()
    return session


def load_and_copy() -> Session:
    """Two steps in flight: a request loads from the store, and two copy what they hit."""
    requests = tuple(RequestSpec(name, TEXT[:44], max_tokens=4) for name in "abc")
    stored = (RequestSpec("stored", TEXT[:44]),)
    session = Session(
        EngineConfig(requests=requests, stored=stored, num_blocks=24, max_steps_in_flight=2)
    )
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), Submit("c"))
    session.drain()
    return session


def preempted() -> Session:
    """A pool that is too small for two: one is preempted, and blocks lose their keys."""
    requests = (RequestSpec("a", TEXT[:30], max_tokens=18), RequestSpec("b", TEXT[20:50], 18))
    session = Session(EngineConfig(requests=requests, num_blocks=9))
    session.do_all(Submit("a"), Submit("b"))
    session.drain()
    assert session.statistics["preemptions"]
    return session


def load_races() -> Session:
    """0.32.0: a producer's load is ordered into the source of a copy in flight (V6)."""
    stored = "x" * 40
    names = {"a": TEXT[:30], "b": TEXT[:30], "c": stored}
    config = EngineConfig(
        requests=tuple(RequestSpec(name, text) for name, text in names.items()),
        stored=(RequestSpec("stored", stored),),
        num_blocks=8,
        max_steps_in_flight=2,
        role=Role.PRODUCER,
    )
    session = Session(config)
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), SchedulePass(), Submit("c"), SchedulePass())
    return session


def copies_are_chained() -> Session:
    """0.32.0: one step copies into a block and out of it (S6.chain)."""
    names = {"a": TEXT[:4] + "::", "b": TEXT[:13], "c": TEXT[:8] + "::"}
    requests = tuple(RequestSpec(name, text) for name, text in names.items())
    session = Session(EngineConfig(requests=requests, attention_block_size=8))
    session.do(Submit("a"))
    session.drain()
    session.do_all(Submit("b"), Submit("c"), SchedulePass())
    return session


def blocks_leak() -> Session:
    """Planted: a request that finishes keeps its blocks (L2)."""
    session = Session(EngineConfig(requests=(RequestSpec("p", TEXT[:12]),)))
    session.do_all(Submit("p"))
    with mock.patch.object(session.scheduler.kv_cache_manager, "free"):
        session.drain()
    return session


def pin_after_first_rank() -> Session:
    """Planted: the connector believes that there is one rank only (S9)."""
    session = Session(EngineConfig(requests=(RequestSpec("p", TEXT[:44]),)))
    session.scheduler.connector.connector_scheduler._num_workers = 1
    with mock.patch.object(driver, "check"):
        session.do_all(Submit("p"), SchedulePass(), Execute(), RunJob(0), Report(0, 0))
        session.do(UpdateConnectorOutput())
    return session


def pass_raises() -> Session:
    """Planted: a pass ends with an exception (A)."""
    session = Session(EngineConfig(requests=(RequestSpec("p", TEXT[:12]),)))
    session.do(Submit("p"))
    with mock.patch.object(
        session.scheduler.connector, "build_connector_meta", side_effect=KeyError
    ):
        session.do(SchedulePass())
    return session


GOOD = (tail_by_copy, tail_at_finish, load_and_copy, preempted)
BROKEN = {
    "V6": load_races,
    "S6.chain": copies_are_chained,
    "L2": blocks_leak,
    "S9": pin_after_first_rank,
    "A": pass_raises,
}
"""By the property that the log breaks."""


def record(story: Callable[[], Session], path: Path) -> None:
    """Run a story and keep the log of its last engine."""
    recorders: list[Recorder] = []

    def build(config: EngineConfig) -> Any:
        built = real_build(config)
        recorder = vllm_plugin.record(built.scheduler)
        assert recorder is not None
        recorders.append(recorder)
        return built

    real_build = driver.build
    with tempfile.TemporaryDirectory() as folder:
        wanted = {vllm_plugin.LOG: f"{folder}/log"}
        with (
            mock.patch.dict(os.environ, wanted),
            mock.patch.object(driver, "build", build),
            contextlib.suppress(Violation),
        ):
            story()
        for recorder in recorders:
            recorder.close()
        file = recorders[-1].file
        assert file is not None
        path.write_text(file.path.read_text())


def main() -> None:
    """Write all of them."""
    for story in GOOD:
        record(story, HERE / "good" / f"{story.__name__}.jsonl")
    for identifier, story in BROKEN.items():
        record(story, HERE / "broken" / f"{identifier}.jsonl")


if __name__ == "__main__":
    main()
