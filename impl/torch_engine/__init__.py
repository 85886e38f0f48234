"""A small KV-cache engine on torch: paged memory, hybrid cache groups, a store connector.

Written from docs/reference/semantics.md, in the field's words, without the model's rules.
"""

from cowtail.impl.torch_engine.engine import TorchEngine
from cowtail.impl.torch_engine.errors import ConservationError, DeviceNotAvailable, EngineError
from cowtail.impl.torch_engine.streams import StreamKind

__all__ = [
    "ConservationError",
    "DeviceNotAvailable",
    "EngineError",
    "StreamKind",
    "TorchEngine",
]
