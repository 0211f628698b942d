"""Transfer of keys and values to and from other engines, and events of the prefix cache."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.config.checks import require_at_least, require_flag, require_one_of

ROLES = ("kv_producer", "kv_consumer", "kv_both")
POLICIES = ("recompute", "fail")


@dataclass(frozen=True)
class KVTransferConfig:
    """A KV connector.

    Source: vllm/config/kv_transfer.py#L23-L122 (KVTransferConfig) @ v0.22.1
    """

    kv_connector: str
    """Name of the connector's class."""
    kv_role: str | None = None
    """Whether this engine sends KV ("kv_producer"), receives it ("kv_consumer"), or both
    ("kv_both")."""
    engine_id: str | None = field(default=None, compare=False)
    """The name of this engine for others. None: a random name."""
    kv_connector_extra_config: Mapping[str, Any] = field(default_factory=dict)
    """The connector's own settings."""
    kv_load_failure_policy: str = "fail"
    """Requests whose KV does not arrive "recompute" it, or "fail"."""
    kv_connector_module_path: str | None = None
    """Module with a connector of your own, as ``package.module``."""

    def __post_init__(self) -> None:
        if not isinstance(self.kv_connector, str) or not self.kv_connector:
            raise ValueError(f"kv_connector is {self.kv_connector!r}; it must be a name")
        if self.kv_role is None:
            raise ValueError(
                f"kv_connector is {self.kv_connector!r} but kv_role is not set; it must be one of "
                f"{', '.join(ROLES)}"
            )
        require_one_of("kv_role", self.kv_role, ROLES)
        if self.engine_id is None:
            object.__setattr__(self, "engine_id", uuid.uuid4().hex)
        if not isinstance(self.engine_id, str) or not self.engine_id:
            raise ValueError(f"engine_id is {self.engine_id!r}; it must be a name, or left out")
        require_one_of("kv_load_failure_policy", self.kv_load_failure_policy, POLICIES)
        if not isinstance(self.kv_connector_extra_config, Mapping):
            raise ValueError(
                f"kv_connector_extra_config is {self.kv_connector_extra_config!r}; it must be an "
                "object of the connector's own settings"
            )

    @property
    def is_kv_producer(self) -> bool:
        return self.kv_role in ("kv_producer", "kv_both")

    @property
    def is_kv_consumer(self) -> bool:
        return self.kv_role in ("kv_consumer", "kv_both")


PUBLISHERS = ("null", "zmq")


@dataclass(frozen=True)
class KVEventsConfig:
    """Events about the blocks of the prefix cache.

    Source: vllm/config/kv_events.py#L10-L52 (KVEventsConfig) @ v0.22.1
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    """"zmq", or "null" for no publisher. None: "zmq" if events are on."""
    endpoint: str = "tcp://*:5557"
    """Address to publish events at; with a ``*`` the socket is bound, else connected."""
    replay_endpoint: str | None = None
    """Address where a subscriber requests batches that it has missed."""
    buffer_steps: int = 10_000
    """Batches that are kept for such requests."""
    hwm: int = 100_000
    """Batches that may wait for a slow subscriber; later ones are dropped."""
    max_queue_size: int = 100_000
    """Batches that may wait for the thread that sends."""
    topic: str = ""

    def __post_init__(self) -> None:
        require_flag("enable_kv_cache_events", self.enable_kv_cache_events)
        if self.publisher is None:
            publisher = "zmq" if self.enable_kv_cache_events else "null"
            object.__setattr__(self, "publisher", publisher)
        require_one_of("publisher", self.publisher, PUBLISHERS)
        for name, value in (("endpoint", self.endpoint), ("topic", self.topic)):
            if not isinstance(value, str):
                raise ValueError(f"{name} is {value!r}; it must be a text")
        if not isinstance(self.replay_endpoint, str | None):
            raise ValueError(f"replay_endpoint is {self.replay_endpoint!r}; it must be an address")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            require_at_least(name, getattr(self, name), 1, "or leave it out")
