"""NVIDIA GPUs: Triton kernels, streams, and CUDA graphs of decode steps.

Source: vllm/platforms/cuda.py#L163-L629 (CudaPlatformBase) @ v0.22.1.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from mini_vllm.platforms.interface import Platform


class CudaPlatform(Platform):
    """Device memory, nccl between workers, and asynchronous execution."""

    device_type = "cuda"
    is_pin_memory_available = True
    launches_kernels = True
    ray_device_key = "GPU"
    dist_backend = "nccl"
    profiler_activities = ("CPU", "CUDA")
    attention_backends = ("triton", "reference")
    streams = torch.cuda
    counts_peak_memory = True

    def is_available(self) -> bool:
        """See `Platform`."""
        return torch.cuda.is_available()

    def device_count(self) -> int:
        """See `Platform`."""
        return torch.cuda.device_count() if self.is_available() else 0

    def check_device(self, name: str) -> None:
        """See `Platform`."""
        if not self.is_available():
            raise ValueError(
                f"device is {name!r} but torch sees no CUDA device; use device='cpu', or install "
                "a CUDA build of torch"
            )
        number = name.partition(":")[2] or "0"
        if not number.isdecimal() or int(number) >= torch.cuda.device_count():
            raise ValueError(
                f"device is {name!r}; there are {torch.cuda.device_count()}, counted from cuda:0"
            )

    def num_compute_units(self, device: torch.device) -> int:
        """Streaming multiprocessors."""
        return torch.cuda.get_device_properties(device).multi_processor_count

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """See `Platform`.

        Memory that torch has cached for an earlier engine counts as used. So unused objects are
        collected first, and the cache is emptied.

        Source: vllm/v1/worker/gpu_worker.py#L294-L296 (Worker.init_device) @ v0.22.1
        """
        self.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)

    def peak_bytes(self, run: Callable[[], Any], device: torch.device) -> int:
        """See `Platform`."""
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)

    def empty_cache(self) -> None:
        """See `Platform`."""
        gc.collect()
        torch.cuda.empty_cache()

    def synchronize(self, device: torch.device | None = None) -> None:
        """See `Platform`. An error of CUDA stays until the process ends."""
        torch.cuda.synchronize(device)

    def support_static_graph_mode(self) -> bool:
        """See `Platform`."""
        return True

    def get_static_graph_wrapper_cls(self) -> str:
        """See `Platform`."""
        return "mini_vllm.worker.cuda_graphs.CudaRecorder"
