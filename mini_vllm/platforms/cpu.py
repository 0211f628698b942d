"""The CPU: the platform that is always available, and that the course uses.

Source: vllm/platforms/cpu.py#L41-L483 (CpuPlatform) @ v0.22.1.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from mini_vllm.platforms.interface import Platform

CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's variable for the GiB of a worker's KV cache on a CPU; `kv_cache_memory_bytes` overrides
it."""
INSTRUCTIONS = {torch.bfloat16: "avx512_bf16", torch.float16: "avx512_fp16"}
"""Instructions that a CPU needs to multiply these dtypes faster than float32."""


class CpuPlatform(Platform):
    """Main memory, gloo between workers, and this engine's C++ functions beside torch's."""

    device_type = "cpu"
    is_host = True
    dist_backend = "gloo"
    attention_backends = ("triton", "cpu", "reference")

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """`dtype`, or float32 if the CPU has no instructions for it."""
        if dtype == torch.float32:
            return dtype
        detect = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch lack it
        return dtype if detect and detect().get(INSTRUCTIONS[dtype]) else torch.float32

    def available_memory(self, device: torch.device, utilization: float) -> int:
        """At most half of the free memory: other processes need memory, too."""
        return int(free_pages() * min(utilization, 0.5))

    def reclaimable_memory(self, device: torch.device) -> int:
        """See `Platform`. Includes the pages of the file cache, where the system counts them."""
        return max(host_memory(), free_pages())

    def kv_cache_space(self) -> int | None:
        """From VLLM_CPU_KVCACHE_SPACE. Raises ValueError unless that is a number above 0."""
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
    """Bytes of unused main memory, without the file cache."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def host_memory() -> int:
    """Bytes of main memory available to programs, with the file cache; the total memory where the
    system does not report it."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
