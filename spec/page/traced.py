"""A trace, run by the model for the page: every state, and what is violated in it."""

from __future__ import annotations

import contextlib

import attrs

from cowtail.models import lifecycle
from cowtail.models.errors import LifecycleError, NotEnabled
from cowtail.spec.broken_rules import broken_rule
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.page.dataset import Json, encode_states
from cowtail.spec.step_invariants import STEP_PROPERTIES
from cowtail.spec.traces import Refused, Trace


def encode_trace(name: str, trace: Trace) -> Json:
    """Return a trace as the page reads it: its states, the actions, and what fails where.

    A trace of the model with broken rules is run with these rules broken. An action that must be
    refused changes nothing. Where the model does not allow an action, the trace ends, and the
    last step says so.
    """
    scope = trace.scope
    states = [lifecycle.initial(scope)]
    steps: list[Json] = [{"action": "", "events": [], "remarks": []}]
    with contextlib.ExitStack() as broken:
        for fault in trace.faults if trace.target == "model" else ():
            broken.enter_context(broken_rule(fault))
        for action in trace.actions:
            before = after = states[-1]
            events: tuple[str, ...] = ()
            remarks: list[str] = []
            if isinstance(action, Refused):
                remarks.append("must be refused, and changes nothing")
            else:
                try:
                    transition = lifecycle.step(scope, before, action)
                except NotEnabled as error:
                    remarks.append(f"the model does not allow this: {error}")
                except LifecycleError as error:
                    after = attrs.evolve(before, failure=f"{action}: {error}")
                else:
                    after, events = transition.state, transition.events
                    remarks += [
                        f"{step.identifier} {step.name}: {reason}"
                        for step in STEP_PROPERTIES
                        if (reason := step.check(scope, before, action, after, events))
                    ]
            remarks += [
                f"{prop.identifier} {prop.name}: {reason}"
                for prop in PROPERTIES
                if (reason := prop.check(scope, after))
            ]
            states.append(after)
            steps.append({"action": str(action), "events": list(events), "remarks": remarks})
            if after.failure or any("does not allow" in remark for remark in remarks):
                break
    parents = [0, *range(len(states) - 1)]
    about = {"title": name, "note": trace.note, "target": trace.target}
    return {
        **encode_states(scope, states, parents),
        **about,
        "faults": list(trace.faults),
        "steps": steps,
    }
