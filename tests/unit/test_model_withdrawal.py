"""A withdrawn chunk leaves nothing behind that its pass would still do to its blocks."""

from __future__ import annotations

import pytest

from cowtail.harness import ModelTarget, Target, TorchTarget, assert_lockstep, parse_actions
from cowtail.models import lifecycle
from cowtail.models.scope import Lookup, Policy, RequestSpec, Scope, full_attention, mamba

SCOPE = Scope(
    name="withdrawn_then_loaded",
    groups=(full_attention(1, eagle=True), mamba(1)),
    hash_unit=1,
    num_blocks=36,
    requests=(RequestSpec("a", "abc"), RequestSpec("c", "abcdef")),
    num_ranks=1,
    max_steps_in_flight=2,
    max_preemptions=1,
    policy=Policy.PRIORITY,
    defer_frees=True,
    lookup=Lookup.ASYNC,
    foreign=("a", "c"),
)
UNTIL_WITHDRAWN = """
    submit(c) submit(a) look_up(c) look_up(a) begin_pass() admit(a) end_pass() begin_pass()
    admit(c) end_pass() execute() update_from_output() begin_pass() extend(a) end_pass()
    execute() update_from_output() begin_pass() extend(c) end_pass() foreign_put(c) execute()
    update_from_output() begin_pass() extend(c) preempt(c) end_pass()
"""
LOADED = """
    look_up(c) execute() update_from_output() begin_pass() admit(c) end_pass() run_load(0, ok)
    report_load(0, c) update_connector_output() execute()
"""
TARGETS: tuple[Target, ...] = (ModelTarget(), TorchTarget())


def test_the_blocks_of_a_withdrawn_chunk_are_not_zeroed() -> None:
    state = lifecycle.initial(SCOPE)
    for action in parse_actions(UNTIL_WITHDRAWN):
        before, state = state, lifecycle.step(SCOPE, state, action).state
    assert before.open_pass is not None
    assert not before.open_pass.new_blocks
    assert not state.steps[-1].new_blocks


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_loaded_into_them_stays(target: Target) -> None:
    assert_lockstep(SCOPE, parse_actions(UNTIL_WITHDRAWN + LOADED), target)
