"""The page's data: every state comes back, every address leads where it says (R36)."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import attrs
import pytest

from cowtail.models import lifecycle
from cowtail.models.actions import Submit
from cowtail.models.scope import RequestSpec, Scope, full_attention
from cowtail.spec.page.dataset import address_of, decode_state, encode_states, state_at
from cowtail.spec.page.document import page
from cowtail.spec.page.scoped import encode_scope
from cowtail.spec.page.traced import encode_trace
from cowtail.spec.scopes import scope_named
from cowtail.spec.traces import Refused, Trace, read_trace
from cowtail.spec.views import VIEWS

GOLDEN = Path(__file__).parents[1] / "golden"


def _payload(text: str) -> Any:
    found = re.search(r'id="data">([^<]*)</script>', text)
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


@pytest.mark.parametrize("name", ["consumer_load", "windows_only", "eagle_coarse"])
def test_every_state_decodes_to_itself_and_its_address_leads_to_it(name: str) -> None:
    data, graph, _ = encode_scope(scope_named(name))
    data = json.loads(json.dumps(data))  # what the page has: lists, not tuples
    for number, state in enumerate(graph.states):
        assert decode_state(data, number) == state
        assert state_at(data, address_of(data, number)) == number


def test_an_address_is_the_index_of_each_action_among_those_enabled() -> None:
    scope = scope_named("consumer_load")
    data, graph, _ = encode_scope(scope)
    state = lifecycle.initial(scope)
    address = address_of(data, len(graph.states) - 1)
    for choice in address:
        state = lifecycle.step(scope, state, lifecycle.enabled(scope, state)[choice]).state
    assert state == graph.states[-1]


def test_an_address_that_leads_nowhere_is_refused() -> None:
    data, _, _ = encode_scope(scope_named("base_connector"))
    with pytest.raises(ValueError, match="action 7 at place 1: the state there has"):
        state_at(data, [0, 7])


def test_the_phases_of_every_state_are_those_of_its_views() -> None:
    scope = scope_named("consumer_load")
    data, graph, _ = encode_scope(scope)
    for name, view in VIEWS.items():
        seen = data["views"][name]
        for number, state in enumerate(graph.states):
            phases = [seen["phases"][phase] for phase in seen["tuples"][seen["of"][number]]]
            assert phases == list(view.items(scope, state))


def test_only_edges_to_a_state_under_other_names_are_marked_as_renamed() -> None:
    data, graph, machine = encode_scope(scope_named("consumer_load"))
    edge, renamed = 0, []
    for state in graph.states:
        for _, successor, _ in machine.successors(state):
            if successor != graph.states[graph.targets[edge]]:
                renamed.append(edge)
            edge += 1
    assert data["renamed"] == renamed != []


def test_a_trace_has_every_state_of_its_run() -> None:
    trace = read_trace(GOLDEN / "tail_by_copy.jsonl")
    data = encode_trace("tail", trace)
    state = lifecycle.initial(trace.scope)
    assert decode_state(data, 0) == state
    for place, action in enumerate(trace.actions, start=1):
        if not isinstance(action, Refused):
            state = lifecycle.step(trace.scope, state, action).state
        assert decode_state(data, place) == state
        assert data["steps"][place]["action"] == str(action)


def test_a_trace_of_a_broken_rule_says_what_is_violated() -> None:
    from cowtail.spec.broken_rules import broken_rule
    from cowtail.spec.checks import check_scope

    scope = scope_named("lone_producer")
    with broken_rule("job_not_pinned"):
        violation = check_scope(scope).violation
    assert violation is not None
    trace = Trace(scope, violation.path, target="model", faults=("job_not_pinned",))
    remarks = encode_trace("bad", trace)["steps"][-1]["remarks"]
    assert any(remark.startswith(violation.identifier) for remark in remarks)
    assert not any(encode_trace("good", attrs.evolve(trace, faults=()))["steps"][1]["remarks"])


def test_a_trace_that_the_model_does_not_allow_ends_there_and_says_so() -> None:
    trace = Trace(scope_named("lone_producer"), (Submit("a"), Submit("a"), Submit("a")))
    data = encode_trace("twice", trace)
    assert len(data["steps"]) == 3
    assert "the model does not allow this" in data["steps"][-1]["remarks"][0]


def test_names_cannot_end_the_script_or_become_markup() -> None:
    name = "</script><img src=x onerror=alert(1)>"
    scope = Scope(
        name=name,
        groups=(full_attention(2),),
        hash_unit=2,
        num_blocks=4,
        requests=(RequestSpec(name, "ab"),),
    )
    text = page(scope, "block")
    assert name not in text
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert _payload(text)["main"]["scope"]["requests"][0]["name"] == name


def test_the_page_asks_the_network_for_nothing_and_is_the_same_each_time() -> None:
    scope = scope_named("base_connector")
    text = page(scope, "block")
    assert text == page(scope, "block")
    loads = re.findall(r"<link|@import|fetch\(|XMLHttpRequest|\bsrc=|url\(", text)
    assert not loads
    assert "default-src 'none'" in text


def test_columns_keep_equal_values_once() -> None:
    scope = scope_named("base_connector")
    state = lifecycle.initial(scope)
    data = encode_states(scope, [state, state], [0, 0])
    assert data["starts"] == [0, 2 * len(data["columns"]), 2 * len(data["columns"])]
    assert all(len(table) == 1 for table in data["tables"])
