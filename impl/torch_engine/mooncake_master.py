"""A Mooncake master of our own, on loopback, which does not outlive us.

>>> record = Record(owner=10, owner_started="5", master=11, master_started="6")
>>> Record.parse(record.dump()) == record
True
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs

from cowtail.impl.torch_engine.store_protocol import StoreUnavailable

DISTRIBUTIONS = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
LIBRARIES = {
    "libibverbs.so.1": "libibverbs1",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4",
}
READY_SECONDS = 10.0
STOP_SECONDS = 5.0

_LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that starts the master is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Ask to be killed with the parent (PR_SET_PDEATHSIG is 1), then become the master. A process of
its own, because Python code between fork and exec may deadlock once there are threads."""


def why_not() -> str | None:
    """Return why real Mooncake cannot run here and what to do, or None if it can.

    Looks only at what is installed; starts nothing.
    """
    if importlib.util.find_spec("mooncake") is None:
        return "not installed; `make test-mooncake` creates an environment with it"
    missing = []
    for library, package in LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            missing.append(package)
    if missing:
        return f"system libraries are missing; apt-get install {' '.join(missing)}"
    if not os.access(master_program(), os.X_OK):
        return f"{master_program()} cannot be executed; install the package again"
    return None


def mooncake_version() -> str:
    """Return the installed Mooncake's distribution and version."""
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return "version unknown"


def master_program() -> Path:
    """Return where the installed package keeps its master. Raises StoreUnavailable without one."""
    spec = importlib.util.find_spec("mooncake")
    if spec is None or not spec.submodule_search_locations:
        raise StoreUnavailable(f"Mooncake: {why_not()}")
    return Path(spec.submodule_search_locations[0]) / "mooncake_master"


def only_loopback() -> bool:
    """Tell whether this process sees no network interface but loopback.

    Mooncake's clients listen on every address whatever they are told, so this is what keeps them
    from being reached.
    """
    return [name for _, name in socket.if_nameindex()] == ["lo"]


@attrs.frozen
class Record:
    """A master and the process that started it: ids and, ids being reused, start times."""

    owner: int
    owner_started: str
    master: int
    master_started: str

    def dump(self) -> str:
        """Return the record as JSON."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def parse(cls, text: str) -> Record:
        """Read a record. Raises ValueError if ``text`` is none."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"record {text!r}: {error}") from None


class MooncakeMaster:
    """A master process. ``address`` is what clients are given: "127.0.0.1:PORT".

    ``lease_ms`` is how long existence checks and gets keep a key; ``client_ttl_seconds`` how long
    a silent client is believed to live. The master dies with the thread that starts it, so start
    it from one that lives as long as the process. Raises StoreUnavailable if it does not become
    ready.
    """

    def __init__(self, *, lease_ms: int = 2000, client_ttl_seconds: int = 3) -> None:
        reason = why_not()
        if reason:
            raise StoreUnavailable(f"Mooncake: {reason}")
        stop_stale_masters()
        self.lease_ms = lease_ms
        self.client_ttl_seconds = client_ttl_seconds
        self._port, self._metrics_port = _free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._record: Path | None = None
        self._log = _folder() / f"{os.getpid()}-{self._port}.log"
        self.start()

    @property
    def address(self) -> str:
        """Where clients find the master, before and after a restart."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The id of the master's process, None while it is not running."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the master on its ports, and wait until it serves. It knows no keys."""
        if self._process:
            raise StoreUnavailable(f"the master at {self.address} runs already; kill it first")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self._record = _write_record(self._process.pid)
        deadline = time.monotonic() + READY_SECONDS
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = self._last_words()
                self.kill()
                raise StoreUnavailable(
                    f"the Mooncake master at {self.address} did not become ready; "
                    f"its last words: {words}"
                )
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the master, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the master in good order. A second call does nothing."""
        self._end(signal.SIGTERM)

    def __enter__(self) -> MooncakeMaster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())),
            str(master_program()),
            "--rpc_address=127.0.0.1",
            f"--rpc_port={self._port}",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={self._metrics_port}",
            f"--default_kv_lease_ttl={self.lease_ms}",
            f"--client_ttl={self.client_ttl_seconds}",
            "--rpc_thread_num=2",
            "--logtostderr=1",
        ]

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process:
            process.send_signal(how)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._record:
            self._record.unlink(missing_ok=True)
            self._record = None
        self._log.unlink(missing_ok=True)

    def _healthy(self) -> bool:
        url = f"http://127.0.0.1:{self._metrics_port}/health"
        # Not through a proxy that the environment may name.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(url, timeout=1) as answer:
                return bool(json.load(answer).get("service_ready"))
        except (OSError, ValueError):
            return False

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "none"


def stop_stale_masters() -> list[int]:
    """Kill the masters whose starting process is gone, and return their process ids.

    A master dies with its parent, so there should be none. Only processes that we wrote down, that
    are still the same process and still a Mooncake master are touched.
    """
    stopped = []
    for path, record in _records():
        if _started(record.owner) == record.owner_started:
            continue
        if _started(record.master) == record.master_started and _is_master(record.master):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.master, signal.SIGKILL)
                stopped.append(record.master)
        path.unlink(missing_ok=True)
        for log in _folder().glob(f"{record.owner}-*.log"):
            log.unlink(missing_ok=True)
    return stopped


def _records() -> Iterator[tuple[Path, Record]]:
    for path in sorted(_folder().glob("*.json")):
        try:
            record = Record.parse(path.read_text())
        except FileNotFoundError:
            continue
        except ValueError:
            path.unlink(missing_ok=True)
            continue
        yield path, record


def _folder() -> Path:
    """Return where records are kept, ours alone. Raises StoreUnavailable if it is not."""
    folder = Path(tempfile.gettempdir()) / f"cowtail-mooncake-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise StoreUnavailable(f"{folder} belongs to somebody else; set TMPDIR to another folder")
    return folder


def _write_record(master: int) -> Path:
    record = Record(os.getpid(), _started(os.getpid()) or "", master, _started(master) or "")
    path = _folder() / f"{master}.json"
    path.write_text(record.dump())
    return path


def _started(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; the state is the first field after it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def _is_master(pid: int) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("mooncake_master")
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]
