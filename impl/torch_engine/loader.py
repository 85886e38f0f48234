"""Loads, on one rank's side: fetched to the host, written into blocks on a stream of their own.

A load is not ordered behind the steps that the device has yet to run. Its blocks must be nobody
else's until it is done; the scheduler sees to that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import attrs
import torch

from cowtail.impl.torch_engine.errors import EngineError
from cowtail.impl.torch_engine.loads import LoadJob
from cowtail.impl.torch_engine.memory import PagedMemory
from cowtail.impl.torch_engine.scripted_store import ScriptedStore
from cowtail.impl.torch_engine.store_protocol import OK, TRANSFER_FAILED, StoreKey, Value
from cowtail.impl.torch_engine.streams import Stream
from cowtail.impl.torch_engine.true_contents import TrueContents
from cowtail.models.observations import NULL_BLOCK
from cowtail.models.scope import Scope


@attrs.frozen(eq=False)
class Wanted:
    """A block to fill: with what ends at ``boundary``, or at a later key, of at most ``last``."""

    group: int
    block: int
    boundary: int
    last: int


@attrs.frozen(eq=False)
class Fetched:
    """What a load got: values for the first slots of blocks. ``complete``: all that it wanted."""

    blocks: list[int]
    values: list[Value]
    complete: bool


class Loader(ABC):
    """Fetches what loads want, from somewhere, for one rank."""

    def __init__(self, scope: Scope, rank: int, width: int) -> None:
        self.scope = scope
        self.rank = rank
        self.width = width

    @abstractmethod
    def fetch(self, job: LoadJob, *, failed: bool) -> Fetched:
        """Fetch all that can be had; with ``failed`` nothing can."""

    def wanted(self, job: LoadJob) -> list[Wanted]:
        """Return the blocks of a load: attention from its start, and the states at its end."""
        start, end = job.load.start, job.load.end
        wanted = []
        for index, group in enumerate(self.scope.groups):
            size, table = group.block_size, job.tables[index]
            if group.is_mamba:
                wanted.append(Wanted(index, table[(end - 1) // size], end, end))
                continue
            for column in range(start // size, math.ceil(end / size)):
                if table[column] != NULL_BLOCK:
                    last = (column + 1) * size
                    wanted.append(Wanted(index, table[column], min(last, end), last))
        return wanted

    def first_token(self, want: Wanted, boundary: int) -> int:
        """Return the token in the first slot of a value that ends at ``boundary``."""
        if self.scope.groups[want.group].is_mamba:
            return boundary - 1
        size = self.scope.groups[want.group].block_size
        return (boundary - 1) // size * size


class StoreLoader(Loader):
    """Gets from the store, all blocks of a load in one batch."""

    def __init__(self, scope: Scope, rank: int, width: int, store: ScriptedStore) -> None:
        super().__init__(scope, rank, width)
        self.store = store

    def fetch(self, job: LoadJob, *, failed: bool) -> Fetched:
        """Get every key; a block whose key is missing is left as it is."""
        wanted = self.wanted(job)
        boundaries = [self.boundary(job, want) for want in wanted]
        sizes = [
            boundary - self.first_token(want, boundary)
            for want, boundary in zip(wanted, boundaries, strict=True)
        ]
        keys = [
            StoreKey(self.rank, want.group, job.request.prefix(boundary))
            for want, boundary in zip(wanted, boundaries, strict=True)
        ]
        values = self._buffers(sizes)
        with self.store.answering(gets=TRANSFER_FAILED if failed else None):
            codes = self.store.batch_get_into(keys, values)
        got = [index for index, code in enumerate(codes) if code > OK]
        return Fetched(
            [wanted[index].block for index in got],
            [values[index] for index in got],
            self.is_complete(codes),
        )

    def boundary(self, job: LoadJob, want: Wanted) -> int:
        """Return the length whose key holds what is wanted.

        A block that the load ends inside may have been stored a little further only: slots are
        appended, so any key of the block that covers the end will do, if the lookup saw it.
        """
        unit = self.scope.hash_unit
        if want.boundary == want.last:
            return want.boundary
        first = math.ceil(want.boundary / unit) * unit
        for boundary in range(first, want.last + 1, unit):
            if (want.group, boundary) in job.present:
                return boundary
        return want.boundary

    def is_complete(self, codes: Sequence[int]) -> bool:
        """Whether every get succeeded: an answer is the number of bytes, or a failure's code."""
        return all(code > OK for code in codes)

    def _buffers(self, sizes: Sequence[int]) -> list[Value]:
        digests = torch.split(torch.empty(sum(sizes), dtype=torch.int64), list(sizes))
        payload = torch.split(torch.empty((sum(sizes), self.width)), list(sizes))
        return [Value(one, other) for one, other in zip(digests, payload, strict=True)]


class PeerLoader(Loader):
    """Takes from the memory of another engine, which has computed the same prefix."""

    def __init__(self, scope: Scope, rank: int, width: int, contents: TrueContents) -> None:
        super().__init__(scope, rank, width)
        self.contents = contents

    def fetch(self, job: LoadJob, *, failed: bool) -> Fetched:
        """Take everything up to the end of the load."""
        if failed:
            return Fetched([], [], complete=False)
        wanted = self.wanted(job)
        values = [self.contents.value(job.request, want.group, want.boundary) for want in wanted]
        return Fetched([want.block for want in wanted], values, complete=True)


class LoadQueue:
    """The loads of one rank, in order, and those that are done and not reported.

    ``loaders``: one for each connector that loads, by its position.
    """

    def __init__(self, memory: PagedMemory, stream: Stream, loaders: dict[int, Loader]) -> None:
        self.memory = memory
        self.loaders = loaders
        self.queue: deque[LoadJob] = deque()
        self.done: dict[str, bool] = {}
        self._stream = stream

    def enqueue(self, job: LoadJob) -> None:
        """Queue a load; what the device still has to run does not hold it up."""
        self.queue.append(job)

    def run(self, *, failed: bool) -> None:
        """Carry out the load at the head of the queue. Raises EngineError if there is none."""
        if not self.queue:
            raise EngineError("no load is queued; end a pass that begins one")
        job = self.queue.popleft()
        fetched = self.loaders[job.load.child].fetch(job, failed=failed)
        if fetched.blocks:
            self._stream.submit(
                lambda: self.memory.write_values(fetched.blocks, fetched.values)
            ).wait()
        self.done[job.load.request] = fetched.complete

    def take_report(self, name: str) -> bool:
        """Take a load that is done out; return whether it failed.

        Raises EngineError if it is not done.
        """
        if name not in self.done:
            raise EngineError(f"request {name!r}: no load of it is done; run one first")
        return not self.done.pop(name)


class SendQueue:
    """Finished requests whose blocks one rank is sending, (request, child) each."""

    def __init__(self) -> None:
        self.sends: list[tuple[str, int]] = []

    def start(self, sends: Sequence[tuple[str, int]]) -> None:
        """Begin to send."""
        self.sends.extend(sends)

    def finish(self, name: str, child: int) -> bool:
        """End one send; return whether it was the last that this rank has of the request.

        Several connectors may send one request, and its blocks are done with after all of them.
        Raises EngineError for a send that is not under way.
        """
        if (name, child) not in self.sends:
            raise EngineError(f"request {name!r}: connector {child} sends nothing of it")
        self.sends.remove((name, child))
        return self.is_last(name)

    def is_last(self, name: str) -> bool:
        """Whether nothing of the request is being sent any more."""
        return all(other != name for other, _ in self.sends)
