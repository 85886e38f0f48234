"""Scopes of an engine that differs from the page as real vLLM does (``models/behaviours.py``)."""

from __future__ import annotations

import attrs

from cowtail.models.behaviours import VLLM
from cowtail.models.scope import Lookup, Policy, RequestSpec, Role, Scope, full_attention, mamba
from cowtail.spec.scopes.loads import CONSUMER_LOAD
from cowtail.spec.scopes.stores import RESETS

_AS_VLLM = attrs.evolve(VLLM, passes_need_work=True)
"""Without passes that do nothing, which an exploration would take for ever."""

AS_VLLM_LOAD = attrs.evolve(CONSUMER_LOAD, name="as_vllm_load", behaviours=_AS_VLLM)
"""A load is settled by the pass that comes to its request; a failed one is tried again."""

AS_VLLM_RESETS = attrs.evolve(RESETS, name="as_vllm_resets", behaviours=_AS_VLLM)
"""A reset that finds blocks held stops half way, and the store keeps everything."""

AS_VLLM_ANSWERS = Scope(
    name="as_vllm_answers",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=8,
    requests=(RequestSpec("a", "abc"), RequestSpec("b", "xy")),
    role=Role.CONSUMER,
    num_ranks=1,
    token_budget=2,
    policy=Policy.FCFS,
    lookup=Lookup.ASYNC,
    foreign=("a",),
    may_abort=(),
    behaviours=_AS_VLLM,
)
"""An answer that no admission could use is asked for again."""

AS_VLLM_PRESSURE = Scope(
    name="as_vllm_pressure",
    groups=(full_attention(2), mamba(2)),
    hash_unit=1,
    num_blocks=7,
    requests=(RequestSpec("a", "abc", max_tokens=2), RequestSpec("b", "xy", max_tokens=2)),
    role=Role.NONE,
    policy=Policy.FCFS,
    may_abort=(),
    behaviours=_AS_VLLM,
)
"""A request that does not fit gives back what it has left behind, and then preempts another."""

SCOPES: tuple[Scope, ...] = (AS_VLLM_LOAD, AS_VLLM_RESETS, AS_VLLM_ANSWERS, AS_VLLM_PRESSURE)
"""In the order of the docs."""
