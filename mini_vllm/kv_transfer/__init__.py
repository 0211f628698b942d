"""KV that travels: to host memory and back, to a store that others read, to another engine.

One interface of two halves (:mod:`~mini_vllm.kv_transfer.base`), a scheduler that waits for what is
on its way (:mod:`~mini_vllm.kv_transfer.scheduler`), and connectors for it. Importing this imports
no torch.
"""

from mini_vllm.core.scheduler_output import KVConnectorOutput
from mini_vllm.kv_transfer.base import (
    ConnectorContext,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from mini_vllm.kv_transfer.factory import KVConnectorFactory

__all__ = [
    "ConnectorContext",
    "KVConnectorBase_V1",
    "KVConnectorFactory",
    "KVConnectorMetadata",
    "KVConnectorOutput",
    "KVConnectorRole",
]
