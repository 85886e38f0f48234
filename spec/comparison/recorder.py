"""What a model does in some scopes, as plain JSON values: the input of ``cowtail diff``.

This file is also run on its own, with an older revision's package on the path, so it asks little
of it: ``LifecycleMachine``, ``scope_named``, ``VIEWS``, the lists of properties and ``ACTIONS``.

The format, version 1: ``properties`` (identifier to sentence), ``actions`` (name to fields), and
for each scope its constants, counts, and the whole graph. State 0 is the initial one.
``seen_of[s]`` indexes ``seen``: what the views see of a state, as a count of phases. ``out[s]``
lists pairs of a label and a target, both numbers; ``labels`` has for each the action's name, the
events, and the *moves*: which phases items left for which. ``fingerprint`` is a digest of all
search keys and of the edges between them, so that equal fingerprints mean equal full graphs up
to the names that the search key abstracts from (blocks, ranks, equal requests, jobs).
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

import cowtail
from cowtail.models.actions import ACTIONS
from cowtail.models.scope import Scope
from cowtail.spec.invariants import PROPERTIES
from cowtail.spec.liveness_properties import LIVENESS
from cowtail.spec.machine import LifecycleMachine
from cowtail.spec.scopes import scope_named
from cowtail.spec.step_invariants import STEP_PROPERTIES
from cowtail.spec.views import VIEWS

FORMAT = 1
"""The version of the format, under the key ``cowtail_graph``."""


def record(scopes: list[str], max_states: int, max_seconds: float) -> dict[str, Any]:
    """Return what the model at hand does in the named scopes; the bounds are for each scope.

    Raises ValueError for a scope that the model does not have.
    """
    properties: list[Any] = [*PROPERTIES, *STEP_PROPERTIES, *LIVENESS]
    return {
        "cowtail_graph": FORMAT,
        "properties": {p.identifier: p.sentence for p in properties},
        "actions": {a.name: [field.name for field in attrs.fields(a)] for a in ACTIONS},
        "scopes": {
            name: record_scope(LifecycleMachine(scope_named(name)), max_states, max_seconds)
            for name in scopes
        },
    }


def record_scope(machine: Any, max_states: int, max_seconds: float) -> dict[str, Any]:
    """Return the graph of one scope, breadth first; ``bound_hit`` is null if it is complete.

    ``machine`` is a ``LifecycleMachine`` or behaves as one. A bound that is hit leaves states
    without their edges, and a graph that nothing may be concluded from.
    """
    scope: Scope = machine.scope
    deadline = time.monotonic() + max_seconds
    initial = machine.initial()
    keys = {machine.key(initial): 0}
    queue = [initial]
    seen: dict[Any, int] = {}
    labels: dict[Any, int] = {}
    seen_of, out = [], []
    actions: Counter[str] = Counter()
    events: Counter[str] = Counter()
    bound_hit = None
    for state in queue:
        if len(keys) > max_states or time.monotonic() > deadline:
            bound_hit = "max_states" if len(keys) > max_states else "max_seconds"
            break
        items = {name: tuple(view.items(scope, state)) for name, view in VIEWS.items()}
        seen_of.append(seen.setdefault(_seen(items), len(seen)))
        edges = []
        for action, successor, told in machine.successors(state):
            key = machine.key(successor)
            if key not in keys:
                keys[key] = len(keys)
                queue.append(successor)
            name = machine.action_name(action)
            actions[name] += 1
            events.update(told)
            label = (name, tuple(told), _moves(scope, items, successor))
            edges.append((labels.setdefault(label, len(labels)), keys[key]))
        out.append(edges)
    out += [[] for _ in range(len(keys) - len(out))]
    looks = list(seen)
    return {
        "constants": {f.name: repr(getattr(scope, f.name)) for f in attrs.fields(type(scope))},
        "bound_hit": bound_hit,
        "actions": dict(sorted(actions.items())),
        "events": dict(sorted(events.items())),
        "seen": looks,
        "seen_of": seen_of,
        "labels": list(labels),
        "out": out,
        "fingerprint": _fingerprint(list(keys), [looks[n] for n in seen_of], labels, out),
    }


def _seen(items: dict[str, tuple[str, ...]]) -> tuple[Any, ...]:
    return tuple(
        (view, str(phase), count)
        for view, phases in items.items()
        for phase, count in sorted(Counter(map(str, phases)).items())
    )


def _moves(scope: Scope, before: dict[str, tuple[str, ...]], successor: Any) -> tuple[Any, ...]:
    """Return view, phase before, phase after and count, of the items whose phase changes."""
    moves: Counter[tuple[str, str, str]] = Counter()
    for name, view in VIEWS.items():
        for was, becomes in zip(before[name], view.items(scope, successor), strict=False):
            if was != becomes:
                moves[name, str(was), str(becomes)] += 1
    return tuple((*move, count) for move, count in sorted(moves.items()))


def _fingerprint(keys: list[Any], looks: list[Any], labels: Any, out: list[Any]) -> str:
    digests = [hashlib.sha256(repr(key).encode()).hexdigest() for key in keys]
    names = [repr(label) for label in labels]
    lines = [f"{digest} {look!r}" for digest, look in zip(digests, looks, strict=False)]
    lines += [
        f"{digests[source]} {names[label]} {digests[target]}"
        for source, leaving in enumerate(out)
        for label, target in leaving
    ]
    return hashlib.sha256("\n".join([digests[0], *sorted(lines)]).encode()).hexdigest()


def main(tree: str, max_states: str, max_seconds: str, *scopes: str) -> None:
    """Print the record of the package in ``tree``, and of no other that Python may find first."""
    found = Path(cowtail.__path__[0]).resolve().parent
    if found != Path(tree).resolve():
        sys.exit(f"cowtail comes from {found}, not from {tree}")
    try:
        print(json.dumps(record(list(scopes), int(max_states), float(max_seconds))))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
