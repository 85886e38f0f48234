"""Streams: where device work waits until it takes effect. One interface, three kinds.

- *immediate*: an operation takes effect when it is submitted;
- *deferred*: it takes effect when the host waits for it, and reads memory as it is *then*; so a
  test decides when each operation happens, and finds races without a GPU;
- *CUDA*: it takes effect when the device gets to it.

Operations of one stream take effect in order; between streams only ``after`` orders them.

>>> done = []
>>> stream = DeferredStream()
>>> event = stream.submit(lambda: done.append("copied"))
>>> done
[]
>>> event.wait()
>>> done
['copied']
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import torch

from cowtail.impl.torch_engine.errors import DeviceNotAvailable, EngineError

Operation = Callable[[], None]


class StreamKind(enum.StrEnum):
    """The kinds of stream that an engine can run on."""

    IMMEDIATE = "immediate"
    DEFERRED = "deferred"
    CUDA = "cuda"


class Event(ABC):
    """The moment at which a submitted operation has taken effect."""

    @abstractmethod
    def wait(self) -> None:
        """Return once the operation has taken effect, and all before it on its stream."""


class Stream(ABC):
    """A queue of device work."""

    @abstractmethod
    def submit(self, operation: Operation, after: Sequence[Event] = ()) -> Event:
        """Queue ``operation`` behind this stream's earlier ones and behind ``after``."""


class _Done(Event):
    def wait(self) -> None:
        pass


class ImmediateStream(Stream):
    """Everything takes effect at once, in the order of submission."""

    def submit(self, operation: Operation, after: Sequence[Event] = ()) -> Event:
        """Run ``operation`` now; what it is to come after has run already."""
        operation()
        return _Done()


@attrs.define(eq=False)
class _DeferredEvent(Event):
    stream: DeferredStream
    operation: Operation
    after: tuple[Event, ...]
    done: bool = False

    def wait(self) -> None:
        while not self.done:
            self.stream.run_oldest()


class DeferredStream(Stream):
    """Nothing takes effect before the host waits for it; then its dependencies do, then it."""

    def __init__(self) -> None:
        self._queue: deque[_DeferredEvent] = deque()

    def submit(self, operation: Operation, after: Sequence[Event] = ()) -> Event:
        """Queue ``operation``."""
        event = _DeferredEvent(self, operation, tuple(after))
        self._queue.append(event)
        return event

    def run_oldest(self) -> None:
        """Let the oldest operation take effect. Raises EngineError if there is none."""
        if not self._queue:
            raise EngineError("the stream is empty: submit an operation before waiting for it")
        event = self._queue.popleft()
        for dependency in event.after:
            dependency.wait()
        event.operation()
        event.done = True


class _CudaEvent(Event):
    """Keeps the operation, and so the tensors that it uses, until the device is past it."""

    def __init__(self, event: torch.cuda.Event, operation: Operation) -> None:
        self.event = event
        self._operation: Operation | None = operation

    def wait(self) -> None:
        self.event.synchronize()
        self._operation = None


class CudaStream(Stream):
    """A CUDA stream; operations launch kernels and copies, and the host runs ahead of them."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def submit(self, operation: Operation, after: Sequence[Event] = ()) -> Event:
        """Launch ``operation`` behind the events of ``after``, without waiting for any."""
        # Index tensors and fresh buffers come from the host's current stream.
        self._stream.wait_stream(torch.cuda.current_stream())
        for dependency in after:
            if isinstance(dependency, _CudaEvent):
                self._stream.wait_event(dependency.event)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            operation()
            event.record(self._stream)
        return _CudaEvent(event, operation)


def new_stream(kind: StreamKind) -> Stream:
    """Return a new stream. Raises DeviceNotAvailable for CUDA without a GPU."""
    if kind is StreamKind.IMMEDIATE:
        return ImmediateStream()
    if kind is StreamKind.DEFERRED:
        return DeferredStream()
    require_device("cuda")
    return CudaStream()


def require_device(name: str) -> torch.device:
    """Return the device called ``name``: "cpu" or "cuda".

    Raises ValueError for another name, DeviceNotAvailable for CUDA without a GPU.
    """
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r}: no such device; use cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceNotAvailable("device 'cuda': torch sees no CUDA GPU here; use cpu")
    return torch.device(name)
