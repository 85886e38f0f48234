"""The names of vLLM that this package uses, loaded once, in one place.

vLLM is imported on first use and not with this package, so that the command line can say in one
line that it is missing. Loading takes several seconds.
"""

from __future__ import annotations

import functools
import logging
import os
from types import SimpleNamespace
from typing import Any

from cowtail.impl.vllm_engine.releases import Release, installed_release

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # Resumed requests arrive as cached ones with this runner, as new ones with the other.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


@functools.cache
def surface() -> Any:
    """Import vLLM and return what this package uses of it, as one namespace.

    Raises VllmNotInstalled where it is missing or of a release that is not driven.
    """
    release: Release = installed_release()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    import torch
    from vllm import config
    from vllm.distributed.kv_transfer.kv_connector import utils as connector_utils
    from vllm.distributed.kv_transfer.kv_connector.v1 import multi_connector
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import (
        coordinator,
        data,
        scheduler,
        worker,
    )
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1 import kv_cache_interface, outputs, request
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.sched import async_scheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    # The engine's warnings about refused puts and failed loads are this package's daily bread.
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    kv_cache_utils.init_none_hash(sha256)
    return SimpleNamespace(
        release=release,
        torch=torch,
        config=config,
        connector_utils=connector_utils,
        multi_connector=multi_connector,
        store_coordinator=coordinator,
        store_data=data,
        store_scheduler=scheduler,
        store_worker=worker,
        SamplingParams=SamplingParams,
        sha256=sha256,
        kv_cache=kv_cache_interface,
        kv_cache_utils=kv_cache_utils,
        outputs=outputs,
        request=request,
        Scheduler=Scheduler,
        AsyncScheduler=async_scheduler.AsyncScheduler,
    )
