"""The slots of one Linear, and what they add to its output.

The base's matrix, which may be packed, quantised or sharded, computes ``W x`` without change. Then
`LinearLoRA` adds ``B (A x)`` in place, for each token with the slot of its adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from mini_vllm.kernels import can_launch, native
from mini_vllm.kernels.lora import LORA_EXPAND, LORA_SHRINK
from mini_vllm.lora.checkpoint import LoRAPair
from mini_vllm.lora.mapping import LoRAKernelMeta
from mini_vllm.lora.ops import apply_dense, apply_grouped, prefer_groups


class LinearLoRA:
    """``max_loras`` slots for adapters of one Linear; the object is its ``adapters``.

    Args:
        input_size, output_sizes: of the Linear, on this rank; one output size a slice.
        meta: the mapping that all layers share.

    Attributes:
        lora_a: ``[max_loras, n, max_lora_rank, in]``, A of each of the n slices.
        lora_b: ``[max_loras, max_lora_rank, out]``, the B of all slices, transposed, side by side.
        ranks: ``[max_loras]`` int32, of a CPU: the rows of each slot that are read; see
            :meth:`measure`.

    Source: vllm/lora/layers/base_linear.py#L99-L183 (BaseLinearLayerWithLoRA) @ v0.22.1
    """

    def __init__(
        self,
        input_size: int,
        output_sizes: Sequence[int],
        max_loras: int,
        max_lora_rank: int,
        meta: LoRAKernelMeta,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        ends = list(accumulate(output_sizes))
        starts = [0, *ends]
        self.columns = [slice(a, b) for a, b in zip(starts, ends, strict=False)]
        self.max_width = max(output_sizes)
        shape_a = (max_loras, len(output_sizes), max_lora_rank, input_size)
        self.lora_a = torch.zeros(shape_a, dtype=dtype, device=device)
        self.lora_b = torch.zeros(max_loras, max_lora_rank, ends[-1], dtype=dtype, device=device)
        self.ranks = torch.full((max_loras,), max_lora_rank, dtype=torch.int32)
        self.slice_starts = torch.tensor(starts, dtype=torch.int32, device=device)
        self.meta = meta
        self.dtype = dtype
        self.struct = native.Adapters.of(
            self.lora_a, self.lora_b, self.slice_starts, meta.token_lora_mapping, self.ranks
        )
        """For decoder layers that run in one native call, see `model/narrow.py`."""

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.itemsize for t in (self.lora_a, self.lora_b))

    @property
    def idle(self) -> bool:
        """Whether this step has no token of an adapter."""
        return self.meta.no_lora

    def set_lora(self, slot: int, pairs: Sequence[LoRAPair | None]) -> None:
        """Write an adapter's pairs into a slot, one for each slice; None: the slice adds nothing.

        A rank below ``max_lora_rank`` fills the first rows. Everything else of the slot becomes
        zero: the adapter before may have had more rows, or slices that this one lacks.

        Source: vllm/lora/layers/column_parallel_linear.py#L300-L326
        (MergedColumnParallelLinearWithLoRA.set_lora) @ v0.22.1
        """
        self.reset_lora(slot)
        for index, pair in enumerate(pairs):
            if pair is not None:
                rank = len(pair.a)
                self.lora_a[slot, index, :rank].copy_(pair.a)
                self.lora_b[slot, :rank, self.columns[index]].copy_(pair.b.T)

    def reset_lora(self, slot: int) -> None:
        """Empty a slot: it adds nothing."""
        self.lora_a[slot].zero_()
        self.lora_b[slot].zero_()

    def measure(self, slot: int) -> None:
        """Count the rows of a slot up to the last one that is not zero: no more are read."""
        rows = self.lora_b[slot].any(dim=1).nonzero()
        self.ranks[slot] = int(rows[-1]) + 1 if len(rows) else 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Add each token's adapter to ``y``, in place, and return it.

        Args:
            x: ``[T, in]``, the Linear's input.
            y: ``[T, out]``, its output so far.
        """
        meta = self.meta
        if meta.no_lora:
            return y
        if can_launch(x):
            self._launch(x, y)
        elif prefer_groups(len(x), len(meta.groups)):
            apply_grouped(x, y, self.lora_a, self.lora_b, self.columns, meta.groups)
        else:
            a, b = self.lora_a[meta.slots], self.lora_b[meta.slots]
            if meta.foreign is None or b.sum().isfinite():
                apply_dense(x, y, a, b, self.columns, meta.foreign)
            else:  # 0 times infinity is NaN: keep such weights away from rows of other adapters
                apply_grouped(x, y, self.lora_a, self.lora_b, self.columns, meta.groups)
        return y

    def _launch(self, x: Tensor, y: Tensor) -> None:
        """Launch two kernels for all slices and adapters: shrink to ``h [n, T, R]``, then expand
        into ``y``."""
        meta, (_, num_slices, rank, _) = self.meta, self.lora_a.shape
        hidden = torch.empty(num_slices, len(x), rank, dtype=torch.float32, device=x.device)
        segments = dict(
            order=meta.token_indices_sorted_by_lora_ids,
            lora_ids=meta.active_lora_ids,
            num_tokens=meta.num_tokens_per_lora,
            starts=meta.lora_token_start_loc,
        )
        LORA_SHRINK.run(x=x, lora_a=self.lora_a, hidden=hidden, **segments)
        LORA_EXPAND.run(
            hidden=hidden,
            lora_b=self.lora_b,
            slice_starts=self.slice_starts,
            max_width=self.max_width,
            y=y,
            **segments,
        )
