"""Apple's GPUs through Metal: `device="mps"`.

This platform has never run on real hardware, because the project has no such GPU. Its tests run the
engine with these settings on another device, and `make doctor` shows the command that checks it on
a Mac. vLLM 0.22.1 has no such platform: on macOS it runs on the CPU.
"""

from __future__ import annotations

import gc

import torch

from mini_vllm.platforms.interface import Platform


class MpsPlatform(Platform):
    """Plain torch operations in float16 and float32, one worker, memory shared with the host."""

    device_type = "mps"
    attention_backends = ("reference",)

    @property
    def supported_dtypes(self) -> tuple[torch.dtype, ...]:
        """Without bfloat16, which some of these GPUs lack; a bfloat16 checkpoint runs in
        float16."""
        return torch.float16, torch.float32

    def is_available(self) -> bool:
        """See `Platform`."""
        return torch.backends.mps.is_available()

    def check_device(self, name: str) -> None:
        """See `Platform`."""
        if not self.is_available():
            raise ValueError(
                f"device is {name!r} but torch sees no Metal device; use device='cpu', or a Mac "
                "with Apple silicon and macOS 14 or newer"
            )
        if name not in ("mps", "mps:0"):
            raise ValueError(f"device is {name!r}; there is one, 'mps'")

    def reclaimable_memory(self, device: torch.device) -> int:
        """Metal's recommended maximum, minus the bytes that torch has allocated."""
        self.empty_cache()
        return max(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory(), 0)

    def empty_cache(self) -> None:
        """See `Platform`."""
        gc.collect()
        torch.mps.empty_cache()

    def synchronize(self, device: torch.device | None = None) -> None:
        """See `Platform`."""
        torch.mps.synchronize()
