"""Which adapter a request wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from mini_vllm import bundled


@dataclass(frozen=True)
class LoRARequest:
    """An adapter by name, number and folder. Two are equal if their names are.

    Args:
        lora_name: what people call it.
        lora_int_id: 1 or more; 0 means the base model. Stands for the adapter in
            ``remove_lora``, ``pin_lora`` and ``list_loras``.
        lora_path: its folder, with ``adapter_config.json`` and ``adapter_model.safetensors``.
        load_inplace: read the folder again, although an adapter of this number is known.

    Raises:
        ValueError: for a number below 1, or a name or path that is empty or no text.

    Source: vllm/lora/request.py#L8-L73 (LoRARequest) @ v0.22.1
    """

    lora_name: str
    lora_int_id: int = field(compare=False)
    lora_path: str = field(compare=False)
    load_inplace: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, value: LoRARequest | Mapping[str, Any]) -> LoRARequest:
        """What another process has sent: there it was one, here it is a mapping.

        Raises:
            ValueError: for anything else.
        """
        if isinstance(value, LoRARequest):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"lora_request is {value!r}; it must be a LoRARequest")
        return cls(**value)

    def __post_init__(self) -> None:
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise ValueError(
                f"lora_int_id is {self.lora_int_id!r}; it must be a whole number of at least 1 "
                "(0 means the base model)"
            )
        for name, value in (("lora_name", self.lora_name), ("lora_path", self.lora_path)):
            kind = str | PurePath if name == "lora_path" else str
            if not isinstance(value, kind):
                raise ValueError(f"{name} is {value!r}; it must be a string")
        if not self.lora_name:
            raise ValueError("lora_name is empty; give the adapter a name")
        if not self.lora_path:
            raise ValueError(f"lora_path of {self.lora_name!r} is empty; name the adapter's folder")
        object.__setattr__(self, "lora_path", str(self.lora_path))


def parse_lora_modules(modules: Sequence[str]) -> dict[str, LoRARequest]:
    """Adapters by name, numbered from 1, from the words of ``--lora-modules``.

    Args:
        modules: ``NAME=PATH`` each, or the name of a bundled adapter.

    Raises:
        ValueError: for a name without a path that is not bundled, or a name that comes twice.
    """
    found: dict[str, LoRARequest] = {}
    for number, module in enumerate(modules, 1):
        name, _, path = module.partition("=")
        if name in found:
            raise ValueError(f"--lora-modules has {name!r} twice; give each adapter its own name")
        if not path and name not in bundled.ADAPTERS:
            raise ValueError(
                f"--lora-modules has {module!r}; write NAME=PATH, or a bundled adapter: "
                f"{', '.join(bundled.ADAPTERS)}"
            )
        found[name] = LoRARequest(name, number, path or str(bundled.adapter_path(name)))
    return found
