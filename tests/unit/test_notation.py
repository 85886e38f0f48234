"""Actions and scopes are written as a person writes them, and read back."""

from __future__ import annotations

import pytest

from cowtail.harness.notation import format_actions, format_scope, parse_actions
from cowtail.harness.regression import imports_of
from cowtail.models.actions import (
    Admit,
    Evict,
    FinishSend,
    JobOutcome,
    LoadOutcome,
    LookUp,
    Report,
    ReportLoad,
    Reset,
    RunJob,
    RunLoad,
    Submit,
    UpdateConnectorOutput,
)
from cowtail.models.scope import (
    BASE,
    STORE,
    LoadPolicy,
    Lookup,
    Policy,
    RequestSpec,
    Scope,
    full_attention,
    mamba,
    peer,
    sliding_window,
)
from cowtail.spec.scopes import SCOPES

ACTIONS = (
    Submit("a"),
    RunJob(1),
    RunJob(0, JobOutcome.FAILED),
    Report(1, 12),
    Report(0, 3, again=True),
    UpdateConnectorOutput(),
    Admit("a", lookup_failed=True),
    LookUp("a", failed=True),
    RunLoad(1, LoadOutcome.FAILED),
    ReportLoad(0, "a"),
    FinishSend(1, 2, "a"),
    Evict(0, 1, "abc"),
    Reset(store=True),
    Reset(running=True),
)

EVERYTHING = Scope(
    name="everything",
    groups=(full_attention(2, eagle=True), sliding_window(2, 3), mamba(4)),
    hash_unit=1,
    num_blocks=60,
    requests=(RequestSpec("a", "abc", max_tokens=2, output="de", accepts="10", priority=1),),
    speculative_tokens=1,
    retention_interval=0,
    policy=Policy.PRIORITY,
    lookup=Lookup.ASYNC,
    load_policy=LoadPolicy.FAIL,
    children=(STORE, peer(serves=True, retains=True), BASE),
    foreign=("a",),
    put_failures=(JobOutcome.PARTIAL, JobOutcome.NO_SPACE),
    max_resets=1,
)


def test_actions_come_back_from_their_wrapped_text() -> None:
    text = format_actions(ACTIONS * 10, width=60)
    assert parse_actions(text) == ACTIONS * 10
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("scope", [*SCOPES.values(), EVERYTHING], ids=lambda scope: scope.name)
def test_scopes_come_back_from_their_expression_and_imports(scope: Scope) -> None:
    text = format_scope(scope)
    names: dict[str, object] = {}
    exec("\n".join(imports_of(text)), names)
    assert eval(text, names) == scope


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("submit(a", "'submit\\(a': not an action"),
        ("submit(a) and then", "'and': not an action"),
        ("sumbit(a)", "action 'sumbit': no such action; did you mean 'submit'"),
        ("submit()", "'request' is missing from submit"),
        ("submit(a, b)", "has at most 1 arguments"),
        ("run_job(one)", "'one': must be a whole number"),
        ("report(0, 1, maybe)", "'maybe': must be true or false"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_actions(text)
