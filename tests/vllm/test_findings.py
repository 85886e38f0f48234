"""What a finding leaves behind: a driver that sees what we see, tests that stand alone, a story."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from cowtail.harness.findings.emitted_test import DRIVER, NotEmitted, driver_settings
from cowtail.harness.findings.folder import PYTEST_INI, write_finding_folder
from cowtail.harness.findings.other_releases import SHOWN
from cowtail.harness.findings.page import facts_of, kept_folders
from cowtail.harness.findings.places import located, places_of
from cowtail.harness.findings.story import tell
from cowtail.harness.findings.trace import VllmTrace, read_vllm_trace
from cowtail.impl.vllm_engine.causes import Finding
from cowtail.impl.vllm_engine.config import EngineConfig, RunLoad
from cowtail.impl.vllm_engine.failures import Failure, attempt
from cowtail.impl.vllm_engine.fuzz import run_numbered_episode
from cowtail.impl.vllm_engine.launch import output_in_release, runnable_releases
from cowtail.impl.vllm_engine.ledger import Ledger
from cowtail.impl.vllm_engine.releases import DEFAULT_RELEASE, RELEASES, installed_release
from cowtail.impl.vllm_engine.session import Session
from cowtail.models.actions import Action, Execute, SchedulePass, Submit
from cowtail.models.scope import RequestSpec

pytestmark = pytest.mark.vllm

CHAINED = EngineConfig(
    requests=(
        RequestSpec("a", "xxxxx"),
        RequestSpec("b", "xxxxx" + "y" * 12 + "z" * 16),
        RequestSpec("c", "xxxxx" + "y" * 12),
    )
)
RETRYING = EngineConfig(
    requests=(RequestSpec("a", "x" * 41),),
    stored=(RequestSpec("stored", "x" * 41),),
    num_blocks=8,
    recompute_failed_loads=True,
)
RETRIED = (Submit("a"), SchedulePass(), RunLoad(0, failed=True))
SUBMITTED = (Submit("a"), Submit("b"), Submit("c"))


@pytest.fixture(scope="module")
def driver() -> Any:
    return importlib.import_module("cowtail.impl.vllm_engine.emitted.vllm_driver")


def chained() -> Finding:
    failure = attempt(CHAINED, SUBMITTED).failure
    assert failure is not None
    return Finding("0.32.0", failure, failure, times=3, minimal=True)


def engine_of(driver: Any, config: EngineConfig) -> Any:
    def request(spec: RequestSpec) -> Any:
        return driver.Request(spec.name, spec.prompt, spec.max_tokens, spec.output, spec.priority)

    given = driver_settings(VllmTrace(config, ()))
    settings = {name: getattr(value, "value", value) for name, value in given.items()}
    for name in ("requests", "stored"):
        settings[name] = [request(spec) for spec in getattr(config, name)]
    return driver.Engine(**settings)


def words_of(action: Action) -> tuple[str, ...]:
    values = (getattr(action, field.name) for field in attrs.fields(type(action)))
    return tuple(str(getattr(value, "value", value)) for value in values)


def observed(session: Session) -> dict[str, Any]:
    scheduled = session.steps[-1].scheduled if session.steps else None
    return {
        "references": session.view.references(),
        "free": session.view.free_list(),
        "keys": set(session.view.key_map()),
        "tables": {name: session.view.tables(name) for name in session.requests},
        "scheduled": dict(scheduled.num_scheduled_tokens) if scheduled else None,
        "jobs": {job: (list(o.blocks), o.ranks) for job, o in session.ledger.jobs.items()},
        "at rest": session.is_quiescent,
    }


def observed_by_driver(engine: Any) -> dict[str, Any]:
    scheduled = engine.steps[-1].scheduled if engine.steps else None
    return {
        "references": {block.block_id: block.ref_cnt for block in engine.pool.blocks[1:]},
        "free": [b.block_id for b in engine.pool.free_block_queue.get_all_free_blocks()],
        "keys": set(engine.key_map()),
        "tables": {name: engine.tables(name) for name in engine.requests},
        "scheduled": dict(scheduled.num_scheduled_tokens) if scheduled else None,
        "jobs": {job: (owed.blocks, owed.ranks) for job, owed in engine.jobs.items()},
        "at rest": engine.is_at_rest,
    }


def plain(page: Any) -> Any:
    return list(page) if isinstance(page, tuple) else page


def test_the_driver_of_emitted_tests_sees_what_the_session_sees(driver: Any) -> None:
    """Action by action, in episodes that use all that the driver has; no property fails in them."""
    compared = 0
    for episode in range(80):  # how many of them fail, and are left out, depends on the release
        if compared > 1500:
            break
        drawn, failure = run_numbered_episode(seed=11, number=episode)
        if failure is not None:
            continue
        try:
            engine = engine_of(driver, drawn.config)
        except NotEmitted:
            continue
        session = Session(drawn.config)
        for action in drawn.actions:
            words = words_of(action)[: 2 if action.name == "report" else None]
            assert engine.is_possible(action.name, *words), (episode, action)
            session.do(action)
            for watched in ("S1", "S2", "S3", "S7", "S8", "S9", "S10", "V5", "V6"):
                engine.watching = watched
                engine.check()
            getattr(engine, f"_{action.name}")(*words)
            assert observed_by_driver(engine) == observed(session), (episode, action)
            compared += 1
        assert engine.store == {key: plain(page) for key, page in session.store.values.items()}
        assert engine.is_at_rest
        assert not engine.leftovers()
    assert compared > 1500


def test_an_emitted_test_needs_nothing_but_pytest_and_vllm(tmp_path: Path) -> None:
    facts = write_finding_folder(tmp_path / "findings" / "001", chained())
    assert facts["why_no_test"] is None
    (tmp_path / "findings" / "pytest.ini").write_text(PYTEST_INI)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "findings"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert "Violation: V5: c reads wrong KV" in run.stdout
    assert "cowtail" not in (tmp_path / "findings" / "001" / DRIVER).read_text()
    lines = (tmp_path / "findings" / "001" / "test_finding.py").read_text().splitlines()
    assert len(lines) <= 60
    assert not [line for line in lines if "import" in line and "cowtail" in line]


def test_the_driver_passes_where_nothing_is_wrong(driver: Any) -> None:
    engine = engine_of(driver, attrs.evolve(CHAINED, requests=CHAINED.requests[:2]))
    engine.run("submit(a) submit(b)", watching="V5")
    engine = engine_of(driver, CHAINED)
    with pytest.raises(driver.Violation, match=r"^V5: c reads wrong KV"):
        engine.run("submit(a) submit(b) submit(c)", watching="V5")


PROMISED = {
    # (property, prompt tokens, EAGLE): the releases on which a later request misses the boundary
    ("L6", 44, False): {"0.29.0"},
    ("R23", 52, True): {"0.29.0", "0.30.0", "0.31.0"},
    ("R29", 44, False): {"0.29.0", "0.30.0", "0.31.0"},
    ("L6", 45, False): set(),
}


@pytest.mark.parametrize(("watching", "num_tokens", "eagle"), PROMISED)
def test_the_driver_sees_what_a_producer_owes_to_later_requests(
    driver: Any, watching: str, num_tokens: int, eagle: bool
) -> None:
    request = driver.Request("p", "x" * num_tokens)
    engine = driver.Engine(requests=[request], role="producer", eagle=eagle)
    if installed_release().version in PROMISED[watching, num_tokens, eagle]:
        with pytest.raises(driver.Violation, match=f"^{watching}: of {num_tokens} prompt tokens"):
            engine.run("submit(p)", watching=watching)
    else:
        engine.run("submit(p)", watching=watching)
    engine = driver.Engine(requests=[request], role="producer", eagle=eagle)
    engine.run("submit(p) schedule_pass() abort(p)", watching=watching)


def test_a_trace_is_read_back_and_fails_again(tmp_path: Path) -> None:
    finding = chained()
    write_finding_folder(tmp_path, finding)
    trace = read_vllm_trace(tmp_path / "trace.jsonl")
    again = attempt(trace.config, trace.actions).failure
    assert again is not None
    assert (again.identifier, again.reason, again.known) == (
        trace.property,
        trace.reason,
        trace.known,
    )


def test_a_report_tells_what_happened_to_what_and_where(tmp_path: Path) -> None:
    write_finding_folder(tmp_path, chained(), {"0.33.0": "does not show it"})
    report = (tmp_path / "report.md").read_text()
    assert "copy block 2 to 5" in report
    assert "=> V5: c reads wrong KV" in report
    assert "block 5: 2 references" in report
    assert "`MambaManager.get_num_blocks_to_allocate` (vllm/v1/core/single_type" in report
    assert "- 0.33.0: does not show it" in report


def test_a_story_of_a_trace_that_holds_ends_without_a_violation() -> None:
    story = tell(VllmTrace(attrs.evolve(CHAINED, requests=CHAINED.requests[:1]), SUBMITTED[:1]))
    assert story.violation is None
    assert any("a is finished" in line for line in story.lines)


def test_where_a_new_finding_goes_wrong_is_what_no_shorter_trace_executes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cowtail.impl.vllm_engine.failures.known_finding", lambda *_: None)
    failure = attempt(RETRYING, RETRIED).failure
    assert failure is not None
    assert failure.known is None
    first, *_ = places_of(VllmTrace(failure.config, failure.actions))
    assert "vllm/v1/core/sched/scheduler.py:" in first
    assert "lines that run only here" in first


def test_a_function_is_located_in_the_installed_release() -> None:
    place = located("Scheduler._preempt_request")
    assert place is not None
    assert place.startswith("`Scheduler._preempt_request` (vllm/v1/core/sched/scheduler.py:")
    assert located("copy_kv_cache_blocks_inplace") is None or "worker" in str(
        located("copy_kv_cache_blocks_inplace")
    )
    assert located("Scheduler.no_such_method") is None


def test_failures_of_one_signature_are_told_apart_by_what_they_need() -> None:
    failure = chained().failure
    assert isinstance(failure, Failure)
    assert failure.signature.place == "copies of one step are chained"
    assert attrs.evolve(failure, known=None).signature.place == (
        "R reads wrong KV on rank N: slot N of block N"
    )


def test_the_shortest_race_really_corrupts_what_a_request_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V6 is about an order; here is one in which the request goes on from another's bytes."""
    monkeypatch.setattr(Ledger, "note_loads", lambda ledger, scheduled, in_flight: None)
    folder = Path(__file__).parent / "findings" / "producer-load-races-the-device"
    trace = read_vllm_trace(folder / "trace.jsonl")
    loaded = (SchedulePass(), RunLoad(0), Execute())
    failure = attempt(trace.config, (*trace.actions[:-1], *loaded)).failure
    assert failure is not None
    assert failure.identifier == "V5"
    assert failure.reason.startswith("b reads wrong KV on rank 0")


OTHERS = tuple(release.version for release in RELEASES if release.version != DEFAULT_RELEASE)


@pytest.mark.parametrize("release", OTHERS)
def test_on_another_release_driver_and_kept_findings_are_the_same(release: str) -> None:
    """What each finding.json says of the release holds there, by its own emitted test."""
    if release not in runnable_releases():
        pytest.skip(f"vLLM {release} is not in the cache: cowtail vllm fetch {release}")
    words = ["-m", "pytest", "-v", "-m", "vllm", "-k", "the_driver or test_finding.py"]
    here = Path(__file__)
    output = output_in_release(release, [*words, str(here), str(here.parent / "findings")])
    kept = kept_folders(here.parents[2])
    shown = sum(facts_of(folder)["releases"][release] == SHOWN for folder in kept)
    assert f"{shown} xfailed" in output
