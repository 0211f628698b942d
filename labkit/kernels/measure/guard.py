"""Tensors between guard bands: on a GPU no watcher sees a kernel, but it leaves traces.

    | band, 64 KiB of 0xFF | the tensor, its gaps filled with 0xFF | band, 64 KiB of 0xFF |

0xFF is NaN in every float type, so what is read there by mistake poisons the result, and what is
written there is found afterwards. A band finds a write that lands near the tensor; one that lands
farther away hits something else, or the driver stops the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

BAND_BYTES = 64 * 1024
FILL = 0xFF


class Guarded:
    """A copy of a tensor, with the same shape and strides, on `device`, between bands.

    Attributes:
        view: what the kernel gets.
    """

    def __init__(self, tensor: Tensor, device: torch.device | str) -> None:
        last = sum(
            (n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        self._span = (last + 1 if tensor.numel() else 0) * tensor.itemsize
        self._memory = torch.full(
            (self._span + 2 * BAND_BYTES,), FILL, dtype=torch.uint8, device=device
        )
        # torch wants the bytes of a view to be a multiple of its item: cut, then look at them anew.
        middle = self._memory[BAND_BYTES : BAND_BYTES + self._span].view(tensor.dtype)
        self.view = middle.as_strided(
            tensor.shape, tensor.stride(), middle.storage_offset() if tensor.numel() else 0
        )
        self.view.copy_(tensor)
        inside = torch.zeros(self._span // tensor.itemsize, dtype=torch.bool, device=device)
        if tensor.numel():
            inside.as_strided(tensor.shape, tensor.stride()).fill_(True)
        self._gap = ~inside.repeat_interleave(tensor.itemsize)
        self._before = self.view.clone()

    def damage(self, writable: Tensor | bool) -> str:
        """What was written that may not be, in words; "" if nothing was.

        Args:
            writable: elements that may have changed, a mask that broadcasts to the tensor's shape.
        """
        size = len(self._memory)
        for where, part in (
            ("before the start", self._memory[:BAND_BYTES]),
            ("behind the end", self._memory[size - BAND_BYTES :]),
            ("between the rows", self._memory[BAND_BYTES : size - BAND_BYTES][self._gap]),
        ):
            count = int((part != FILL).sum())
            if count:
                return f"{count} bytes {where} were written"
        changed = self._bits(self.view) != self._bits(self._before)
        allowed = torch.as_tensor(writable, device=changed.device)
        wrong = changed & ~allowed
        if wrong.any():
            first = tuple(wrong.nonzero()[0].tolist())
            return f"{int(wrong.sum())} elements changed that must stay, the first at {list(first)}"
        return ""

    def reset(self, poison: float = float("nan"), output: bool = False) -> None:
        """The numbers of the start; an output is filled with `poison` instead."""
        if output:
            self.view.fill_(poison)
            self._before = self.view.clone()
        else:
            self.view.copy_(self._before)

    @staticmethod
    def _bits(tensor: Tensor) -> Tensor:
        sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return tensor.contiguous().view(sizes[tensor.itemsize])


def guard_all(problem: Mapping[str, Any], device: torch.device | str) -> dict[str, Guarded]:
    """A guarded copy of each tensor of a problem, by its name."""
    return {
        name: Guarded(value, device) for name, value in problem.items() if isinstance(value, Tensor)
    }
