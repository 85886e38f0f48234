"""Scopes and paces for fuzzing: larger than any that is explored, and each example another.

The sizes stay near what makes blocks interesting (two to eight tokens a block, prompts of a
few blocks) because a tail, a copy and a preemption need few tokens and blocks, but many orders.
"""

from __future__ import annotations

import string

import attrs
from hypothesis import strategies as st

from cowtail.models.actions import (
    Abort,
    Action,
    BeginPass,
    Execute,
    Preempt,
    Report,
    RunJob,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import Group, RequestSpec, Role, Scope, full_attention, mamba

MAX_REQUESTS = 4
MAX_PROMPT = 24
"""The longest prompt, in tokens."""

Paces = dict[type[Action], int]
"""For some kinds of action, at which moments they are offered: every n-th, or never (0).

This is what swarm testing does with features, as a matter of degree. A kind that is not due is
offered all the same when nothing else is possible.
"""


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    """Draw a scope that fits together."""
    unit = draw(st.sampled_from((1, 1, 2, 3, 4)))
    groups = draw(_groups(unit))
    requests = draw(_requests(max(group.block_size for group in groups)))
    scope = Scope(
        name="fuzzed",
        groups=groups,
        hash_unit=unit,
        num_blocks=10_000,
        requests=requests,
        role=draw(
            st.sampled_from(
                (Role.PRODUCER, Role.PRODUCER, Role.BOTH, Role.BOTH, Role.CONSUMER, Role.NONE)
            )
        ),
        num_ranks=draw(st.integers(1, 3)),
        token_budget=draw(st.sampled_from((64, 64, 64, groups[-1].block_size, 3))),
        max_steps_in_flight=draw(st.integers(1, 2)),
        max_preemptions=draw(st.integers(0, 2)),
        max_failed_jobs=draw(st.integers(0, 2)),
        max_repeated_reports=draw(st.integers(0, 2)),
    )
    needs = [scope.blocks_for(spec) for spec in requests]
    spare = draw(st.sampled_from((0, 0, 1, 2, sum(needs) - max(needs), sum(needs))))
    return attrs.evolve(scope, num_blocks=1 + max(needs) + spare)


@st.composite
def _groups(draw: st.DrawFn, unit: int) -> tuple[Group, ...]:
    """Draw full-attention and Mamba groups; the Mamba groups, if several, share a block size."""
    sizes = st.sampled_from([unit * n for n in (1, 2, 3, 4, 8) if unit * n <= 8])
    kinds = draw(st.sampled_from(("am", "am", "am", "am", "aam", "amm", "a")))
    state_size = draw(sizes)
    return tuple(
        mamba(state_size) if kind == "m" else full_attention(draw(sizes)) for kind in kinds
    )


@st.composite
def _requests(draw: st.DrawFn, largest_block: int) -> tuple[RequestSpec, ...]:
    """Draw requests whose prompts begin alike: prefixes of one text, some with an own ending."""
    text = string.ascii_lowercase[:MAX_PROMPT]
    flag = st.booleans()
    count = draw(st.integers(1, MAX_REQUESTS))
    longest = min(MAX_PROMPT, draw(st.sampled_from((1, 2, 3))) * largest_block + 2)
    requests: list[RequestSpec] = []
    for index in range(count):
        if draw(flag) and requests:
            shared = requests[draw(st.integers(0, len(requests) - 1))].prompt
        else:
            shared = text[: draw(st.integers(1, longest))]
        own = string.ascii_uppercase[index] * draw(st.sampled_from((0, 0, 0, 1, 2)))
        prompt = shared + own
        max_tokens = draw(st.sampled_from((1, 1, 2, 3, largest_block + 1)))
        output = ""
        if draw(flag):  # samples what others' prompts go on with, where there is no end
            onwards = "" if own else text[len(shared) :]
            output = (onwards + "z" * max_tokens)[:max_tokens]
        requests.append(RequestSpec("abcd"[index], prompt, max_tokens, output))
    return tuple(requests)


@st.composite
def paces(draw: st.DrawFn) -> Paces:
    """Draw how eager environment, scheduler, device and ranks are."""
    slow = st.sampled_from((1, 1, 1, 2, 5, 17))
    return {
        Abort: draw(st.sampled_from((0, 0, 7, 19, 43))),
        Submit: draw(st.sampled_from((1, 2, 7, 23))),
        Preempt: draw(st.sampled_from((1, 2, 5))),
        BeginPass: draw(st.sampled_from((1, 1, 1, 4))),
        Execute: draw(slow),
        UpdateFromOutput: draw(slow),
        RunJob: draw(slow),
        Report: draw(slow),
        UpdateConnectorOutput: draw(slow),
    }
