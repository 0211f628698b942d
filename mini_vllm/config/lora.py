"""How many LoRA adapters are kept on the device and in host memory."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import require_at_least, require_one_of


@dataclass(frozen=True)
class LoRAConfig:
    """Slots for adapters on the device, and room for more in host memory.

    Source: vllm/config/lora.py#L31-L116 (LoRAConfig) @ v0.22.1
    """

    max_loras: int = 1
    """Adapters that one step may use, and slots on the device."""
    max_lora_rank: int = 16
    """Largest rank of an adapter; every slot has room for it."""
    max_cpu_loras: int | None = None
    """Adapters kept in host memory. None: as many as there are slots."""
    lora_dtype: str = "auto"
    """Element type of the adapters; "auto": the model's."""

    def __post_init__(self) -> None:
        require_at_least("max_loras", self.max_loras, 1, "one adapter needs a slot")
        require_at_least("max_lora_rank", self.max_lora_rank, 1, "16 is the usual choice")
        if self.max_cpu_loras is not None:
            fix = f"at least max_loras={self.max_loras}, since those on the device are kept too"
            require_at_least("max_cpu_loras", self.max_cpu_loras, self.max_loras, fix)
        require_one_of("lora_dtype", self.lora_dtype, ("auto", "float32", "bfloat16", "float16"))
