"""What looks like a fault and is none must not be found.

vllm-project/vllm issue 37076: within one pass, blocks that a waiting request would have hit go
to another request. Looking up and allocating are one step of one thread, so nothing is lost but
the hit: the request computes what it might have copied.
"""

from __future__ import annotations

import pytest

from cowtail.harness import Lockstep, ModelTarget, Target, TorchTarget, parse_actions
from cowtail.models.actions import Admit
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba
from cowtail.models.transition import Transition

SCOPE = Scope(
    name="stolen_between_lookups",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(
        RequestSpec("a", "abcd"),
        RequestSpec("b", "abcde"),
        RequestSpec("c", "wxyz"),
    ),
    role=Role.PRODUCER,
    num_ranks=1,
    token_budget=4,
)

STEP = "end_pass() execute() update_from_output()"
A_RUNS = (
    f"submit(a) submit(b) submit(c) begin_pass() admit(a) {STEP} begin_pass() extend(a) {STEP} "
    "run_job(0) report(0, 0) update_connector_output()"
)
TARGETS: tuple[Target, ...] = (ModelTarget(), TorchTarget())


def _before_the_pass(target: Target) -> Lockstep:
    """Return a pair in which ``a`` has finished: its blocks are free, and their keys are there."""
    pair = Lockstep(SCOPE, target)
    for action in parse_actions(A_RUNS):
        pair.perform(action)
    while pair.state.pins or pair.state.steps:
        pair.perform(next(a for a in pair.enabled() if a.name not in ("abort", "begin_pass")))
    pair.perform(parse_actions("begin_pass()")[0])
    return pair


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_blocks_stolen_between_lookup_and_allocation_are_not_a_finding(target: Target) -> None:
    with _before_the_pass(target) as pair:
        alone = pair.perform(Admit("b"))
        assert alone.effects.hit
        pair.drain()
    with _before_the_pass(target) as pair:
        pair.perform(Admit("c"))
        after_theft: Transition = pair.perform(Admit("b"))
        assert after_theft.effects.hit is not None
        assert after_theft.effects.hit < alone.effects.hit
        pair.drain()
