"""The recorder on real vLLM: what it writes holds, what it must not do it does not."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cowtail import vllm_plugin
from cowtail.harness.check import check_log
from cowtail.harness.online import MonitorViolation
from cowtail.impl.vllm_engine import promises
from cowtail.impl.vllm_engine import session as driver
from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.fuzz import run_numbered_episode
from cowtail.impl.vllm_engine.session import Session
from cowtail.impl.vllm_engine.surface import surface
from cowtail.impl.vllm_recorder.recorder import LOGGER, Recorder
from cowtail.models.actions import Execute, Report, RunJob, SchedulePass, Submit
from cowtail.models.actions import UpdateConnectorOutput as UpdateWithReports
from cowtail.models.scope import RequestSpec
from cowtail.spec.exploration import Verdict

pytestmark = pytest.mark.vllm

TEXT = "the quick brown fox jumps over the lazy dog, and then it jumps back again"
ONE = EngineConfig(requests=(RequestSpec("p", TEXT[:44], max_tokens=3),))


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Recorder]]:
    """Have the plugin loaded, as vLLM would, and recording to ``tmp_path / "log"``."""
    attached: list[Recorder] = []
    # Promises are checked by engines of their own, which would be recorded as well.
    monkeypatch.setattr(promises, "_owed", lambda session: iter(()))

    def record(scheduler: Any) -> Recorder | None:
        recorder = real_record(scheduler)
        if recorder is not None:
            attached.append(recorder)
        return recorder

    real_record = vllm_plugin.record
    monkeypatch.setattr(vllm_plugin, "record", record)
    monkeypatch.setenv(vllm_plugin.LOG, str(tmp_path / "log"))
    scheduler_class = surface().Scheduler
    monkeypatch.setattr(scheduler_class, "__init__", scheduler_class.__init__)
    vllm_plugin.register()
    yield attached
    for recorder in attached:
        recorder.close()


def run_one() -> Session:
    session = Session(ONE)
    session.do(Submit("p"))
    session.drain()
    return session


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open()]


def test_what_is_recorded_holds(recorders: list[Recorder], tmp_path: Path) -> None:
    session = run_one()
    (recorder,) = recorders
    recorder.close()
    checked = check_log(str(tmp_path / "log"))
    assert checked.verdict is Verdict.HOLDS, checked
    assert checked.steps == session.statistics[SchedulePass.name]
    header = lines_of(tmp_path / "log")[0]
    assert header["vllm"] == session.view._release.version
    assert header["pid"] == os.getpid()
    assert header["groups"] == [["full_attention", 16], ["mamba", 16]]


def test_many_episodes_hold_but_for_what_the_driver_finds_too(
    recorders: list[Recorder], tmp_path: Path
) -> None:
    steps = 0
    for number in range(40):
        recorders.clear()
        _, failure = run_numbered_episode(seed=11, number=number)
        for recorder in recorders:
            recorder.close()
        file = recorders[-1].file
        assert file is not None
        checked = check_log(str(file.path))
        steps += checked.steps
        if failure is None:
            assert checked.verdict is Verdict.HOLDS, (number, checked)
    assert steps > 300


def test_recording_changes_nothing(recorders: list[Recorder]) -> None:
    recorded, _ = run_numbered_episode(seed=7, number=3)
    for recorder in recorders:
        recorder.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_plugin, "record", lambda scheduler: None)
        plain, _ = run_numbered_episode(seed=7, number=3)
    assert recorded.actions == plain.actions
    assert recorded.store.values == plain.store.values


def test_closing_puts_every_method_back(recorders: list[Recorder]) -> None:
    kinds = (surface().Scheduler, surface().store_scheduler.MooncakeStoreScheduler)
    before = [dict(vars(kind)) for kind in kinds]
    session = Session(ONE)
    assert [dict(vars(kind)) for kind in kinds] != before
    recorders[0].close()
    assert [dict(vars(kind)) for kind in kinds] == before
    *_, states = session.scheduler.kv_cache_manager.coordinator.single_type_managers
    assert type(states._producer_partial_tail_reqs) is dict
    session.do(Submit("p"))
    session.drain()


def test_token_ids_are_not_recorded(recorders: list[Recorder], tmp_path: Path) -> None:
    config = EngineConfig(requests=(RequestSpec("p", "\u4e00\u4e01" * 20, max_tokens=2),))
    session = Session(config)
    session.do(Submit("p"))
    session.drain()
    recorders[0].close()
    text = (tmp_path / "log").read_text()
    assert str(0x4E00) not in text
    assert "\u4e00" not in text
    assert session.requests["p"].block_hashes[0].hex()[:16] not in text


class TestNeverRaises:
    """A recorder that fails switches itself off; the engine goes on."""

    def test_a_note_that_fails(
        self,
        recorders: list[Recorder],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(LOGGER, "propagate", True)
        monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
        caplog.set_level(logging.WARNING)

        def fails(self: Recorder, *_: object) -> None:
            raise ZeroDivisionError("secret")

        session = Session(ONE)
        monkeypatch.setattr(Recorder, "keys", fails)
        session.do(Submit("p"))
        session.drain()
        *_, last = lines_of(tmp_path / "log")
        assert last["event"] == "failed"
        assert last["error"].startswith("ZeroDivisionError in fails (test_recorder.py:")
        assert check_log(str(tmp_path / "log")).verdict is Verdict.UNDETERMINED
        assert not recorders[0].hooks.active

    def test_a_disk_that_is_full(
        self, recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = Session(ONE)

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("cowtail.impl.vllm_recorder.recorder.MAX_LINES", 1)
        monkeypatch.setattr("cowtail.impl.vllm_recorder.log_file.os.write", full)
        session.do(Submit("p"))
        session.drain()
        assert not recorders[0].hooks.active

    def test_a_folder_that_is_not_there(
        self, recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(vllm_plugin.LOG, str(tmp_path / "no" / "log"))
        run_one()
        assert not recorders

    def test_settings_that_make_no_sense(
        self, recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(vllm_plugin.MAX_BYTES, "12")
        run_one()
        monkeypatch.delenv(vllm_plugin.MAX_BYTES)
        monkeypatch.setenv(vllm_plugin.MONITOR, "maybe")
        run_one()
        assert not recorders


def test_a_log_is_bounded(
    recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(vllm_plugin.MAX_BYTES, str(1 << 16))
    prompts = tuple(RequestSpec(f"r{index}", TEXT[:40], max_tokens=30) for index in range(80))
    session = Session(EngineConfig(requests=prompts, num_blocks=64, token_budget=80))
    for prompt in prompts:
        session.do(Submit(prompt.name))
    session.drain()
    assert (tmp_path / "log").stat().st_size <= 1 << 16
    assert lines_of(tmp_path / "log")[-1] == {"event": "truncated", "max_bytes": 1 << 16}
    checked = check_log(str(tmp_path / "log"))
    assert checked.verdict is Verdict.UNDETERMINED, checked
    assert "cut off at 65536 bytes" in checked.why
    assert not recorders[0].hooks.active


def test_a_log_is_never_overwritten(recorders: list[Recorder], tmp_path: Path) -> None:
    run_one()
    run_one()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]


class TestMonitor:
    """COWTAIL_MONITOR, on an engine whose pins are released after the first rank."""

    def break_it(self, monkeypatch: pytest.MonkeyPatch) -> Session:
        session = Session(ONE)
        session.scheduler.connector.connector_scheduler._num_workers = 1
        monkeypatch.setattr(driver, "check", lambda session, *, aside: None)
        session.do_all(Submit("p"), SchedulePass(), Execute(), RunJob(0), Report(0, 0))
        return session

    def test_raises(
        self, recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv(vllm_plugin.LOG)
        monkeypatch.setenv(vllm_plugin.MONITOR, "raise")
        session = self.break_it(monkeypatch)
        with pytest.raises(driver.Violation) as raised:
            session.do(UpdateWithReports())
        assert isinstance(raised.value.__cause__, MonitorViolation)
        assert "S9 (pins last until every rank has reported)" in str(raised.value.__cause__)
        assert not list(tmp_path.iterdir())

    def test_logs(
        self,
        recorders: list[Recorder],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setenv(vllm_plugin.MONITOR, "log")
        said: list[str] = []
        monkeypatch.setattr(LOGGER, "error", lambda form, *values: said.append(form % values))
        session = self.break_it(monkeypatch)
        session.do(UpdateWithReports())
        assert len(said) == 1
        assert "the pin of job 0 on [3, 1, 2] is gone" in said[0]
        assert check_log(str(tmp_path / "log")).verdict is Verdict.VIOLATED

    def test_is_quiet_where_nothing_is_wrong(
        self, recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(vllm_plugin.MONITOR, "raise")
        run_one()
        assert recorders[0].hooks.active


def test_vllm_finds_the_plugin_and_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    """As vLLM does it, in a process of its own: by the entry point's name."""
    program = (
        "from importlib.metadata import EntryPoint\n"
        "from vllm.v1.core.sched.scheduler import Scheduler\n"
        "before = Scheduler.__init__\n"
        "point = EntryPoint('cowtail', 'cowtail.vllm_plugin:register', 'vllm.general_plugins')\n"
        "point.load()(); point.load()()\n"
        "print(Scheduler.__init__ is before)\n"
    )
    for wanted, untouched in (({}, "True"), ({vllm_plugin.LOG: str(tmp_path / "x")}, "False")):
        environment = {**os.environ, **wanted}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert run.stdout.splitlines()[-1:] == [untouched], run.stderr
    assert not list(tmp_path.iterdir()), "a process that builds no scheduler writes nothing"
