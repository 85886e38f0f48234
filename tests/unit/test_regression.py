"""The regression test that a finding leaves is small, runs, and fails with the fault only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cowtail.harness import ModelTarget
from cowtail.harness.fuzz import fuzz
from cowtail.harness.reducer import reduce
from cowtail.harness.regression import MAX_LINES, Regression, regression
from cowtail.spec.traces import dump_trace, parse_trace

RULE = "retired_jobs_forgotten"


@pytest.fixture(scope="module")
def kept() -> Regression:
    target = ModelTarget((RULE,))
    finding = fuzz(target, seed=1, max_examples=400).finding
    assert finding is not None
    reduced = reduce(finding.scope, finding.actions, target)
    return regression(
        reduced.scope,
        reduced.actions,
        reduced.divergence,
        target="model",
        faults=(RULE,),
        found_by=f"cowtail fuzz --target model --fault {RULE} --seed 1",
        seed=1,
    )


def _pytest(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name],
        cwd=path.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_fails_with_the_fault_and_passes_without(kept: Regression, tmp_path: Path) -> None:
    path = tmp_path / "test_kept.py"
    path.write_text(kept.test)
    with_fault = _pytest(path)
    assert with_fault.returncode == 1, with_fault.stdout
    assert "Divergence at action" in with_fault.stdout
    without = _pytest(path, COWTAIL_FAULTS="")
    assert without.returncode == 0, without.stdout


def test_it_is_small_enough_to_be_read(kept: Regression) -> None:
    assert len(kept.test.splitlines()) <= MAX_LINES
    assert max(map(len, kept.test.splitlines())) <= 100


def test_its_trace_says_where_it_comes_from(kept: Regression) -> None:
    trace = parse_trace(dump_trace(kept.trace))
    assert trace == kept.trace
    assert (trace.target, trace.faults, trace.seed) == ("model", (RULE,), 1)
    assert "Found by `cowtail fuzz --target model" in trace.note


def test_a_target_that_no_test_can_start_is_refused(kept: Regression) -> None:
    finding = fuzz(ModelTarget((RULE,)), seed=1, max_examples=400).finding
    assert finding is not None
    with pytest.raises(ValueError, match="'vllm': use one of torch, model"):
        regression(
            finding.scope,
            finding.actions,
            finding.divergence,
            target="vllm",
            faults=(),
            found_by="",
        )
