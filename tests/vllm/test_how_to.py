"""The page on driving a release by hand: what it shows runs."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "drive-a-release.md"


def test_the_example_of_driving_a_release_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert blocks
    names: dict[str, Any] = {"__name__": "drive_a_release"}
    exec("\n".join(blocks), names)
