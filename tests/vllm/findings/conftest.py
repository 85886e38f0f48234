"""Kept findings: tests that need pytest and vLLM only, expected to fail where they are shown.

Each folder's ``finding.json`` says which releases show it. There its test must fail, as it
says; on a release that does not show it, it must pass; elsewhere it is skipped.
"""

import importlib
import json
import sys
from pathlib import Path

import pytest

from cowtail.harness.findings.other_releases import NOT_SHOWN, SHOWN
from cowtail.impl.vllm_engine import emitted
from cowtail.impl.vllm_engine.releases import VllmNotInstalled, installed_release

HERE = Path(__file__).parent

# The driver of emitted tests, which a finding's folder has beside its test, is shared here.
sys.path.insert(0, emitted.__path__[0])

try:
    RELEASE = installed_release().version
except VllmNotInstalled:
    RELEASE = ""
    collect_ignore_glob = ["*/test_finding.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect of each test what its finding says of the release that is installed."""
    if not RELEASE:
        return
    violation = importlib.import_module("vllm_driver").Violation
    for item in items:
        if HERE not in item.path.parents or item.path.name != "test_finding.py":
            continue
        item.add_marker(pytest.mark.vllm)
        facts = json.loads((item.path.parent / "finding.json").read_text("utf-8"))
        what = facts["releases"].get(RELEASE, "not run")
        if what == SHOWN:
            raises = Exception if facts["property"] == "A" else violation
            reason = facts["reason"]
            item.add_marker(pytest.mark.xfail(raises=raises, strict=True, reason=reason))
        elif what != NOT_SHOWN:
            item.add_marker(pytest.mark.skip(reason=f"vLLM {RELEASE}: {what}"))
