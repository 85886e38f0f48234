"""Vllm's MultiConnector over store connectors: its children, their metadata and their reports.

Each child has a store of its own, and a sending and a receiving side on every rank. Ranks are
numbered on from child to child, and so are jobs: each child counts its own from 0.

>>> number(0, 7), number(1, 7), own_number(10_007)
(7, 10007, 7)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cowtail.impl.vllm_engine.surface import surface

_JOBS_OF_A_CHILD = 10_000
"""More than any run has, so that a job's number says whose it is."""


def number(child: int, job: int) -> int:
    """Return the number of a child's job among those of all children."""
    return child * _JOBS_OF_A_CHILD + job


def own_number(job: int) -> int:
    """Return the number that a job has for its child."""
    return job % _JOBS_OF_A_CHILD


def store_connectors(connector: Any) -> list[Any]:
    """Return the store connectors behind a scheduler's connector, itself if it is one."""
    return list(getattr(connector, "_connectors", (connector,)))


def metadata_of(metadata: Any, child: int) -> Any:
    """Return the part of a step's metadata that is a child's."""
    return getattr(metadata, "metadata", (metadata,))[child]


def requests_of(metadata: Any) -> Iterator[tuple[int, Any]]:
    """Yield every request of a step's metadata with the child that it is for."""
    for child, part in enumerate(getattr(metadata, "metadata", (metadata,))):
        for request in part.requests:
            yield child, request


def one_report(outputs: Sequence[Any]) -> Any:
    """Return what the children report on one rank as the rank's one ``KVConnectorOutput``."""
    if len(outputs) == 1:
        return outputs[0]
    vllm = surface()
    parts = tuple(output.kv_connector_worker_meta for output in outputs)
    loaded = set().union(*(output.finished_recving or () for output in outputs))
    failed: dict[str, Any] = {
        "invalid_block_ids": set().union(*(output.invalid_block_ids for output in outputs))
    }
    if vllm.release.failed_loads_by_request:
        failed = {"failed_recving": set().union(*(output.failed_recving for output in outputs))}
    together = vllm.multi_connector.MultiKVConnectorWorkerMetadata(metadata=parts)
    return vllm.outputs.KVConnectorOutput(
        finished_recving=loaded or None,
        **failed,
        kv_connector_worker_meta=together if any(parts) else None,
    )
