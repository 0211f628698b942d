"""Copies arrays from host memory to a device, several arrays in one copy.

A copy of a few bytes takes some microseconds on the host and the GPU, whatever its size, and a step
has seven arrays. So they are put into one buffer, and each is a view of the copied buffer::

    on the host, pinned    | input_ids | positions | slots | lengths | table |    one copy
    on the device          | input_ids | positions | slots | lengths | table |    a view each

A GPU copies from pinned memory asynchronously. From other memory, the host would wait until the GPU
has finished its earlier work.

Source: vllm/v1/worker/gpu_input_batch.py#L91-L1109 (InputBatch) @ v0.22.1. Difference: there each
array has a pinned buffer and a copy of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mini_vllm.platforms import platform_of

ALIGNMENT = 16
"""In bytes. Triton compiles a kernel again for a tensor with another alignment."""
LEAST_BYTES = 1 << 14


def is_apart(device: torch.device | str) -> bool:
    """Whether a device has its own memory."""
    return not platform_of(device).is_host


def host_memory(num_bytes: int, device: torch.device | str) -> Tensor:
    """Host memory, `[num_bytes]` uint8, pinned if the device benefits from it."""
    pinned = platform_of(device).is_pin_memory_available
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)


def copy_over(source: Tensor, target: Tensor) -> None:
    """An asynchronous copy to a device. All copies of a step use this function."""
    target.copy_(source, non_blocking=True)


def on_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A host tensor on the device: the tensor itself if that is the host, else a copy."""
    if not is_apart(device):
        return tensor
    source = host_memory(tensor.numel() * tensor.itemsize, device).view(tensor.dtype)
    source = source.view(tensor.shape).copy_(tensor)
    target = torch.empty_like(source, device=device)
    copy_over(source, target)
    return target


class Transfer:
    """Copies host tensors to a device; those inside :meth:`together` in one copy.

    Args:
        device: if it is the host, nothing is copied.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = device
        self._capacity = LEAST_BYTES
        self._chunk: tuple[Tensor, Tensor] | None = None
        self._used = 0

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor on the device.

        Inside :meth:`together`, the data is copied only when that context ends. Until then the
        result may be sliced, but not used in computations.
        """
        if self._chunk is None or not is_apart(self.device):
            return on_device(tensor, self.device)
        size = tensor.numel() * tensor.itemsize
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        if start + size > self._capacity:
            self._send()
            self._begin(max(2 * self._capacity, start + size))  # the next time, all fit
            start = 0
        self._used = start + size
        host, there = (
            part[start : start + size].view(tensor.dtype).view(tensor.shape) for part in self._chunk
        )
        host.copy_(tensor)
        return there

    @contextmanager
    def together(self) -> Iterator[None]:
        """Tensors that are put inside this context are copied together: in one copy, unless they
        need more memory than in any step before."""
        self._begin(self._capacity)
        try:
            yield
            self._send()
        finally:
            self._chunk, self._used = None, 0

    def _begin(self, num_bytes: int) -> None:
        """Allocate buffers, new ones for each step: the previous ones may still be in use."""
        self._capacity, self._used = num_bytes, 0
        if is_apart(self.device):
            there = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            self._chunk = host_memory(num_bytes, self.device), there

    def _send(self) -> None:
        if self._used and self._chunk is not None:
            host, there = self._chunk
            copy_over(host[: self._used], there[: self._used])
