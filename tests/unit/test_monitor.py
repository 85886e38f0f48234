"""Checking logs: good ones hold, each property has a broken one, bad input is one clear line."""

import gzip
import importlib.util
import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from cowtail.harness.check import check_log
from cowtail.harness.online import MonitorViolation, OnlineMonitor
from cowtail.spec.exploration import Verdict
from cowtail.spec.monitor.events import EVENTS
from cowtail.spec.monitor.monitor import PROPERTIES, Monitor
from cowtail.spec.monitor.reading import SHAPES, LogError
from cowtail.spec.monitor.reference import PAGE, page

LOGS = Path(__file__).parent.parent / "logs"
GOOD = sorted((LOGS / "good").glob("*.jsonl"))
BROKEN = {prop.identifier: LOGS / "broken" / f"{prop.identifier}.jsonl" for prop in PROPERTIES}


def _edits() -> Any:
    spec = importlib.util.spec_from_file_location("edits", LOGS / "edits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["edits"] = module
    spec.loader.exec_module(module)
    return module


EDITS = _edits()


def lines_of(name: str) -> list[str]:
    return (LOGS / "good" / f"{name}.jsonl").read_text().splitlines()


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_good_logs_hold(path: Path) -> None:
    checked = check_log(str(path))
    assert checked.verdict is Verdict.HOLDS, checked
    assert checked.lines == len(path.read_text().splitlines())
    assert checked.steps
    assert checked.requests


@pytest.mark.parametrize("identifier", BROKEN)
def test_every_property_has_a_log_that_breaks_it_and_nothing_before(identifier: str) -> None:
    checked = check_log(str(BROKEN[identifier]))
    assert checked.violation is not None
    assert checked.violation.prop.identifier == identifier
    assert checked.context[-1].startswith(f"> {checked.violation.line}: ")


def test_no_broken_log_is_of_no_property() -> None:
    assert {path.stem for path in (LOGS / "broken").glob("*")} == set(BROKEN)


@pytest.mark.parametrize("identifier", EDITS.EDITS)
def test_edited_logs_are_good_ones_with_one_line_edited(identifier: str) -> None:
    assert BROKEN[identifier].read_text() == EDITS.edited(EDITS.EDITS[identifier])


def test_identifiers_differ_and_sentences_are_whole() -> None:
    assert len({prop.identifier for prop in PROPERTIES}) == len(PROPERTIES)
    for prop in PROPERTIES:
        assert prop.sentence.endswith("."), prop
        assert prop.source, prop


def test_every_event_is_in_a_sample_or_ends_a_log_early() -> None:
    seen = {json.loads(line)["event"] for path in GOOD for line in path.open()}
    assert {kind.event for kind in EVENTS} - seen == {"raised", "truncated", "failed"}


def test_every_field_has_a_shape_and_says_what_it_is() -> None:
    for kind in EVENTS:
        for field in attrs.fields(kind):
            assert field.metadata["shape"] in SHAPES
            assert field.metadata["doc"]


class TestUndetermined:
    """Exit code 3: what the log does not say."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "log.jsonl"

    def undetermined(self, log: Path) -> str:
        checked = check_log(str(log))
        assert checked.verdict is Verdict.UNDETERMINED
        return checked.why

    def test_ends_before_rest(self, log: Path) -> None:
        log.write_text("\n".join(lines_of("tail_by_copy")[:24]) + "\n")
        assert self.undetermined(log) == (
            "the log ends before the engine is at rest: 1 live requests, "
            "1 jobs that ranks have yet to report"
        )

    def test_ends_in_the_middle_of_a_line(self, log: Path) -> None:
        log.write_text("\n".join(lines_of("tail_by_copy"))[:-8])
        assert "in the middle of line 62" in self.undetermined(log)

    def test_was_truncated(self, log: Path) -> None:
        last = '{"event":"truncated","max_bytes":70000}\n'
        log.write_text("\n".join(lines_of("tail_by_copy")[:-1]) + "\n" + last)
        assert self.undetermined(log) == "the log was cut off at 70000 bytes"

    def test_recorder_failed(self, log: Path) -> None:
        last = '{"event":"failed","error":"KeyError in note (pool.py:3)"}\n'
        log.write_text("\n".join(lines_of("tail_by_copy")[:-1]) + "\n" + last)
        assert "switched itself off: KeyError in note" in self.undetermined(log)

    def test_unknown_format(self, log: Path) -> None:
        log.write_text('{"event":"log","format":2,"whatever":1}\n')
        assert self.undetermined(log) == "the log has format 2; this is cowtail for format 1"

    def test_connector_that_is_not_followed(self, log: Path) -> None:
        header, *rest = lines_of("tail_by_copy")
        header = header.replace("MooncakeStoreScheduler", "OtherScheduler")
        log.write_text("\n".join([header, *rest]) + "\n")
        assert "OtherScheduler" in self.undetermined(log)


class TestMalformed:
    """Exit code 2: the line, and what was expected."""

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            ("", "line 2: expected one JSON object"),
            ("[1]", "line 2: expected one JSON object, got [1]"),
            ('{"event":"fre"}', 'line 2: "event" must be one of log, submit, '),
            ('{"event":"free"}', 'line 2: free needs "blocks", a list of integers'),
            ('{"event":"free","blocks":[true]}', '"blocks" of free must be a list of integers'),
            ('{"event":"free","blocks":[],"x":1}', "line 2: free has no field x"),
            ('{"event":"free","blocks":[64]}', "line 2: block 64 is none of the 64 of the pool"),
            ('{"event":"preempt","request":0}', "line 2: request 0 was never submitted, or is"),
            ('{"event":"update","step":0}', "line 2: step 0 is not in flight"),
            ('{"event":"release","job":0,"connector":0}', "line 2: job 0 has no pin to release"),
        ],
    )
    def test_line(self, line: str, complaint: str) -> None:
        monitor = Monitor(lines_of("tail_by_copy")[0])
        with pytest.raises(LogError, match=re.escape(complaint)):
            monitor.feed(line + "\n")

    def test_no_header(self) -> None:
        with pytest.raises(LogError, match='line 1: a log begins with "event": "log"'):
            Monitor('{"event":"free","blocks":[]}')

    def test_empty(self, tmp_path: Path) -> None:
        (tmp_path / "log").touch()
        with pytest.raises(LogError, match="empty: a log begins with its header"):
            check_log(str(tmp_path / "log"))

    def test_nothing_follows_the_end(self) -> None:
        monitor = Monitor(lines_of("tail_by_copy")[0])
        monitor.feed('{"event":"end"}')
        with pytest.raises(LogError, match="line 3: nothing may follow end"):
            monitor.feed('{"event":"end"}')


def a_long_log(num_requests: int) -> Iterator[str]:
    """Yield the lines of a log in which the same request comes again and again."""
    header, *lines = lines_of("tail_by_copy")
    yield header
    events = [json.loads(line) for line in lines[:-1]]
    for number in range(num_requests):
        for event in events:
            shifted = dict(event)
            if "request" in shifted:
                shifted["request"] = number
            if "job" in shifted:
                shifted["job"] += 2 * number
            if "step" in shifted:
                shifted["step"] += 6 * number
                for field in ("requests", "finished"):
                    if field in shifted:
                        shifted[field] = [number] * len(shifted[field])
            yield json.dumps(shifted)


def test_memory_does_not_grow_with_the_log() -> None:
    lines = a_long_log(600)
    monitor = Monitor(next(lines))
    peaks = []
    tracemalloc.start()
    try:
        for index, line in enumerate(lines):
            assert monitor.feed(line) is None
            if index in (6_000, 35_000):
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    assert monitor.why_undetermined is None
    assert monitor.lines > 36_000
    early, late = peaks
    assert late - early < 20_000, peaks


class TestOnline:
    """The monitor inside the process."""

    class Logger:
        def __init__(self) -> None:
            self.said: list[str] = []

        def error(self, form: str, *values: object) -> None:
            self.said.append(form % values)

    def test_logs_once_and_goes_on(self) -> None:
        logger = self.Logger()
        online = OnlineMonitor(logger, raises=False)  # type: ignore[arg-type]
        lines = BROKEN["S9.take"].read_text().splitlines()
        for line in lines:
            assert online.watch([line]) is None
        (said,) = logger.said
        assert said.startswith("cowtail: line 16: S9.take (no reuse while pinned): block 1 ")
        assert '> 16: {"event": "allocate", "blocks": [1]}' in said

    def test_raises_once(self) -> None:
        online = OnlineMonitor(self.Logger(), raises=True)  # type: ignore[arg-type]
        lines = BROKEN["S9.take"].read_text().splitlines()
        raised = online.watch(lines)
        assert isinstance(raised, MonitorViolation)
        assert online.watch(lines) is None


class TestCommand:
    """``cowtail check``."""

    def run(self, *words: str, stdin: bytes = b"") -> tuple[int, str]:
        command = [sys.executable, "-m", "cowtail", "check", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        return done.returncode, (done.stdout + done.stderr).decode()

    def test_holds(self, tmp_path: Path) -> None:
        packed = tmp_path / "log.jsonl.gz"
        packed.write_bytes(gzip.compress(GOOD[0].read_bytes()))
        code, said = self.run(str(packed))
        assert code == 0
        assert said.endswith("requests: holds\n")

    def test_violated_on_standard_input(self) -> None:
        code, said = self.run("-", stdin=BROKEN["S9"].read_bytes())
        assert code == 1
        assert "S9, pins last until every rank has reported: the pin of job 0 on [3, 1, 2]" in said
        assert "first violated at line 17" in said
        assert '> 17: {"event":"release","job":0,"connector":0}' in said
        assert '  11: {"event":"emit","job":0,"connector":0}' in said

    def test_unreadable(self, tmp_path: Path) -> None:
        code, said = self.run(str(tmp_path / "none.jsonl"))
        assert code == 2
        assert said.count("\n") == 1
        assert "cannot be read" in said

    def test_not_a_log(self, tmp_path: Path) -> None:
        for name, content in (("a.gz", b"plain"), ("b", b"\xff\xfe"), ("c", b"")):
            (tmp_path / name).write_bytes(content)
            code, said = self.run(str(tmp_path / name))
            assert code == 2, (name, said)
            assert said.count("\n") == 1, said

    def test_undetermined(self, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        log.write_text("\n".join(lines_of("tail_by_copy")[:20]) + "\n")
        code, said = self.run(str(log))
        assert code == 3
        assert "undetermined: the log ends before the engine is at rest" in said


def test_the_reference_page_is_in_step() -> None:
    written = LOGS.parent.parent / "docs" / "reference" / PAGE
    assert written.read_text() == page()
