"""Issue 4: defects that upstream has fixed are found where they were, and have names.

Run as a program it prints, as JSON, what each trace comes to on the release that is imported.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cowtail.impl.vllm_engine.checks import Violation
from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.failures import attempt
from cowtail.impl.vllm_engine.fixed_upstream import FIXED_UPSTREAM
from cowtail.impl.vllm_engine.launch import output_in_release, runnable_releases
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import (
    Action,
    Execute,
    RunJob,
    SchedulePass,
    Submit,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec

pytestmark = pytest.mark.vllm

PASS, RUN, OUTPUT = SchedulePass(), Execute(), UpdateFromOutput()


def one(length: int, max_tokens: int = 1, **changes: object) -> EngineConfig:
    request = RequestSpec("a", "x" * length, max_tokens=max_tokens)
    return EngineConfig(requests=(request,), num_ranks=1, **changes)  # type: ignore[arg-type]


LOADING = one(5, stored=(RequestSpec("stored", "x" * 5),))

TRACES: dict[str, tuple[EngineConfig, tuple[Action, ...]]] = {
    "L6: tail lost at finish": (one(8), (Submit("a"),)),
    "R23: EAGLE proof not stored": (one(9, eagle=True), (Submit("a"),)),
    "R29: hash unit lost on resend": (one(32, retention_interval=None), (Submit("a"),)),
    "L6: hash unit lost on resend": (one(16), (Submit("a"),)),
    "L6: state stored without its attention": (one(17, attention_block_size=32), (Submit("a"),)),
    "S9: half of a finished tail is pinned": (one(8), (Submit("a"),)),
    "S3: tail registered under a step in flight": (
        one(4, 2, max_steps_in_flight=2),
        (Submit("a"), PASS, PASS),
    ),
    "S10: tail registered under a step in flight": (
        one(4, 3, max_steps_in_flight=2),
        (Submit("a"), PASS, PASS, RUN, OUTPUT, PASS),
    ),
    "A: failed load with several groups": (LOADING, (Submit("a"), PASS, RunLoad(0, failed=True))),
}
"""The shortest traces, by what they show; afterwards everything runs to rest."""


def shown() -> dict[str, str]:
    """Return what each trace comes to: property and name, or "" where nothing fails."""
    answers = {}
    for name, (config, actions) in TRACES.items():
        failure = attempt(config, actions).failure
        answers[name] = "" if failure is None else f"{failure.identifier}: {failure.known}"
    answers["S8 by hand"] = reused_while_it_is_read()
    return answers


def reused_while_it_is_read() -> str:
    """S9's consequence: a free attention block goes to another request before the rank reads it."""
    requests = [RequestSpec("a", "x" * 8), RequestSpec("b", "y" * 80), RequestSpec("c", "w" * 36)]
    config = EngineConfig(requests=tuple(requests), num_ranks=1, num_blocks=11)
    session = Session(config, unchecked=("S9", "L6", "R29"))
    try:
        for name in ("a", "b", "c"):
            session.do(Submit(name))
            for _ in range(8):
                if not session.requests[name].is_finished():
                    session.do_all(PASS, RUN, OUTPUT)
        while session.why_not(RunJob(0)) is None:
            session.do(RunJob(0))
    except Violation as violation:
        return violation.identifier
    return ""


def _expected(release: str) -> dict[str, str]:
    """Return what a release should answer: each trace's own name where its entry lists it."""
    listed = {
        f"{known.identifier}: {known.name}" for known in FIXED_UPSTREAM if release in known.releases
    }
    expected = {name: name if name in listed else "" for name in TRACES}
    expected["S8 by hand"] = "S8" if "S8: half of a finished tail is pinned" in listed else ""
    if expected["S9: half of a finished tail is pinned"] == "" and release == "0.29.0":
        expected["S9: half of a finished tail is pinned"] = "L6: tail lost at finish"
    if release in ("0.30.0", "0.31.0"):
        expected["L6: tail lost at finish"] = "S9: half of a finished tail is pinned"
    return expected


@pytest.mark.parametrize("release", runnable_releases())
def test_each_is_shown_by_the_releases_that_its_entry_lists_and_by_no_other(release: str) -> None:
    printed = output_in_release(release, (__file__,), timeout=300)
    assert json.loads(printed.strip().splitlines()[-1]) == _expected(release)


def test_the_page_has_every_name_its_releases_and_its_change() -> None:
    page = (Path(__file__).parents[2] / "docs/findings/fixed-upstream.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for known in FIXED_UPSTREAM:
        row = next(row for row in rows if row.casefold().startswith(f"| {known.name.casefold()} |"))
        assert all(release in row for release in known.releases)
        assert known.identifier in row
        assert known.see.removeprefix("vllm-project/vllm ") in row


if __name__ == "__main__":
    print(json.dumps(shown()))
