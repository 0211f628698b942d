"""LoRARequest: the adapter of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import PurePath
from typing import Any

from mini_vllm import bundled
from mini_vllm.errors import bad_value, show
from mini_vllm.json_files import parse_json


@dataclass(frozen=True)
class LoRARequest:
    """An adapter by name, number and folder. Two are equal if their names are.

    Args:
        lora_name: its name.
        lora_int_id: 1 or more; 0 means the base model. Stands for the adapter in
            ``remove_lora``, ``pin_lora`` and ``list_loras``.
        lora_path: its folder, with ``adapter_config.json`` and ``adapter_model.safetensors``.
        base_model_name: of which model it is an adapter; only told, as in vLLM.
        tensorizer_config_dict: vLLM's; only None, as weights are read from safetensors.
        load_inplace: read the folder again, although an adapter of this number is known.
        is_3d_lora_weight: vLLM's, for experts; only False, as adapters are of linear layers.

    Raises:
        ValueError: for a number below 1, or a name or path that is empty or no text.

    Source: vllm/lora/request.py#L8-L73 (LoRARequest) @ v0.22.1
    """

    lora_name: str
    lora_int_id: int = field(compare=False)
    lora_path: str = field(default="", compare=False)
    base_model_name: str | None = field(default=None, compare=False)
    tensorizer_config_dict: dict[str, Any] | None = field(default=None, compare=False)
    load_inplace: bool = field(default=False, compare=False)
    is_3d_lora_weight: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, value: LoRARequest | Mapping[str, Any]) -> LoRARequest:
        """A LoRARequest from itself, or from the mapping that it becomes between processes.

        Raises:
            ValueError: for anything else.
        """
        if isinstance(value, LoRARequest):
            return value
        if not isinstance(value, Mapping) or not value.keys() == cls.__dataclass_fields__.keys():
            raise ValueError(f"lora_request is {show(value)}; it must be a LoRARequest")
        return cls(**value)

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path

    def __post_init__(self) -> None:
        if type(self.lora_int_id) is not int or not 1 <= self.lora_int_id < 2**63:
            raise ValueError(
                f"lora_int_id is {show(self.lora_int_id)}; it must be a whole number of at least 1 "
                "(0 means the base model) that fits int64"
            )
        for name, value in (("lora_name", self.lora_name), ("lora_path", self.lora_path)):
            kind = str | PurePath if name == "lora_path" else str
            if not isinstance(value, kind):
                raise ValueError(f"{name} is {show(value)}; it must be a string")
        if not self.lora_name:
            raise ValueError("lora_name is empty; give the adapter a name")
        if not self.lora_path:
            raise ValueError(f"lora_path of {self.lora_name!r} is empty; name the adapter's folder")
        object.__setattr__(self, "lora_path", str(self.lora_path))
        self._check_the_rest()

    def _check_the_rest(self) -> None:
        if not isinstance(self.base_model_name, str | None):
            raise bad_value("base_model_name", self.base_model_name, "it must be a string or None")
        if not isinstance(self.load_inplace, bool):
            raise bad_value("load_inplace", self.load_inplace, "it must be True or False")
        for name, why in (
            ("tensorizer_config_dict", "adapters are read from safetensors; leave it out"),
            ("is_3d_lora_weight", "adapters are of linear layers, not of experts; leave it out"),
        ):
            if value := getattr(self, name):
                raise bad_value(name, value, why)


def check_lora_id(lora_id: Any) -> int:
    """Raises ValueError unless it is a whole number. Whether such an adapter exists is not
    checked."""
    if type(lora_id) is not int:
        raise ValueError(f"lora_id is {show(lora_id)}; it must be the whole number of an adapter")
    return lora_id


def per_completion(request: LoRARequest | None) -> Iterator[LoRARequest | None]:
    """The adapter of each completion of a prompt, without end.

    Only the first has ``load_inplace``, if set; the others use the adapter that it has loaded.

    Raises:
        ValueError: if it is no LoRARequest.
    """
    if request is not None and not isinstance(request, LoRARequest):
        raise ValueError(f"lora_request is {show(request)}; it must be a LoRARequest")
    return chain([request], repeat(request and replace(request, load_inplace=False)))


def parse_lora_modules(modules: Sequence[str]) -> dict[str, LoRARequest]:
    """Adapters by name, numbered from 1, from the words of ``--lora-modules``.

    Args:
        modules: ``NAME=PATH`` each, or ``{"name": NAME, "path": PATH, "base_model_name": MODEL}``,
            of which the model may be left out, or the name of a bundled adapter.

    Raises:
        ValueError: for a name without a path that is not bundled, or a name that comes twice.

    Source: vllm/entrypoints/openai/cli_args.py#L35-L66 (LoRAParserAction) @ v0.22.1
    """
    found: dict[str, LoRARequest] = {}
    for number, module in enumerate(modules, 1):
        name, path, base_model_name = _read_module(module)
        if name in found:
            raise ValueError(f"--lora-modules has {name!r} twice; give each adapter its own name")
        if not path and name not in bundled.ADAPTERS:
            raise ValueError(
                f"--lora-modules has {module!r}; write NAME=PATH, or a bundled adapter: "
                f"{', '.join(bundled.ADAPTERS)}"
            )
        path = path or str(bundled.adapter_path(name))
        found[name] = LoRARequest(name, number, path, base_model_name)
    return found


def _read_module(module: str) -> tuple[str, str, str | None]:
    """Name, path and base model's name from one word of ``--lora-modules``; the path of a bundled
    one is empty."""
    if not module.lstrip().startswith("{"):
        name, _, path = module.partition("=")
        return name, path, None
    try:
        entries = parse_json(module)
        return entries["name"], entries["path"], entries.get("base_model_name")
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"--lora-modules has {show(module)}, which is not of the form "
            '{"name": "...", "path": "..."}'
        ) from error
