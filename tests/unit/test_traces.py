"""Traces stand alone, come back as they were written, and say clearly why they cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cowtail.models.actions import (
    Abort,
    Admit,
    BeginPass,
    Evict,
    FinishSend,
    JobOutcome,
    LoadOutcome,
    Report,
    Reset,
    RunJob,
    RunLoad,
    Submit,
)
from cowtail.spec.scopes import SCOPES, scope_named
from cowtail.spec.traces import (
    Trace,
    TraceError,
    dump_trace,
    model_digest,
    parse_trace,
    read_trace,
    write_trace,
)

TRACE = Trace(
    scope_named("lone_producer"),
    (
        Submit("a"),
        BeginPass(),
        Admit("a"),
        RunJob(1, JobOutcome.FAILED),
        Report(0, 3, again=True),
        RunLoad(1, LoadOutcome.FAILED),
        Evict(0, 1, "ab"),
        FinishSend(1, 0, "a"),
        Reset(store=True),
        Abort("a"),
    ),
    seed=7,
    target="torch",
    faults=("K03",),
    note="a story",
)


def _lines() -> list[str]:
    return dump_trace(TRACE).splitlines()


@pytest.mark.parametrize("name", SCOPES)
def test_every_named_scope_comes_back_from_a_header(name: str) -> None:
    trace = Trace(SCOPES[name], ())
    assert parse_trace(dump_trace(trace)) == trace


def test_actions_seed_target_faults_and_note_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.jsonl"
    write_trace(path, TRACE)
    assert read_trace(path) == TRACE
    assert [p.name for p in path.parent.iterdir()] == ["t.jsonl"]


def test_one_action_a_line_with_its_event_name() -> None:
    assert [json.loads(line).get("action") for line in _lines()[1:]] == [
        "submit",
        "begin_pass",
        "admit",
        "run_job",
        "report",
        "run_load",
        "evict",
        "finish_send",
        "reset",
        "abort",
    ]


def test_another_model_digest_is_read_without_complaint() -> None:
    text = dump_trace(TRACE).replace(model_digest(), "0" * 16)
    assert parse_trace(text).model_digest == "0" * 16


def _header(**changes: object) -> str:
    header = json.loads(_lines()[0])
    header.update(changes)
    return json.dumps(header)


def _scope(**changes: object) -> str:
    header = json.loads(_lines()[0])
    header["scope"].update(changes)
    return json.dumps(header)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "t:1: empty"),
        (['{"action": "begin_pass"}'], "t:1: .*not a header"),
        ([_header(cowtail_trace=2)], "t:1: cowtail_trace=2: this cowtail reads version 1; "),
        ([_header(cowtail_trace=True)], "t:1: cowtail_trace=True"),
        ([_header(sede=1)], "t:1: 'sede': not a header field; did you mean 'seed'?"),
        ([_header(seed="1")], "t:1: '1': must be a whole number"),
        ([_header(faults="K03")], "t:1: 'K03': must be a list"),
        ([_scope(num_blocks="6")], "t:1: '6': must be a whole number; change it @ scope.num_bloc"),
        ([_scope(num_blocks=3)], "t:1: num_blocks=3: request 'a' alone can need"),
        ([_scope(colour=3)], "t:1: unknown field 'colour'; remove it"),
        ([_scope(role="boss")], "t:1: 'boss': must be one of producer"),
        ([_lines()[0], '{"action": "admit"'], "t:2: .*not JSON"),
        ([_lines()[0], "[]"], "t:2: .*not a JSON object"),
        ([_lines()[0], "", *_lines()[1:]], "t:2: '': not JSON"),
        ([_lines()[0], '{"request": "a"}'], 't:2: .*"action" is missing'),
        ([_lines()[0], '{"action": "admitt"}'], "t:2: action 'admitt': .* did you mean 'admit'?"),
        ([_lines()[0], '{"action": "admit"}'], "t:2: 'request' is missing from admit; add it"),
        (
            [_lines()[0], '{"action": "admit", "request": "a", "rank": 1}'],
            "t:2: 'rank': not a field of admit, which has request",
        ),
        ([_lines()[0], '{"action": "admit", "request": 1}'], "t:2: 1: must be a string"),
        ([_lines()[0], '{"action": "admit", "request": "q"}'], "t:2: request 'q': not in scope"),
        ([_lines()[0], '{"action": "run_job", "rank": 2}'], "t:2: rank=2: the scope has ranks 0"),
        (
            [_lines()[0], '{"action": "run_job", "rank": 0, "outcome": "maybe"}'],
            "t:2: 'maybe': must be one of ok, failed",
        ),
    ],
)
def test_bad_input_names_line_value_and_rule(lines: list[str], complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint.replace("?", r"\?")) as caught:
        parse_trace("\n".join(lines), source="t")
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(tmp_path / "b")


def test_a_failed_write_leaves_the_old_file_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_trace(path, TRACE)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
