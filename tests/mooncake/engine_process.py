"""A torch engine over a real Mooncake store in a process of its own: one produces, one consumes.

``engine_process.py produce MASTER NAMESPACE`` runs an engine until a request is aborted exactly at
its tail's boundary and its jobs are done. It prints what the blocks that were handed over held at
that moment, waits for a line, and leaves. ``engine_process.py consume MASTER NAMESPACE`` submits
the same prompt to another engine, and prints what its blocks hold once it has loaded them. Both
print one JSON list of entries: rank, group, prefix, what each slot stands for, and the SHA-256 of
the bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence

import attrs
import torch

from cowtail.impl.torch_engine import TorchEngine
from cowtail.impl.torch_engine.digests import DigestTable
from cowtail.impl.torch_engine.mooncake_store import MooncakeStore
from cowtail.impl.torch_engine.store import StoreKey, Value
from cowtail.models.actions import (
    Abort,
    Action,
    Admit,
    BeginPass,
    EndPass,
    Execute,
    Extend,
    ReportLoad,
    RunJob,
    RunLoad,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)
from cowtail.models.observations import Effects, Status
from cowtail.models.scope import Lookup, RequestSpec, Role, Scope, full_attention, mamba

WIDTH = 4096
"""Payload of a slot, in float32 numbers: 16 KiB, as in a real model."""

PROMPT = "abcdefghijk"
SCOPE = Scope(
    name="mooncake",
    groups=(full_attention(4), mamba(4)),
    hash_unit=1,
    num_blocks=16,
    requests=(RequestSpec("a", PROMPT, max_tokens=1),),
    role=Role.PRODUCER,
    num_ranks=2,
)
"""The prompt's replay boundary is 10 tokens: two blocks of four, and a tail of two."""

KEYS = tuple(
    StoreKey(rank, group, PROMPT[:end])
    for rank in range(SCOPE.num_ranks)
    for group, ends in enumerate([(4, 8, 10), (10,)])
    for end in ends
)
"""What resuming the prompt at its boundary takes: all attention blocks, and the state there."""


def entries(keys: Sequence[StoreKey], values: Sequence[Value]) -> list[dict[str, object]]:
    """Return what is printed of values: their contents as this process decodes them."""
    printed: list[dict[str, object]] = []
    for key, value in zip(keys, values, strict=True):
        table = DigestTable(SCOPE, key.rank, WIDTH)
        (contents,) = table.decode(value.digests.unsqueeze(0), value.payload.unsqueeze(0))
        data = bytes(value.digests.view(torch.uint8).tolist())
        data += bytes(value.payload.contiguous().view(-1).view(torch.uint8).tolist())
        digest = hashlib.sha256(data).hexdigest()
        printed.append({**key._asdict(), "contents": contents, "sha256": digest})
    return printed


def blocks(engine: TorchEngine) -> tuple[list[StoreKey], list[Value]]:
    """Return what the request's blocks hold of ``KEYS``, as the ranks' memories have it."""
    (request,) = engine.observe().requests
    attention, states = request.tables
    values = []
    for key, block in zip(KEYS, [*attention, states[-1]] * SCOPE.num_ranks, strict=True):
        pages = engine.workers[key.rank].memory.read_pages(torch.tensor([block]))
        slots = 1 if SCOPE.groups[key.group].is_mamba else (len(key.prefix) - 1) % 4 + 1
        values.append(Value(pages.digests[0, :slots], pages.payload[0, :slots]))
    return list(KEYS), values


def perform(engine: TorchEngine, *taken: Action) -> Effects:
    """Carry actions out; return the effects of the last."""
    for action in taken:
        effects = engine.perform(action)
    return effects


def produce(store: MooncakeStore) -> None:
    """Abort the request at its tail's boundary; print what its blocks held at that moment."""
    engine = TorchEngine(SCOPE, payload_width=WIDTH, store=store)
    perform(engine, Submit("a"))
    for scheduled in (Admit("a"), Extend("a")):
        perform(engine, BeginPass(), scheduled, EndPass(), Execute(), UpdateFromOutput())
    handed_over = entries(*blocks(engine))
    (job,) = perform(engine, Abort("a")).jobs
    assert {put.boundary for put in job.puts} == {len(PROMPT) - 1}, "the tail goes at finish"
    perform(engine, BeginPass(), EndPass(), Execute())
    for rank in range(SCOPE.num_ranks):
        while engine.observe().ranks[rank].queue:
            perform(engine, RunJob(rank))
    print(json.dumps(handed_over), flush=True)
    sys.stdin.readline()


def consume(store: MooncakeStore) -> None:
    """Submit the same prompt elsewhere; print what its blocks hold once its load is complete."""
    scope = attrs.evolve(SCOPE, role=Role.CONSUMER, lookup=Lookup.SYNC)
    engine = TorchEngine(scope, payload_width=WIDTH, store=store)
    supplied = perform(engine, Submit("a"), BeginPass(), Admit("a")).external
    if not supplied:
        print(json.dumps([]), flush=True)
        return
    assert supplied == len(PROMPT) - 1, "all that a resent prompt can resume from"
    perform(engine, EndPass())
    for rank in range(SCOPE.num_ranks):
        perform(engine, RunLoad(rank), ReportLoad(rank, "a"))
    perform(engine, UpdateConnectorOutput())
    (request,) = engine.observe().requests
    assert request.status is Status.LOADED
    print(json.dumps(entries(*blocks(engine))), flush=True)


def main(role: str, master: str, namespace: str) -> None:
    """Run one side."""
    torch.set_num_threads(1)
    store = MooncakeStore(master, namespace=namespace)
    {"produce": produce, "consume": consume}[role](store)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
