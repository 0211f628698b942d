"""From the host's memory into a device's: one copy for all arrays that are made together.

A copy of a few bytes costs the host and the GPU some microseconds, whatever its size, and a step
has seven arrays. So they are laid end to end, and each is a view of what arrives::

    on the host, pinned    | input_ids | positions | slots | lengths | table |    one copy
    on the device          | input_ids | positions | slots | lengths | table |    a view each

Pinned memory is where a GPU fetches from by itself, when its turn comes. From other memory the copy
would wait for all that the GPU has to do before.

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
"""Bytes. Triton compiles a kernel anew for a tensor that begins elsewhere."""
LEAST_BYTES = 1 << 14


def is_apart(device: torch.device | str) -> bool:
    """Whether a device does not read the host's memory."""
    return not platform_of(device).is_host


def host_memory(num_bytes: int, device: torch.device | str) -> Tensor:
    """Memory of the host, `[num_bytes]` uint8, pinned where that is of use."""
    pinned = platform_of(device).is_pin_memory_available
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)


def copy_over(source: Tensor, target: Tensor) -> None:
    """A copy to a device that waits for nothing. All of a step's go through here."""
    target.copy_(source, non_blocking=True)


def on_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the host on the device: itself if that is the host, else a copy."""
    if not is_apart(device):
        return tensor
    source = host_memory(tensor.numel() * tensor.itemsize, device).view(tensor.dtype)
    source = source.view(tensor.shape).copy_(tensor)
    target = torch.empty_like(source, device=device)
    copy_over(source, target)
    return target


class Transfer:
    """Puts tensors of the host on a device, those that are put :meth:`together` in one copy.

    Args:
        device: which may be the host: then nothing is copied.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = device
        self._capacity = LEAST_BYTES
        self._chunk: tuple[Tensor, Tensor] | None = None
        self._used = 0

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor on the device.

        What is put together has arrived when :meth:`together` ends, and not before: until then it
        may be sliced, but not computed with.
        """
        if self._chunk is None or not is_apart(self.device):
            return on_device(tensor, self.device)
        size = tensor.numel() * tensor.itemsize
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        if start + size > self._capacity:
            self._send()
            self._begin(max(2 * self._capacity, start + size))  # the next time all fits
            start = 0
        self._used = start + size
        host, there = (
            part[start : start + size].view(tensor.dtype).view(tensor.shape) for part in self._chunk
        )
        host.copy_(tensor)
        return there

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is put meanwhile goes in one copy; in more only if it is more than ever."""
        self._begin(self._capacity)
        try:
            yield
            self._send()
        finally:
            self._chunk, self._used = None, 0

    def _begin(self, num_bytes: int) -> None:
        """Memory for so many bytes; new in each step, for the step before may still be read."""
        self._capacity, self._used = num_bytes, 0
        if is_apart(self.device):
            there = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            self._chunk = host_memory(num_bytes, self.device), there

    def _send(self) -> None:
        if self._used and self._chunk is not None:
            host, there = self._chunk
            copy_over(host[: self._used], there[: self._used])
