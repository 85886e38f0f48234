"""Tests of this folder drive real vLLM; where it is missing they are skipped, saying why."""

import pytest

from cowtail.impl.vllm_engine.releases import VllmNotInstalled, installed_release


@pytest.fixture(scope="session", autouse=True)
def vllm_installed() -> None:
    """Skip where vLLM cannot be imported, or is of a release that is not driven."""
    try:
        installed_release()
    except VllmNotInstalled as missing:
        pytest.skip(str(missing))
