"""The page in headless Chromium: clicked, typed at, and opened at addresses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cowtail.models import lifecycle
from cowtail.spec.explorer import explore
from cowtail.spec.machine import LifecycleMachine
from cowtail.spec.page.document import page as page_text
from cowtail.spec.scopes import scope_named

pytestmark = pytest.mark.browser


def _text(tab: Any, selector: str) -> str:
    return str(tab.locator(selector).inner_text())


def _count(tab: Any) -> int:
    found = re.match(r"([\d,]+) states", _text(tab, "#found"))
    assert found is not None
    return int(found[1].replace(",", ""))


def test_a_path_is_clicked_forward_and_back_and_changes_are_shown(tab: Any) -> None:
    assert "step 0 of 0, state 0" in _text(tab, "#place")
    assert not tab.locator(".changed").count()
    for _ in range(4):
        tab.locator("#next button").first.click()
    assert "step 4 of 4" in _text(tab, "#place")
    assert "#0.0.0.0" in _text(tab, "#address")
    assert "changed" in _text(tab, ".changed >> nth=0")
    deep = _text(tab, "#state")
    tab.click("#back")
    assert "step 3 of 4" in _text(tab, "#place")
    assert _text(tab, "#state") != deep
    tab.click("#forward")
    assert _text(tab, "#state") == deep


def test_an_address_opens_that_very_state(tab: Any, address: str) -> None:
    scope = scope_named("consumer_load")
    graph = explore(LifecycleMachine(scope), keep_graph=True).graph
    assert graph is not None
    state, choices, number = lifecycle.initial(scope), [], len(graph.states) // 2
    for action in graph.path_to(number):
        choices.append(str(lifecycle.enabled(scope, state).index(action)))
        state = lifecycle.step(scope, state, action).state
    tab.goto("about:blank")
    tab.goto(f"{address}#{'.'.join(choices)}?job")
    tab.wait_for_selector("html[data-ready=yes]")
    assert f"state {number}" in _text(tab, "#place")
    assert tab.get_attribute("[data-view=job]", "aria-pressed") == "true"
    free = " ".join(map(str, state.pool.free)) or "empty"
    assert f"free list: {free}" in _text(tab, "#state")


def test_an_address_that_leads_nowhere_says_so(tab: Any) -> None:
    tab.evaluate("location.hash = '#0.99'")
    tab.wait_for_function("document.querySelector('#happened').textContent.includes('not enabled')")
    tab.evaluate("location.hash = '#what'")
    tab.wait_for_function("document.querySelector('#happened').textContent.includes('not a path')")


def test_a_trace_of_another_scope_is_stepped_through(tab: Any) -> None:
    tab.select_option("#source", "0")
    tab.wait_for_function("location.hash.startsWith('#trace1@0')")
    tab.click("#forward")
    assert "step 1 of" in _text(tab, "#place")
    tab.click("#last")
    place = _text(tab, "#place").split()
    assert place[1] == place[3]
    assert tab.evaluate("location.hash").startswith(f"#trace1@{place[1]}")


def test_nodes_arrows_search_and_filters_narrow_the_states(tab: Any) -> None:
    every = _count(tab)
    tab.locator(".node", has_text="freed but cached").click()
    node = _count(tab)
    assert 0 < node < every
    assert "freed but cached" in _text(tab, "#found")
    tab.locator("#states button").first.click()
    assert tab.locator(".node.here", has_text="freed but cached").count() == 1
    tab.click("#clear")
    assert _count(tab) == every
    tab.locator(".arrow").first.locator("text").first.click()
    assert 0 < _count(tab) < every
    tab.click("#clear")
    tab.select_option("#action", "abort")
    assert 0 < _count(tab) < every
    assert tab.locator(".arrow.dim").count()
    tab.click("#clear")
    tab.select_option("#property", "e:load complete")
    assert 0 < _count(tab) < every
    tab.select_option("#property", "p:S1")
    assert _count(tab) == 0
    tab.click("#clear")
    tab.fill("#search", "freed but cached")
    assert _count(tab) == node
    tab.fill("#search", "17")
    assert _text(tab, "#states button") == "state 17"


def test_the_search_finds_exactly_the_states_with_a_value(tab: Any) -> None:
    text = '"status":"loading"'
    expected = tab.evaluate(
        """text => [...Array(cowtail.app.main.size).keys()]
        .filter(n => JSON.stringify(cowtail.app.main.state(n)).includes(text)).length""",
        text,
    )
    tab.fill("#search", "status:loading")
    assert _count(tab) == expected > 0


def test_all_of_it_works_from_the_keyboard(tab: Any) -> None:
    for key in ("0", "0", "0"):
        tab.keyboard.press(key)
    tab.wait_for_function("location.hash.startsWith('#0.0.0')")
    tab.keyboard.press("ArrowLeft")
    assert "step 2 of 3" in _text(tab, "#place")
    tab.keyboard.press("Home")
    assert "step 0 of 3" in _text(tab, "#place")
    tab.keyboard.press("End")
    assert "step 3 of 3" in _text(tab, "#place")
    tab.keyboard.press("v")
    assert tab.get_attribute("[data-view=request]", "aria-pressed") == "true"
    tab.keyboard.press("?")
    assert tab.is_visible("#keys")
    tab.keyboard.press("/")
    tab.keyboard.type("loading")
    assert tab.input_value("#search") == "loading"
    tab.keyboard.press("Escape")
    assert tab.input_value("#search") == ""
    tab.locator(".node").first.focus()
    tab.keyboard.press("Enter")
    assert tab.get_attribute(".node >> nth=0", "aria-pressed") == "true"


def test_light_and_dark_follow_the_system_and_the_button(tab: Any) -> None:
    def paper() -> str:
        return str(tab.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = paper()
    tab.emulate_media(color_scheme="dark")
    dark = paper()
    assert dark != light
    tab.click("#theme")
    assert paper() == light
    tab.keyboard.press("t")
    assert paper() == dark


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_is_wider_than_the_window(tab: Any, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    for view in ("block", "request", "job", "handoff", "scope"):
        tab.click(f"[data-view={view}]")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_name_that_looks_like_markup_is_text(tab: Any, tmp_path: Any) -> None:
    from cowtail.models.scope import RequestSpec, Scope, full_attention

    name = "</script><b id=bad>"
    groups = (full_attention(2),)
    requests = (RequestSpec(name, "ab"),)
    scope = Scope(name=name, groups=groups, hash_unit=2, num_blocks=4, requests=requests)
    path = tmp_path / "markup.html"
    path.write_text(page_text(scope, "block"), encoding="utf-8")
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=yes]")
    assert _text(tab, "#title") == name
    assert not tab.locator("#bad").count()
