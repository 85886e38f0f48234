"""A headless Chromium, and the page of a scope in it; skipped with a reason where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cowtail.spec.page.document import page as page_text
from cowtail.spec.scopes import scope_named
from cowtail.spec.traces import read_trace

CHROMIUM = Path(os.environ.get("COWTAIL_CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs `make test-browser`")
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}: install it, or set COWTAIL_CHROMIUM")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a page of a small scope with one trace of another scope."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    trace = read_trace(GOLDEN / "tail_by_copy.jsonl")
    text = page_text(scope_named("consumer_load"), "block", [("tail_by_copy", trace)])
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Any]:
    """Yield a page that fails its test if a script fails or the network is asked for anything."""
    tab = browser.new_page(viewport={"width": 1440, "height": 1000}, color_scheme="light")
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda asked: wrong.append(asked.url) if asked.url[:5] != "file:" else None)
    open_at(tab, address)
    yield tab
    tab.close()
    assert not wrong


def open_at(tab: Any, url: str) -> None:
    """Open a page and wait until it has read its data."""
    tab.goto(url)
    tab.wait_for_selector("html[data-ready=yes]")
