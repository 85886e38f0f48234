"""The real store and its master: what the store in memory has no counterpart for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cowtail.impl.torch_engine.mooncake_master import MooncakeMaster
from cowtail.impl.torch_engine.mooncake_store import MooncakeStore
from cowtail.impl.torch_engine.store import EXISTS, OK, StoreKey, StoreUnavailable, Value

pytestmark = pytest.mark.mooncake

A, B, C = (StoreKey(0, 0, name) for name in "abc")


@pytest.fixture(scope="module")
def master() -> Iterator[MooncakeMaster]:
    with MooncakeMaster() as started:
        yield started


def value(number: int, width: int = 2) -> Value:
    return Value(torch.tensor([number]), torch.full((1, width), float(number)))


def test_runs_with_names_of_their_own_do_not_meet(master: MooncakeMaster) -> None:
    one = MooncakeStore(master.address, namespace="run")
    two = MooncakeStore(master.address, namespace="run-2")
    assert one.batch_put_from([A], [value(1)]) == [OK]
    assert two.batch_is_exist([A]) == [0]
    assert two.batch_put_from([A], [value(2)]) == [OK]
    assert one.remove_all(force=True) == 1
    assert [one.batch_is_exist([A]), two.batch_is_exist([A])] == [[0], [EXISTS]]
    one.close()
    two.close()


def test_batches_larger_than_the_staging_buffer_are_split(master: MooncakeMaster) -> None:
    store = MooncakeStore(master.address, namespace="split", staging_bytes=64)
    keys = [StoreKey(0, 0, str(number)) for number in range(10)]
    assert store.batch_put_from(keys, [value(number) for number in range(10)]) == [OK] * 10
    read = [value(0) for _ in keys]
    assert store.batch_get_into(keys, read) == [16] * 10
    assert [each.digests.item() for each in read] == list(range(10))
    with pytest.raises(ValueError, match="value of 72 bytes: above staging_bytes=64; raise it"):
        store.batch_put_from([A, B], [value(1), value(2, width=16)])
    assert store.batch_is_exist([A]) == [0], "refused before anything was put"
    store.close()


def test_values_of_any_layout_arrive(master: MooncakeMaster) -> None:
    store = MooncakeStore(master.address, namespace="layout")
    pages = torch.arange(24, dtype=torch.float32).view(2, 3, 4)
    strided = Value(torch.arange(6)[::2], pages.transpose(0, 1)[:, 1])
    store.batch_put_from([A, B], [value(3, width=3), strided])
    read = Value(torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4))
    assert store.batch_get_into([A, B], [value(0, width=3), read]) == [20, 72]
    assert torch.equal(read.digests, strided.digests)
    assert torch.equal(read.payload, strided.payload)
    store.close()


def test_where_no_master_answers_it_is_one_line() -> None:
    with pytest.raises(StoreUnavailable, match=r"master '127.0.0.1:9': no Mooncake master answers"):
        MooncakeStore("127.0.0.1:9", namespace="nobody")


def test_a_bad_namespace_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ValueError, match="namespace 'a b'"):
        MooncakeStore("127.0.0.1:9", namespace="a b")


def test_a_second_start_of_a_master_is_refused(master: MooncakeMaster) -> None:
    with pytest.raises(StoreUnavailable, match="runs already; kill it first"):
        master.start()


def test_a_master_stops_and_starts_again_in_the_same_place() -> None:
    with MooncakeMaster() as master:
        address, first = master.address, master.pid
        master.stop()
        master.stop()
        assert master.pid is None
        master.start()
        assert master.address == address
        assert master.pid not in (None, first)


def test_a_master_does_not_outlive_the_process_that_started_it() -> None:
    program = (
        "from cowtail.impl.torch_engine.mooncake_master import MooncakeMaster\n"
        "import time\n"
        "print(MooncakeMaster().pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert Path(os.readlink(f"/proc/{pid}/exe")).name == "mooncake_master"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while _alive(pid):
        assert time.monotonic() < deadline, "the master is an orphan"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
