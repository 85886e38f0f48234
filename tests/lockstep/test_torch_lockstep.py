"""The torch engine in lockstep with the model: every edge of small scopes, and a short fuzz."""

from __future__ import annotations

import os

import attrs
import pytest

from cowtail.harness import TorchTarget
from cowtail.harness.fuzz import fuzz
from cowtail.harness.tours import tour
from cowtail.models.scope import Role, Scope
from cowtail.spec.scopes import SCOPES, scope_named


def _smaller(name: str, **changes: object) -> Scope:
    return attrs.evolve(scope_named(name), **changes)  # type: ignore[arg-type]


SMALL = (
    _smaller("lone_producer", num_ranks=1, max_failed_jobs=0, max_repeated_reports=0),
    _smaller("cow_decode", num_ranks=1, may_abort=()),
    _smaller("shared_prefix", may_abort=(), role=Role.CONSUMER),
    _smaller("unequal_blocks", num_ranks=1, max_preemptions=0, max_failed_jobs=0, may_abort=()),
)


@pytest.mark.parametrize("scope", SMALL, ids=lambda scope: scope.name)
def test_every_edge_of_a_small_scope_agrees(scope: Scope) -> None:
    report = tour(scope, TorchTarget())
    print(report.summary())
    assert report.finding is None, report.finding.divergence.explain()
    assert report.complete


@pytest.mark.slow
@pytest.mark.skipif("COWTAIL_SLOW" not in os.environ, reason="minutes: set COWTAIL_SLOW to run it")
@pytest.mark.parametrize("name", SCOPES)
def test_every_edge_of_a_named_scope_agrees(name: str) -> None:
    report = tour(SCOPES[name], TorchTarget())
    print(report.summary())
    assert report.finding is None, report.finding.divergence.explain()
    assert report.complete


def test_a_short_fuzz_agrees_and_does_nearly_everything() -> None:
    report = fuzz(TorchTarget(), seed=1, max_examples=40)
    assert report.finding is None, report.finding.divergence.explain()
    required = len(report.required_actions) + len(report.required_events)
    assert len(report.missing) < required / 4
    assert set(report.action_counts) >= {"run_load", "evict", "reset", "finish_send", "abort"}
