"""A torch engine over a real Mooncake store in a process of its own: one produces, one consumes.

``engine_process.py produce MASTER NAMESPACE`` runs an engine until a request is aborted exactly at
its tail's boundary and its jobs are done. It prints what the blocks that were handed over held at
that moment, waits for a line, and leaves. ``engine_process.py consume MASTER NAMESPACE`` looks up
what the same prompt resumes from, and prints what it got. Both print one JSON list of entries:
rank, group, prefix, what each slot stands for, and the SHA-256 of the bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence

import torch

from cowtail.impl.torch_engine import TorchEngine
from cowtail.impl.torch_engine.digests import DigestTable
from cowtail.impl.torch_engine.mooncake_store import MooncakeStore
from cowtail.impl.torch_engine.store import EXISTS, StoreBase, StoreKey, Value
from cowtail.models.actions import (
    Abort,
    Action,
    Admit,
    BeginPass,
    EndPass,
    Execute,
    Extend,
    RunJob,
    Submit,
    UpdateFromOutput,
)
from cowtail.models.scope import RequestSpec, Role, Scope, full_attention, mamba

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


def slots_of(key: StoreKey) -> int:
    """Return how many slots are stored under a key: one for a state."""
    return 1 if SCOPE.groups[key.group].is_mamba else (len(key.prefix) - 1) % 4 + 1


def engine_over(scope: Scope, store: StoreBase, width: int) -> TorchEngine:
    """Return an engine whose workers use ``store``."""
    engine = TorchEngine(scope, payload_width=width)
    for part in (engine, engine._observer, *engine.workers):
        for name in ("store", "_store"):
            if hasattr(part, name):
                setattr(part, name, store)
    return engine


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


def produce(store: MooncakeStore) -> None:
    """Abort the request at its tail's boundary; print what its blocks held at that moment."""
    engine = engine_over(SCOPE, store, WIDTH)
    engine.perform(Submit("a"))
    for scheduled in (Admit("a"), Extend("a")):
        chunk: list[Action] = [BeginPass(), scheduled, EndPass(), Execute(), UpdateFromOutput()]
        for action in chunk:
            engine.perform(action)
    (request,) = engine.observe().requests
    attention, states = request.tables
    handed_over = [*attention, states[-1]]
    values = []
    for key, block in zip(KEYS, handed_over * SCOPE.num_ranks, strict=True):
        pages = engine.workers[key.rank].memory.read_pages(torch.tensor([block]))
        slots = slots_of(key)
        values.append(Value(pages.digests[0, :slots], pages.payload[0, :slots]))
    (job,) = engine.perform(Abort("a")).jobs
    assert {put.boundary for put in job.puts} == {len(PROMPT) - 1}, "the tail goes at finish"
    for action in (BeginPass(), EndPass(), Execute()):
        engine.perform(action)
    for rank in range(SCOPE.num_ranks):
        while engine.observe().ranks[rank].queue:
            engine.perform(RunJob(rank))
    print(json.dumps(entries(KEYS, values)), flush=True)
    sys.stdin.readline()


def consume(store: MooncakeStore) -> None:
    """Look the prompt's keys up, get what exists, and print it."""
    exist = store.batch_is_exist(KEYS)
    found = [key for key, code in zip(KEYS, exist, strict=True) if code == EXISTS]
    values = [
        Value(torch.zeros(slots_of(key), dtype=torch.int64), torch.zeros(slots_of(key), WIDTH))
        for key in found
    ]
    codes = store.batch_get_into(found, values)
    assert codes == [value.nbytes for value in values]
    print(json.dumps(entries(found, values)), flush=True)


def main(role: str, master: str, namespace: str) -> None:
    """Run one side."""
    torch.set_num_threads(1)
    store = MooncakeStore(master, namespace=namespace)
    {"produce": produce, "consume": consume}[role](store)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
