"""From a connector's name to its class.

Source: vllm/distributed/kv_transfer/kv_connector/factory.py#L27-L149 (KVConnectorFactory) @ v0.22.1
"""

from __future__ import annotations

import difflib
import importlib
from typing import ClassVar

from mini_vllm.config import KVTransferConfig
from mini_vllm.kv_transfer.base import ConnectorContext, KVConnectorBase_V1, KVConnectorRole


class KVConnectorFactory:
    """Connectors by name; each is imported when it is needed."""

    _registry: ClassVar[dict[str, tuple[str, str]]] = {
        "SharedStorageConnector": (
            "mini_vllm.kv_transfer.shared_storage",
            "SharedStorageConnector",
        ),
        "ExampleConnector": (  # vLLM's name of it today
            "mini_vllm.kv_transfer.shared_storage",
            "SharedStorageConnector",
        ),
        "OffloadingConnector": ("mini_vllm.kv_transfer.offloading", "OffloadingConnector"),
        "P2pTcpConnector": ("mini_vllm.kv_transfer.p2p", "P2pTcpConnector"),
        "MultiConnector": ("mini_vllm.kv_transfer.multi", "MultiConnector"),
    }

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        """Add a connector of your own, by which ``kv_connector`` may be called then.

        Raises:
            ValueError: if the name is taken.

        Source: vllm/distributed/kv_transfer/kv_connector/factory.py#L31-L40
        (KVConnectorFactory.register_connector) @ v0.22.1
        """
        if name in cls._registry:
            raise ValueError(f"a connector {name!r} is registered already; choose another name")
        cls._registry[name] = (module_path, class_name)

    @classmethod
    def get_connector_class(cls, config: KVTransferConfig) -> type[KVConnectorBase_V1]:
        """The class that a configuration names, with its own settings checked.

        Raises:
            ValueError: for an unknown connector, naming the nearest; for settings that it does not
                know or cannot use.
        """
        name = config.kv_connector
        if name in cls._registry:
            module_path, class_name = cls._registry[name]
        elif config.kv_connector_module_path is not None:
            module_path, class_name = config.kv_connector_module_path, name
        else:
            known = sorted(cls._registry)
            stems = {one.removesuffix("Connector"): one for one in known}
            near = difflib.get_close_matches(name.removesuffix("Connector"), stems, n=1)
            hint = f"did you mean {stems[near[0]]}?" if near else f"known are {', '.join(known)}"
            raise ValueError(f"kv_connector is {name!r}; {hint}")
        try:
            found = getattr(importlib.import_module(module_path), class_name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"kv_connector {name!r} cannot be loaded: {error}") from None
        if not isinstance(found, type) or not issubclass(found, KVConnectorBase_V1):
            raise ValueError(
                f"kv_connector {name!r} of {module_path} is no connector; derive a class from "
                "mini_vllm.kv_transfer.base.KVConnectorBase_V1"
            )
        _check_extra(name, config, found)
        found.check_config(config)
        return found

    @classmethod
    def create_connector(
        cls, config: KVTransferConfig, role: KVConnectorRole, context: ConnectorContext
    ) -> KVConnectorBase_V1:
        """One half of the connector that ``config`` names."""
        return cls.get_connector_class(config)(config, role, context)


def _check_extra(
    name: str, config: KVTransferConfig, connector_class: type[KVConnectorBase_V1]
) -> None:
    known = getattr(connector_class, "extra_keys", None)
    if known is None or name not in KVConnectorFactory._registry:
        return  # a connector from outside has settings of its own
    for key in config.kv_connector_extra_config:
        if key not in known:
            near = difflib.get_close_matches(str(key), list(known), n=1)
            hint = (
                f"did you mean {near[0]}?" if near else f"the keys of {name} are {', '.join(known)}"
            )
            raise ValueError(f"kv_connector_extra_config has no key {key!r}; {hint}")
