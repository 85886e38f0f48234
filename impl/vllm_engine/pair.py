"""Two live engines on one store: which engine an action is of, and how it is written there.

The second engine, the peer, has requests of its own, and its ranks are numbered on from those of
the first; so an action that names a request or a rank says by itself which engine it is of. The
rest, the passes, are wrapped as ``peer(schedule_pass)``. Evictions and resets are of the first.

>>> config = EngineConfig(
...     requests=(RequestSpec("a", "abcde"),), peer_requests=(RequestSpec("p", "abcde"),)
... )
>>> for_peer(config, OfPeer("schedule_pass")), for_peer(config, Submit("p"))
(schedule_pass(), submit(p))
>>> for_peer(config, RunLoad(3)), for_peer(config, RunLoad(1)), for_peer(config, Submit("a"))
(run_load(1), None, None)
>>> as_written(config, RunLoad(1))
run_load(3)
"""

from __future__ import annotations

import attrs

from cowtail.impl.vllm_engine.config import EngineConfig, OfPeer, RunLoad
from cowtail.models.actions import (
    Abort,
    Action,
    Execute,
    LookUp,
    Report,
    RunJob,
    SchedulePass,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec

__all__ = ["RequestSpec", "as_written", "for_peer"]

_PASSES: dict[str, Action] = {
    action.name: action
    for action in (SchedulePass(), Execute(), UpdateFromOutput(), UpdateConnectorOutput())
}


def for_peer(config: EngineConfig, action: Action) -> Action | None:
    """Return an action as the peer takes it; None if it is of the first engine, or there is one."""
    if not config.peer_requests:
        return None
    match action:
        case OfPeer(what):
            return _PASSES[what]
        case Submit(request) | Abort(request) | LookUp(request):
            theirs = any(request == spec.name for spec in config.peer_requests)
            return action if theirs else None
        case RunJob(rank) | RunLoad(rank) | Report(rank):
            if rank < config.num_ranks:
                return None
            return attrs.evolve(action, rank=rank - config.num_ranks)
    return None


def as_written(config: EngineConfig, action: Action) -> Action:
    """Return an action of the peer as it is written where there are two engines."""
    match action:
        case SchedulePass() | Execute() | UpdateFromOutput() | UpdateConnectorOutput():
            return OfPeer(action.name)
        case RunJob(rank) | RunLoad(rank) | Report(rank):
            return attrs.evolve(action, rank=rank + config.num_ranks)
    return action
