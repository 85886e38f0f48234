"""A run of the model, told action by action: what happened, and whose lives changed.

>>> from cowtail.models.actions import Admit, BeginPass, Submit
>>> from cowtail.spec.scopes import scope_named
>>> for line in narrate(scope_named("lone_producer"), (Submit("a"), BeginPass(), Admit("a"))):
...     print(line)
1  submit(a)
2  begin_pass()
3  admit(a)
       block 1: free -> allocated
       block 2: free -> tail-registered
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cowtail.models import lifecycle
from cowtail.models.actions import Action
from cowtail.models.errors import LifecycleError
from cowtail.models.observations import Effects, Handoff, StoreEntry, StoreJob
from cowtail.models.phase import block_phase
from cowtail.models.scope import Scope
from cowtail.models.state import State


def narrate(scope: Scope, actions: Iterable[Action]) -> Iterator[str]:
    """Yield the lines of a run from the initial state, numbered as its actions are.

    A rule that fails one of its own assertions ends the run, with what it said.
    Raises NotEnabled for an action that is not possible.
    """
    state = lifecycle.initial(scope)
    for number, action in enumerate(actions, start=1):
        yield f"{number}  {action}"
        try:
            transition = lifecycle.step(scope, state, action)
        except LifecycleError as error:
            yield f"       the rule itself fails: {error}"
            return
        yield from (f"       {line}" for line in _effects(transition.effects))
        yield from (f"       {line}" for line in _changes(state, transition.state))
        state = transition.state


def _effects(effects: Effects) -> Iterator[str]:
    if effects.hit:
        yield f"hits {effects.hit} tokens"
    for copy in effects.copies:
        yield f"the step copies block {copy.source} to {copy.destination}"
    yield from map(_handoff, effects.handoffs)
    yield from map(_job, effects.jobs)
    yield from map(_put, effects.puts)
    for job in effects.released:
        yield f"job {job} is released"


def _handoff(handoff: Handoff) -> str:
    return f"block {handoff.block} is handed off: the state after {handoff.boundary} tokens"


def _job(job: StoreJob) -> str:
    puts = ", ".join(f"block {put.block} at {put.boundary}" for put in job.puts) or "no boundary"
    saves = f", saves up to {job.save_to} tokens" if job.save_to else ""
    return f"job {job.job} is to store {puts}{saves}; it pins {_blocks(job.blocks)}"


def _put(entry: StoreEntry) -> str:
    content = " ".join(slot or "nothing" for slot in entry.content)
    return f"stored under {entry.prefix!r} of group {entry.group}: {content}"


def _changes(before: State, after: State) -> Iterator[str]:
    """Yield which blocks went from which phase to which, blocks with the same story together."""
    stories: dict[tuple[str, str], list[int]] = {}
    for block in range(1, len(before.memory)):
        story = block_phase(before, block).value, block_phase(after, block).value
        if story[0] != story[1]:
            stories.setdefault(story, []).append(block)
    for (old, new), blocks in stories.items():
        yield f"{_blocks(tuple(blocks))}: {old} -> {new}"


def _blocks(blocks: tuple[int, ...]) -> str:
    return f"block{'s' * (len(blocks) != 1)} {', '.join(map(str, blocks))}"
