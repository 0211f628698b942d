"""Which adapter a request wants."""

from __future__ import annotations

from dataclasses import dataclass, field


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
        ValueError: for a number below 1, or an empty name or path.

    Source: vllm/lora/request.py#L8-L73 (LoRARequest) @ v0.22.1
    """

    lora_name: str
    lora_int_id: int = field(compare=False)
    lora_path: str = field(compare=False)
    load_inplace: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise ValueError(
                f"lora_int_id is {self.lora_int_id!r}; it must be a whole number of at least 1 "
                "(0 means the base model)"
            )
        if not self.lora_name:
            raise ValueError("lora_name is empty; give the adapter a name")
        if not self.lora_path:
            raise ValueError(f"lora_path of {self.lora_name!r} is empty; name the adapter's folder")
