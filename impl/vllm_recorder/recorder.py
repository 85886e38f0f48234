"""The recorder of one scheduler: lines, gathered over some calls and written together.

It never raises into the engine: an exception of its own ends the recording, with one warning
and a last line that says so. Objects of the engine are only read.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from cowtail.impl.vllm_recorder.hooks import Hooks
from cowtail.impl.vllm_recorder.log_file import LogFile

LOGGER = logging.getLogger("vllm.plugins.cowtail")
"""vLLM shows what loggers below its own say."""

MAX_LINES = 500
"""Lines that are kept back at most, so that a system call serves many passes."""
MAX_SECONDS = 1.0
"""How long lines are kept back at most, as long as there are calls."""

Watch = Callable[[list[str]], Exception | None]
"""Is shown the lines of every call; what it returns is raised out of the call."""


class Recorder:
    """Turns what happens to one scheduler into lines.

    ``file`` takes them, ``watch`` sees them; either may be missing. ``operations`` counts what
    was done to blocks since the last call was over; ``nothing`` is what the manager returns for
    an allocation of no blocks.
    """

    def __init__(self, file: LogFile | None, watch: Watch | None = None) -> None:
        """Start without a scheduler: see `attach`."""
        self.hooks = Hooks(self.fail)
        self.file = file
        self.depth = 0
        self._watch = watch
        self._lines: list[str] = []
        self._keys: list[int] = []
        self._keyed: list[int] = []
        self._keys_event = ""
        self.numbers: dict[str, int] = {}
        self._next_number = 0
        self.used: set[int] = set()
        self.rekeyed: set[int] = set()
        self.operations = 0
        self.nothing: Any = None
        self._written = time.monotonic()

    # Lines

    def line(self, text: str) -> None:
        """Take a line, without its newline."""
        if self._keys:
            self._end_keys()
        self._lines.append(text)

    def keys(self, event: str) -> tuple[list[int], list[int]]:
        """Return the lists to which keys and their blocks are to be added, for ``event``.

        Those in a row make one line.
        """
        if self._keys_event != event:
            if self._keys:
                self._end_keys()
            self._keys_event = event
        return self._keys, self._keyed

    def _end_keys(self) -> None:
        keys, blocks = self._keys, self._keyed
        self._lines.append(f'{{"event":"{self._keys_event}","keys":{keys},"blocks":{blocks}}}')
        self.rekeyed.update(blocks)
        keys.clear()
        blocks.clear()
        self._keys_event = ""

    def end_keys(self) -> None:
        """Make a line of the keys so far."""
        if self._keys:
            self._end_keys()

    def blocks(self, event: str, blocks: list[int]) -> None:
        """Take an operation of the pool on some blocks."""
        if blocks:
            self.line(f'{{"event":"{event}","blocks":{blocks}}}')
            self.used.update(blocks)
            self.operations += 1

    def number(self, request_id: str) -> int:
        """Return the number of a request; one that was never submitted is introduced."""
        number = self.numbers.get(request_id)
        return self.introduce(request_id, 0) if number is None else number

    def introduce(self, request_id: str, num_prompt_tokens: int) -> int:
        """Take a submission; return the request's number."""
        number = self.numbers[request_id] = self._next_number
        self._next_number += 1
        self.line(
            f'{{"event":"submit","request":{number},"id":{json.dumps(request_id)},'
            f'"num_prompt_tokens":{num_prompt_tokens}}}'
        )
        return number

    def forget(self, request_id: str) -> None:
        """Forget the number of a request that is over."""
        self.numbers.pop(request_id, None)

    # Writing

    def call_over(self, now: float) -> Exception | None:
        """Write if it is time; return what is to be raised. ``now``: time of the last pass."""
        if self._watch is not None or len(self._lines) >= MAX_LINES:
            return self.flush()
        if now - self._written >= MAX_SECONDS:
            self._written = now
            return self.flush()
        return None

    def flush(self) -> Exception | None:
        """Write the lines so far; return what the watch wants raised."""
        self.end_keys()
        if not self._lines:
            return None
        lines, self._lines = self._lines, []
        if self.file is not None and not self.file.write("\n".join(lines) + "\n"):
            self._truncate()
        return None if self._watch is None else self._watch(lines)

    def _truncate(self) -> None:
        assert self.file is not None
        bound = self.file.max_bytes
        LOGGER.warning(
            "cowtail: %s has reached %d bytes and is not continued", self.file.path, bound
        )
        self.file.write_last(f'{{"event":"truncated","max_bytes":{bound}}}\n')
        self.file = None
        if self._watch is None:
            self.hooks.let_go()

    def fail(self, error: Exception) -> None:
        """Switch off after an exception of our own: a warning, and a last line if it can be."""
        if not self.hooks.active:
            return
        self.hooks.let_go()
        what = place(error)
        LOGGER.warning("cowtail: recording has failed and is switched off: %s: %s", what, error)
        file, self.file = self.file, None
        if file is None:
            return
        try:
            self.end_keys()
            file.write("".join(f"{line}\n" for line in self._lines))
            file.write_last(json.dumps({"event": "failed", "error": what}) + "\n")
        except OSError as unwritable:
            LOGGER.warning("cowtail: %s cannot be written: %s", file.path, unwritable)

    def close(self) -> None:
        """End the log in good order; may be called twice."""
        if not self.hooks.active:
            return
        self.hooks.let_go()
        try:
            self.line('{"event":"end"}')
            self.flush()
        except Exception as error:
            LOGGER.warning("cowtail: the end of the log could not be written: %s", error)
        if self.file is not None:
            self.file.close()


def real(blocks: Iterable[Any]) -> list[int]:
    """Return the ids of blocks, the null block left out."""
    return [block.block_id for block in blocks if not block.is_null]


def place(error: BaseException) -> str:
    """Return the type of an exception and where it was raised, without its message.

    Messages may quote what users sent.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    frame = frames[-1]
    file = frame.filename.partition("site-packages/")[2] or frame.filename.rpartition("/")[2]
    return f"{type(error).__name__} in {frame.name} ({file}:{frame.lineno})"
