"""Tests marked ``mooncake`` use a real store; where it cannot run they are skipped, saying why."""

from __future__ import annotations

import pytest

from cowtail.impl.torch_engine.mooncake_master import only_loopback, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if reason and item.get_closest_marker("mooncake"):
            item.add_marker(pytest.mark.skip(reason=f"Mooncake: {reason}"))


def pytest_report_header() -> str:
    reason = why_not()
    if reason:
        return f"mooncake: {reason}"
    where = (
        "alone in a loopback-only network namespace" if only_loopback() else "on a shared network"
    )
    return f"mooncake: {where}"
