"""A CPU that computes in float32 alone, whatever the checkpoint says."""

from __future__ import annotations

import torch

from mini_vllm.platforms.cpu import CpuPlatform


class TutorPlatform(CpuPlatform):
    """Takes the place of the engine's own platform for "cpu", and of "auto"."""

    attention_backends = ("counting", "reference")

    @property
    def supported_dtypes(self) -> tuple[torch.dtype, ...]:
        """See `Platform`."""
        return (torch.float32,)
