"""What vLLM loads in each of its processes: a recorder, and a monitor, if they are asked for.

Entry point of the group ``vllm.general_plugins``. Nothing happens unless one of these is set:

``COWTAIL_LOG``: the file to record to; ``{pid}`` in it is the process id.
``COWTAIL_LOG_MAX_BYTES``: where the log ends, with a line that says so.
``COWTAIL_MONITOR``: ``log`` a violation once, or ``raise`` it out of the scheduler's call.

Only a process that builds a scheduler records (the engine core; with several, each of them, in
files of their own); in the API server and in workers nothing is written.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from cowtail.impl.vllm_recorder.log_file import LogFile
from cowtail.impl.vllm_recorder.recorder import LOGGER, Recorder
from cowtail.impl.vllm_recorder.scheduler import SchedulerHooks

LOG, MAX_BYTES, MONITOR = "COWTAIL_LOG", "COWTAIL_LOG_MAX_BYTES", "COWTAIL_MONITOR"
DEFAULT_MAX_BYTES = 1 << 30
"""Size of a log unless it is set."""


def register() -> None:
    """Have every scheduler that this process builds recorded, if the environment asks for it."""
    if not os.environ.get(LOG) and not os.environ.get(MONITOR):
        return
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
    except ImportError as error:
        LOGGER.warning("cowtail: not recording: %s", error)
        return
    if not hasattr(Scheduler.__init__, "cowtail"):
        Scheduler.__init__ = _attaching(Scheduler.__init__)


def _attaching(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        record(self)

    init.cowtail = True  # type: ignore[attr-defined]
    return init


def record(scheduler: Any) -> Recorder | None:
    """Attach a recorder as the environment says; None, with a warning, if that cannot be done."""
    recorder = None
    try:
        recorder = Recorder(_file(), _watch())
        SchedulerHooks(recorder, scheduler, _versions())
    except Exception as error:
        if recorder is not None:
            recorder.fail(error)
        else:
            LOGGER.warning("cowtail: not recording: %s", error)
        return None
    if recorder.file is not None:
        LOGGER.info("cowtail: recording to %s", recorder.file.path)
    return recorder


def _file() -> LogFile | None:
    name = os.environ.get(LOG)
    if not name:
        return None
    said = os.environ.get(MAX_BYTES, str(DEFAULT_MAX_BYTES))
    if not said.isdecimal() or int(said) < 1 << 16:
        raise ValueError(
            f"{MAX_BYTES}={said}: must be at least 65536 bytes; leave it out for 1 GiB"
        )
    return LogFile(name, int(said))


def _watch() -> Callable[[list[str]], Exception | None] | None:
    mode = os.environ.get(MONITOR)
    if not mode:
        return None
    if mode not in ("log", "raise"):
        raise ValueError(f"{MONITOR}={mode}: must be log or raise")
    from cowtail.harness.online import OnlineMonitor

    return OnlineMonitor(LOGGER, raises=mode == "raise").watch


def _versions() -> tuple[str, str]:
    import vllm

    import cowtail

    return cowtail.__version__, str(vllm.__version__)
