"""The scenarios on every release at hand, against the committed table (R1, R23, R29, R38)."""

from pathlib import Path

import pytest

from cowtail.impl.vllm_engine.launch import runnable_releases
from cowtail.impl.vllm_engine.matrix import as_markdown, tokens_found

pytestmark = pytest.mark.vllm

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "vllm-releases.md"


def test_every_release_at_hand_does_what_the_page_says() -> None:
    found = tokens_found()
    assert set(found) == set(runnable_releases())
    page = PAGE.read_text()
    for row in as_markdown(found).splitlines():
        assert row in page
