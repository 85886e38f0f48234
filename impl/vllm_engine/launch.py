"""Running a release: a subprocess that imports it from the cache of unpacked wheels.

One environment serves all releases. The one installed there runs in place; another runs in a
subprocess with its unpacked folder first on PYTHONPATH, and everything else, torch included,
comes from the environment. Nothing is fetched here: see ``fetch.py`` and ``cowtail vllm fetch``.

>>> folder_of("0.31.0").name
'0.31.0'
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cowtail.impl.vllm_engine.releases import (
    RELEASES,
    VllmNotInstalled,
    installed_release,
    release_named,
)

CACHE_VARIABLE = "COWTAIL_CACHE"
"""Environment variable that names another folder for what cowtail keeps between runs."""
_CHILD = "COWTAIL_VLLM_RELEASE"
"""Set in a subprocess that runs a release, so that it never starts another one for it."""


def cache_folder() -> Path:
    """Return the folder that holds one unpacked release in each of its folders."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute() / "vllm"
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "cowtail" / "vllm"


def folder_of(version: str) -> Path:
    """Return where a release is, or would be, unpacked.

    Raises VllmNotInstalled for one that is not listed.
    """
    return cache_folder() / release_named(version).version


def is_unpacked(version: str) -> bool:
    """Whether a release is in the cache. It is moved there in one piece, so it is whole."""
    return (folder_of(version) / "vllm" / "_version.py").is_file()


def is_installed(version: str) -> bool:
    """Whether Python would import this release here."""
    try:
        return installed_release().version == version
    except VllmNotInstalled:
        return False


def runnable_releases() -> tuple[str, ...]:
    """Return the releases that can be run here, installed or in the cache, oldest first."""
    return tuple(
        release.version
        for release in RELEASES
        if is_installed(release.version) or is_unpacked(release.version)
    )


def environment_of(version: str) -> dict[str, str]:
    """Return the environment of a subprocess that imports this release.

    Raises VllmNotInstalled, with the command that fetches it, where it is neither installed nor
    in the cache, and where even the environment of another release is missing.
    """
    release = release_named(version)
    environment = dict(os.environ)
    if is_installed(release.version):
        return environment
    if environment.get(_CHILD) == release.version:
        raise VllmNotInstalled(
            f"vLLM {version}: was put first on PYTHONPATH, but another is imported; "
            "run Python without -E, -I and -P"
        )
    installed_release()
    if not is_unpacked(release.version):
        raise VllmNotInstalled(
            f"vLLM {version}: is not in {cache_folder()}; run `cowtail vllm fetch {version}`"
        )
    paths = [str(folder_of(release.version)), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    environment[_CHILD] = release.version
    return environment


def run_in_release(version: str, words: Sequence[str]) -> int:
    """Run ``python WORDS`` with a release, its output and input ours; return the exit code.

    ``run_in_release("0.31.0", ("-m", "cowtail", "doctor"))``. Interrupted, it waits: whoever
    presses Ctrl-C interrupts the subprocess too, which ends once it has written what it has.
    Raises VllmNotInstalled.
    """
    with subprocess.Popen([sys.executable, *words], env=environment_of(version)) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


def output_in_release(version: str, words: Sequence[str], timeout: float | None = None) -> str:
    """Run ``python WORDS`` with a release; return what it prints.

    Raises VllmNotInstalled, and RuntimeError with the end of what it complained of if it fails,
    or is not done after ``timeout`` seconds.
    """
    environment = environment_of(version)
    try:
        done = subprocess.run(
            [sys.executable, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise RuntimeError(f"vLLM {version}: not done after {expired.timeout:g} s") from None
    if done.returncode:
        complaint = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise RuntimeError(f"vLLM {version}: ended with code {done.returncode}: {complaint}")
    return done.stdout
