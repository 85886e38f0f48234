"""Fetching releases: the wheel by pip, its Python files into the cache.

pip downloads, from whatever index it is configured for, shows its progress, and verifies the
wheel's hash. Only Python files are kept. A release arrives in the cache in one piece, or not at
all: what was fetched before an interruption stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cowtail.impl.vllm_engine.launch import folder_of, is_installed, is_unpacked
from cowtail.impl.vllm_engine.releases import release_named


class FetchFailed(RuntimeError):
    """pip could not download a release; the message ends with what it said."""


def fetch(version: str, *, quiet: bool = False) -> str:
    """Bring a release into the cache; return in a few words what was done.

    Raises VllmNotInstalled for a release that is not listed, FetchFailed, and OSError.
    """
    release = release_named(version)
    if is_installed(version):
        return "installed, nothing to fetch"
    if is_unpacked(version):
        return f"in the cache already, {folder_of(version)}"
    target = folder_of(version)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{version}-") as scratch:
        wheel = _download(f"{release.distribution}=={version}", Path(scratch), quiet)
        unpacked = Path(scratch) / "unpacked"
        count = unpack(wheel, unpacked)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(unpacked, target)
    return f"{count:,} files unpacked to {target}"


def _download(requirement: str, folder: Path, quiet: bool) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder)]
    command += ["--quiet"] if quiet else []
    done = subprocess.run([*command, requirement], stderr=subprocess.PIPE, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = " ".join(done.stderr.split())[-300:]
        raise FetchFailed(
            f"{requirement}: pip could not download it; check the index and the network: {said}"
        )
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> int:
    """Unpack the Python files of a wheel's ``vllm`` package; return how many there are.

    Raises FetchFailed for a wheel without them, or with a name that leads out of the folder.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith("vllm/") and n.endswith(".py")]
        if not names or any(".." in Path(name).parts for name in names):
            raise FetchFailed(f"{wheel.name}: has no Python files of vllm; fetch another release")
        archive.extractall(folder, names)
    return len(names)
