"""Where keys and values go to, or come from, besides this engine's own cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.config.checks import require_one_of

ROLES = ("kv_producer", "kv_consumer", "kv_both")
POLICIES = ("recompute", "fail")


@dataclass(frozen=True)
class KVTransferConfig:
    """A KV connector.

    Source: vllm/config/kv_transfer.py#L23-L122 (KVTransferConfig) @ v0.22.1
    """

    kv_connector: str
    """Name of the connector's class."""
    kv_role: str
    """Whether this engine hands KV out ("kv_producer"), takes it ("kv_consumer"), or both."""
    engine_id: str | None = None
    """How others call this engine. None: a random name."""
    kv_connector_extra_config: Mapping[str, Any] = field(default_factory=dict)
    """What the connector itself wants to know."""
    kv_load_failure_policy: str = "fail"
    """What becomes of requests whose KV does not arrive: "recompute" or "fail"."""

    def __post_init__(self) -> None:
        for name in ("kv_connector", "kv_role"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} is {value!r}; it must be a name")
        require_one_of("kv_role", self.kv_role, ROLES)
        require_one_of("kv_load_failure_policy", self.kv_load_failure_policy, POLICIES)
        if not isinstance(self.kv_connector_extra_config, Mapping):
            raise ValueError(
                f"kv_connector_extra_config is {self.kv_connector_extra_config!r}; it must be an "
                "object of the connector's own settings"
            )
