"""Whether Mooncake can run is said in one line; stale masters are stopped, and nothing else is."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from cowtail.impl.torch_engine import mooncake_master
from cowtail.impl.torch_engine.mooncake_master import (
    MooncakeMaster,
    Record,
    master_program,
    stop_stale_masters,
    why_not,
)
from cowtail.impl.torch_engine.store import StoreUnavailable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records are kept."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = tmp_path / f"cowtail-mooncake-{os.getuid()}"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose program is called like Mooncake's master."""
    program = tmp_path / "mooncake_master"
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen([program, "60"])
    yield process
    process.kill()
    process.wait()


def write(folder: Path, record: Record) -> Path:
    path = folder / f"{record.master}.json"
    path.write_text(record.dump())
    return path


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def record_of(master: subprocess.Popen[bytes]) -> Record:
    """A record of a master that a process which is long gone has started."""
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    return Record(gone.pid, "1", master.pid, started(master.pid))


def test_a_master_whose_owner_is_gone_is_stopped(
    folder: Path, impostor: subprocess.Popen[bytes]
) -> None:
    record = record_of(impostor)
    path, log = write(folder, record), folder / f"{record.owner}-1.log"
    log.touch()
    assert stop_stale_masters() == [impostor.pid]
    assert impostor.wait(5) < 0
    assert not path.exists()
    assert not log.exists()


def test_a_master_whose_owner_lives_is_left_alone(
    folder: Path, impostor: subprocess.Popen[bytes]
) -> None:
    ours = attrs.evolve(record_of(impostor), owner=os.getpid(), owner_started=started(os.getpid()))
    path = write(folder, ours)
    assert stop_stale_masters() == []
    assert impostor.poll() is None
    assert path.exists()


def test_a_process_that_took_the_id_of_a_master_is_left_alone(
    folder: Path, impostor: subprocess.Popen[bytes]
) -> None:
    path = write(folder, attrs.evolve(record_of(impostor), master_started="1"))
    assert stop_stale_masters() == []
    assert impostor.poll() is None
    assert not path.exists(), "there is nothing left to stop"


def test_a_process_that_is_no_master_is_left_alone(folder: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as bystander:
        write(folder, record_of(bystander))
        assert stop_stale_masters() == []
        assert bystander.poll() is None
        bystander.kill()


def test_a_record_that_cannot_be_read_is_dropped(folder: Path) -> None:
    broken = [folder / "1.json", folder / "2.json"]
    broken[0].write_text("{")
    broken[1].write_text('{"owner": 1}')
    assert stop_stale_masters() == []
    assert not any(path.exists() for path in broken)


def test_a_folder_that_is_not_ours_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(StoreUnavailable, match="belongs to somebody else; set TMPDIR"):
        stop_stale_masters()


def test_where_mooncake_is_not_installed_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert why_not() == "not installed; `make test-mooncake` creates an environment with it"
    for attempt in (MooncakeMaster, master_program):
        with pytest.raises(StoreUnavailable, match=r"^Mooncake: not installed; `make"):
            attempt()


def test_missing_libraries_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        if name != "libnuma.so.1":
            raise OSError(name)

    spec = importlib.machinery.ModuleSpec("mooncake", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert why_not() == "system libraries are missing; apt-get install libibverbs1 libcurl4"


def test_a_master_that_cannot_be_executed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.machinery.ModuleSpec("mooncake", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(mooncake_master, "LIBRARIES", {})
    assert why_not() == (
        f"{tmp_path}/mooncake_master cannot be executed; install the package again"
    )
