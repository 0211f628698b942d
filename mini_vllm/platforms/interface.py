"""What the engine must know about a device.

Source: vllm/platforms/interface.py#L105-L1024 (Platform) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from mini_vllm.import_utils import resolve_obj_by_qualname

HALF_AND_FULL = (torch.bfloat16, torch.float16, torch.float32)


class Platform:
    """One kind of device: what it can do, and how it is used.

    The answers here promise nothing, and hold on any device that torch has. A platform overrides
    those for which it has a better one. None of them keeps state.
    """

    device_type: str = ""
    """What torch calls the device: `torch.device(device_type)`."""

    # ------------------------------------------------------------------ what it is
    is_host: bool = False
    """Whether the device is the CPU itself: its tensors lie in main memory, a result is there when
    the call returns, and the engine's C++ functions run on it."""
    is_pin_memory_available: bool = False
    """Whether a copy from pinned memory does not wait for the device."""
    launches_kernels: bool = False
    """Whether it runs Triton kernels that are compiled for it."""
    streams: ClassVar[Any] = None
    """What has its `Stream`, `stream` and `current_stream`, as `torch.cuda` does; None: a device
    that has nothing to do behind the host, so no step comes late."""
    ray_device_key: str = "CPU"
    """What Ray calls such a device when it counts them."""
    dist_backend: str = ""
    """The backend of torch.distributed that its workers talk by; "": it runs one worker only."""
    counts_peak_memory: bool = False
    """Whether :meth:`peak_bytes` can tell what a step takes."""
    profiler_activities: tuple[str, ...] = ("CPU",)
    """What torch's profiler can record of it: names of `torch.profiler.ProfilerActivity`."""
    attention_backends: tuple[str, ...] = ("reference",)
    """Names of attention backends that it offers, the one to prefer first."""

    @property
    def supported_dtypes(self) -> tuple[torch.dtype, ...]:
        """What models may be loaded in; the first is taken where a checkpoint's is not one."""
        return HALF_AND_FULL

    def is_available(self) -> bool:
        """Whether there is such a device in this machine."""
        return True

    def device_count(self) -> int:
        """Devices that workers can have one each; 0: all workers share the one there is."""
        return 0

    def check_device(self, name: str) -> None:
        """Raises ValueError if this machine has no device called `name`."""
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError):
            raise ValueError(
                f"device is {name!r}, which torch cannot use here; use device='cpu', or install "
                f"what torch needs for {self.device_type!r}"
            ) from None

    def check_workers(self, world_size: int) -> None:
        """Raises ValueError if so many workers cannot talk to each other."""
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
        """Processors that work on different parts of a kernel at a time."""
        return 1

    # ------------------------------------------------------------------ memory
    def mem_get_info(self, device: torch.device) -> tuple[int, int] | None:
        """Bytes of memory of its own that are free, and all it has; None: it shares the host's, and
        a share of the whole (`gpu_memory_utilization`) cannot be promised."""
        return None

    def available_memory(self, device: torch.device, utilization: float) -> int:
        """Bytes that a KV cache may take: a share of the whole, less what is in use; of memory that
        others need too, half of what is free at most."""
        info = self.mem_get_info(device)
        if info is None:
            return int(self.reclaimable_memory(device) * min(utilization, 0.5))
        free, total = info
        return int(free - (1.0 - utilization) * total)

    def reclaimable_memory(self, device: torch.device) -> int:
        """Bytes that could be had at most, without a reserve for others."""
        info = self.mem_get_info(device)
        if info is None:
            raise NotImplementedError(f"{type(self).__name__} does not say how much memory it has")
        return info[0]

    def kv_cache_space(self) -> int | None:
        """Bytes for a worker's KV cache that the environment names; None: it says nothing."""
        return None

    def peak_bytes(self, run: Callable[[], Any], device: torch.device) -> int:
        """The most that `run` holds at once, beside what is held already."""
        raise NotImplementedError(f"{type(self).__name__} does not count the memory of a step")

    def empty_cache(self) -> None:
        """Give back the memory that torch keeps for later."""

    # ------------------------------------------------------------------ steps
    def synchronize(self, device: torch.device | None = None) -> None:
        """Wait until all work that was given to the device is done.

        Raises:
            RuntimeError: if the device answers no more.
        """

    def support_static_graph_mode(self) -> bool:
        """Whether a decode step can be recorded once and replayed by one call."""
        return False

    def get_static_graph_wrapper_cls(self) -> str:
        """The path of what records: see :class:`mini_vllm.worker.cuda_graphs.CudaRecorder`."""
        raise NotImplementedError(f"{type(self).__name__} records no graphs")

    def make_recorder(self) -> Any:
        """A new recorder for the graphs of one model."""
        return resolve_obj_by_qualname(self.get_static_graph_wrapper_cls())()


class UnspecifiedPlatform(Platform):
    """A device that no platform describes, such as torch's "meta". No engine runs on it."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type

    def check_device(self, name: str) -> None:
        """Raises ValueError."""
        raise ValueError(
            f"device is {name!r}; it must be 'auto', 'cpu', 'cuda' or 'mps', one with a number "
            "such as 'cuda:1', or the device of a plugin; no installed plugin has it"
        )
