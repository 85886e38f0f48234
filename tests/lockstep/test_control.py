"""What looks like a fault and is none must not be found.

vllm-project/vllm issue 37076: within one pass, blocks that a waiting request would have hit go
to another request. Looking up and allocating are one step of one thread, so nothing is lost but
the hit: the request computes what it might have copied.
"""

from __future__ import annotations

import pytest

from cowtail.harness import Lockstep, ModelTarget, Target, TorchTarget, parse_actions
from cowtail.models.actions import Admit
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention

SCOPE = Scope(
    name="stolen_in_one_pass",
    groups=(full_attention(2),),
    hash_unit=2,
    num_blocks=7,
    requests=tuple(
        RequestSpec(name, prompt)
        for name, prompt in (("a", "abcdef"), ("b", "abcde"), ("c", "stuvwx"), ("d", "mnopqr"))
    ),
    role=Role.NONE,
)
STEP = "end_pass() execute() update_from_output()"
CACHED = parse_actions(
    f"submit(a) begin_pass() admit(a) {STEP} submit(d) begin_pass() admit(d) {STEP} "
    "submit(b) submit(c) begin_pass()"
)
"""Then all six blocks are free and have keys: those of ``a`` first, those of ``d`` after them."""

TARGETS: tuple[Target, ...] = (ModelTarget(), TorchTarget())


def _hit_of_b(target: Target, *, after_c: bool) -> int | None:
    """Admit ``b``, by itself or after ``c`` in the same pass; return what it found. All agree."""
    with Lockstep(SCOPE, target) as pair:
        for action in CACHED:
            pair.perform(action)
        if after_c:
            pair.perform(Admit("c"))
        hit = pair.perform(Admit("b")).effects.hit
        pair.drain()
        return hit


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_blocks_stolen_between_lookup_and_allocation_are_not_a_finding(target: Target) -> None:
    assert _hit_of_b(target, after_c=False) == 4
    assert _hit_of_b(target, after_c=True) == 0
