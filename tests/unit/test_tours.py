"""Tours take every edge, concretely, and stop at the first divergence."""

from __future__ import annotations

import attrs
import pytest

from cowtail.harness import ModelTarget, tours
from cowtail.harness.reducer import diverges
from cowtail.harness.tours import TooLarge, tour
from cowtail.models.scope import Role, Scope
from cowtail.spec.scopes import scope_named

LONE = scope_named("lone_producer")
TINY = attrs.evolve(
    LONE, name="tiny", num_ranks=1, max_failed_jobs=0, max_repeated_reports=0, max_preemptions=0
)


def test_a_tour_takes_every_edge_of_the_graph() -> None:
    report = tour(TINY, ModelTarget())
    assert report.complete
    assert report.taken == report.edges > 50
    assert report.tests < report.edges
    assert "every edge" in report.summary()


def test_equal_requests_that_change_places_are_followed_concretely() -> None:
    pair = attrs.evolve(scope_named("shared_prefix"), may_abort=(), role=Role.CONSUMER)
    assert tour(pair, ModelTarget()).complete


def test_a_tour_ends_with_the_divergence_and_the_actions_that_repeat_it() -> None:
    target = ModelTarget(("pin_released_after_first_rank",))
    report = tour(LONE, target)
    assert report.finding is not None
    assert not report.complete
    assert diverges(LONE, report.finding.actions, target) == report.finding.divergence


def test_a_tour_stops_at_its_bound_and_says_so() -> None:
    report = tour(TINY, ModelTarget(), max_steps=1)
    assert not report.complete
    assert report.finding is None
    assert "bound reached" in report.summary()


def test_a_tour_out_of_time_is_not_complete() -> None:
    report = tour(TINY, ModelTarget(), max_seconds=1e-9)
    assert (report.complete, report.finding, report.steps) == (False, None, 0)
    assert tour(TINY, ModelTarget(), max_seconds=600).complete


def test_a_scope_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tours, "MAX_STATES", 10)
    larger = attrs.evolve(TINY, name="another")  # not one whose graph is remembered
    with pytest.raises(TooLarge, match="'another' has more than 10 states"):
        tour(larger, ModelTarget())


def test_equal_runs_give_equal_reports() -> None:
    def counts(scope: Scope) -> tuple[int, int, int, int]:
        report = tour(scope, ModelTarget())
        return report.edges, report.taken, report.tests, report.steps

    assert counts(TINY) == counts(TINY)
