"""A client of a Mooncake store in a process of its own, for tests that let one leave or die.

``client_process.py MASTER NAMESPACE SEGMENT_BYTES`` reads one command a line and answers each
with a line of JSON: ``put RANK GROUP PREFIX NUMBER BYTES`` with a code, ``leave`` with "left".
"""

from __future__ import annotations

import json
import sys

import torch

from cowtail.impl.torch_engine.mooncake_store import MooncakeStore
from cowtail.impl.torch_engine.store import StoreKey, Value


def answer(line: object) -> None:
    print(json.dumps(line), flush=True)


def main(master: str, namespace: str, segment_bytes: str) -> None:
    torch.set_num_threads(1)
    store = MooncakeStore(master, namespace=namespace, segment_bytes=int(segment_bytes))
    answer("ready")
    for line in sys.stdin:
        command, *words = line.split()
        if command == "leave":
            store.close()
            answer("left")
            return
        rank, group, prefix, number, nbytes = words
        value = Value(
            torch.tensor([int(number)]), torch.full((1, int(nbytes) // 4 - 2), float(number))
        )
        answer(store.batch_put_from([StoreKey(int(rank), int(group), prefix)], [value])[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
