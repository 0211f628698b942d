"""The CPU: what runs everywhere, and what the course is made for.

Source: vllm/platforms/cpu.py#L41-L483 (CpuPlatform) @ v0.22.1.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from mini_vllm.platforms.interface import Platform

CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's name for the GiB of a worker's KV cache on a CPU; `kv_cache_memory_bytes` goes first."""
INSTRUCTIONS = {torch.bfloat16: "avx512_bf16", torch.float16: "avx512_fp16"}
"""What a CPU must have to multiply these faster than float32."""


class CpuPlatform(Platform):
    """Main memory, gloo between workers, and C++ functions of our own beside torch's."""

    device_type = "cpu"
    is_host = True
    dist_backend = "gloo"
    attention_backends = ("triton", "cpu", "reference")

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """float32 where the CPU has no instructions for the other."""
        if dtype == torch.float32:
            return dtype
        detect = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch lack it
        return dtype if detect and detect().get(INSTRUCTIONS[dtype]) else torch.float32

    def available_memory(self, device: torch.device, utilization: float) -> int:
        """At most half of what is free: the rest of the machine needs memory, too."""
        return int(free_pages() * min(utilization, 0.5))

    def reclaimable_memory(self, device: torch.device) -> int:
        """See `Platform`; the file cache's pages, too, where the system counts them."""
        return max(host_memory(), free_pages())

    def kv_cache_space(self) -> int | None:
        """Raises ValueError for a VLLM_CPU_KVCACHE_SPACE that is no number above 0."""
        space = os.environ.get(CPU_SPACE)
        if not space:
            return None
        try:
            num_bytes = int(float(space) * 2**30)
        except (ValueError, OverflowError):
            num_bytes = 0
        if num_bytes < 1:
            raise ValueError(
                f"{CPU_SPACE} is {space!r}; it must be a number of GiB above 0, such as 4"
            )
        return num_bytes


def free_pages() -> int:
    """Bytes of main memory that hold nothing, not even files that were read."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def host_memory() -> int:
    """Bytes of main memory that programs may still take, the file cache's too; all of it where
    the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
