"""Actions and scopes are written as a person writes them, and read back."""

from __future__ import annotations

import pytest

from cowtail.harness.notation import format_actions, format_scope, parse_actions
from cowtail.models.actions import JobOutcome, Report, RunJob, Submit, UpdateConnectorOutput
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba
from cowtail.spec.scopes import SCOPES

ACTIONS = (
    Submit("a"),
    RunJob(1),
    RunJob(0, JobOutcome.FAILED),
    Report(1, 12),
    Report(0, 3, again=True),
    UpdateConnectorOutput(),
)


def test_actions_come_back_from_their_wrapped_text() -> None:
    text = format_actions(ACTIONS * 10, width=60)
    assert parse_actions(text) == ACTIONS * 10
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("name", SCOPES)
def test_scopes_come_back_from_their_expression(name: str) -> None:
    names = {
        "RequestSpec": RequestSpec,
        "Role": Role,
        "Scope": Scope,
        "full_attention": full_attention,
        "mamba": mamba,
    }
    assert eval(format_scope(SCOPES[name]), names) == SCOPES[name]


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
