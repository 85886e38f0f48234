"""The known scenarios: what a later request finds in the store, release by release.

Attention and Mamba blocks of 16 tokens, hash unit 4, two ranks, the release's own retention.
``python -m cowtail.impl.vllm_engine.scenarios`` prints what the imported release does, as JSON.

>>> [scenario.name for scenario in SCENARIOS][:2]
['44 tokens, finished', '45 tokens, aborted at 44']
"""

from __future__ import annotations

import json

import attrs

from cowtail.impl.vllm_engine.config import EngineConfig
from cowtail.impl.vllm_engine.promises import PROPERTIES, found_in_store
from cowtail.impl.vllm_engine.session import Session
from cowtail.impl.vllm_engine.surface import surface
from cowtail.models.actions import Abort, Execute, SchedulePass, Submit, UpdateFromOutput
from cowtail.models.scope import RequestSpec, Role

TEXT = "the quick brown fox jumps over the lazy dog, and then it jumps back again"
_STEP = (SchedulePass(), Execute(), UpdateFromOutput())


@attrs.frozen
class Scenario:
    """A producer of ``num_tokens``, and what is asked after it: its prompt and ``more`` tokens.

    ``abort_at``: it is aborted once it has computed so many. ``due``: tokens that should be found
    by R1, R23 and R29; ``defect`` is what a release that finds fewer has.
    """

    name: str
    num_tokens: int
    due: int
    defect: str
    eagle: bool = False
    abort_at: int | None = None
    more: int = 1


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("44 tokens, finished", 44, 40, "tail lost at finish"),
    Scenario("45 tokens, aborted at 44", 45, 44, "tail lost at finish", abort_at=44),
    Scenario("EAGLE, 52 tokens", 52, 48, "EAGLE proof not stored", eagle=True),
    Scenario("EAGLE, 45 tokens", 45, 40, "EAGLE proof not stored", eagle=True),
    Scenario("44 tokens, sent again", 44, 40, "hash unit lost on resend", more=0),
)
"""In the order of the table."""


def found(scenario: Scenario) -> int:
    """Return how many tokens the later request finds with the imported release."""
    request = RequestSpec("p", TEXT[: scenario.num_tokens])
    config = EngineConfig(
        requests=(request,),
        role=Role.PRODUCER,
        eagle=scenario.eagle,
        retention_interval=surface().release.default_retention,
    )
    unchecked = [each.identifier for each in PROPERTIES]
    session = Session(config, unchecked=unchecked)
    session.do(Submit("p"))
    if scenario.abort_at is not None:
        while session.requests["p"].num_computed_tokens < scenario.abort_at:
            session.do_all(*_STEP)
        session.do(Abort("p"))
    session.drain()
    return found_in_store(session, TEXT[: scenario.num_tokens + scenario.more])


if __name__ == "__main__":
    print(json.dumps({scenario.name: found(scenario) for scenario in SCENARIOS}))
