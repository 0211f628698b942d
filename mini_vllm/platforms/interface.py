"""The interface of a platform: everything that the engine must know about a device.

Source: vllm/platforms/interface.py#L105-L1024 (Platform) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from mini_vllm.import_utils import resolve_obj_by_qualname

HALF_AND_FULL = (torch.bfloat16, torch.float16, torch.float32)


class Platform:
    """A type of device: its properties and how it is used.

    The defaults are valid on any device of torch. A platform overrides those for which it has
    something better. Platforms have no state.
    """

    device_type: str = ""
    """torch's name of the device: `torch.device(device_type)`."""

    # ------------------------------------------------------------------ what it is
    is_host: bool = False
    """Whether the device is the CPU: tensors are in main memory, calls are synchronous, and the
    engine's C++ functions can be used."""
    is_pin_memory_available: bool = False
    """Whether copies from pinned memory are asynchronous."""
    launches_kernels: bool = False
    """Whether it runs compiled Triton kernels."""
    streams: ClassVar[Any] = None
    """The module with its `Stream`, `stream` and `current_stream`, such as `torch.cuda`; None for a
    synchronous device."""
    ray_device_key: str = "CPU"
    """Ray's resource name for such devices."""
    dist_backend: str = ""
    """Backend of torch.distributed for its workers; "": only one worker is possible."""
    counts_peak_memory: bool = False
    """Whether :meth:`peak_bytes` is implemented."""
    profiler_activities: tuple[str, ...] = ("CPU",)
    """Activities for torch's profiler: names of `torch.profiler.ProfilerActivity`."""
    attention_backends: tuple[str, ...] = ("reference",)
    """Names of its attention backends, the preferred one first."""

    @property
    def supported_dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes that models may have; the first is used if a checkpoint's is not among them."""
        return HALF_AND_FULL

    def is_available(self) -> bool:
        """Whether this machine has such a device."""
        return True

    def device_count(self) -> int:
        """Number of devices, one for each worker; 0: all workers share one device."""
        return 0

    def check_device(self, name: str) -> None:
        """Raises ValueError if this machine has no device `name`."""
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError):
            raise ValueError(
                f"device is {name!r}, which torch cannot use here; use device='cpu', or install "
                f"what torch needs for {self.device_type!r}"
            ) from None

    def check_workers(self, world_size: int) -> None:
        """Raises ValueError if so many workers cannot communicate."""
        if world_size > 1 and not self.dist_backend:
            raise ValueError(
                f"{world_size} workers cannot share a model on {self.device_type}: it has no "
                "collectives; set tensor_parallel_size and pipeline_parallel_size to 1, or use "
                "device='cpu'"
            )

    # ------------------------------------------------------------------ numbers
    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of activations for weights of `dtype`."""
        return dtype

    def num_compute_units(self, device: torch.device) -> int:
        """Number of processors that execute different parts of a kernel at the same time."""
        return 1

    # ------------------------------------------------------------------ memory
    def mem_get_info(self, device: torch.device) -> tuple[int, int] | None:
        """Free and total bytes of device memory; None if it uses the host's memory, of which
        `gpu_memory_utilization` cannot be guaranteed."""
        return None

    def available_memory(self, device: torch.device, utilization: float) -> int:
        """Bytes available for a KV cache: a share of the total device memory, minus the bytes in
        use. If it uses the host's memory: at most half of what is free."""
        info = self.mem_get_info(device)
        if info is None:
            return int(self.reclaimable_memory(device) * min(utilization, 0.5))
        free, total = info
        return int(free - (1.0 - utilization) * total)

    def reclaimable_memory(self, device: torch.device) -> int:
        """Most bytes that can be allocated, without a reserve for other processes."""
        info = self.mem_get_info(device)
        if info is None:
            raise NotImplementedError(f"{type(self).__name__} does not say how much memory it has")
        return info[0]

    def kv_cache_space(self) -> int | None:
        """Bytes for a worker's KV cache, from an environment variable; None if it is not set."""
        return None

    def peak_bytes(self, run: Callable[[], Any], device: torch.device) -> int:
        """Peak of the bytes that `run` allocates."""
        raise NotImplementedError(f"{type(self).__name__} does not count the memory of a step")

    def empty_cache(self) -> None:
        """Free the memory that torch has cached."""

    # ------------------------------------------------------------------ steps
    def synchronize(self, device: torch.device | None = None) -> None:
        """Wait until the device has finished all its work.

        Raises:
            RuntimeError: if the device has failed.
        """

    def support_static_graph_mode(self) -> bool:
        """Whether a decode step can be recorded as a graph and replayed by one call."""
        return False

    def get_static_graph_wrapper_cls(self) -> str:
        """Qualified name of the recorder, such as `mini_vllm.worker.cuda_graphs.CudaRecorder`."""
        raise NotImplementedError(f"{type(self).__name__} records no graphs")

    def make_recorder(self) -> Any:
        """A new recorder for the graphs of one model."""
        return resolve_obj_by_qualname(self.get_static_graph_wrapper_cls())()


class UnspecifiedPlatform(Platform):
    """A device without a platform, such as torch's "meta". No engine runs on it."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type

    def check_device(self, name: str) -> None:
        """Raises ValueError."""
        raise ValueError(
            f"device is {name!r}; it must be 'auto', 'cpu', 'cuda' or 'mps', one with a number "
            "such as 'cuda:1', or the device of a plugin; no installed plugin has it"
        )
