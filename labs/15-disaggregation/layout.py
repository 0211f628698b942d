"""Blocks out of the cache, and back into it: one contiguous piece a block, over all layers.

::

    in the cache     L tensors [2, N, B, H, D]    a block is 2 L pieces, far apart
    on its way       [n, L, 2, B, H, D]           a block is one piece

In blocks of 16, bfloat16, Llama 3.1: a piece a layer is 64 KiB, all layers together are 2 MiB (8B)
or 5 MiB (70B). One copy of all costs one start instead of 32 or 80.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gather_blocks(layers: Sequence[Tensor], block_ids: Sequence[int]) -> Tensor:
    """Copy blocks out of the cache.

    Args:
        layers: L tensors ``[2, N, B, H, D]``, keys and values.
        block_ids: n of the N blocks, in any order; n may be 0.

    Returns:
        ``[n, L, 2, B, H, D]`` on the layers' device, contiguous, the i-th for ``block_ids[i]``. A
        copy: the cache may change afterwards.
    """
    # TODO 15.4
    raise NotImplementedError(
        "TODO 15.4: write gather_blocks in labs/15-disaggregation/layout.py"
        " (phase 15, 02-mini-build.md#task-4)"
    )


def scatter_blocks(blocks: Tensor, layers: Sequence[Tensor], block_ids: Sequence[int]) -> None:
    """Copy blocks into the cache, in place.

    Args:
        blocks: ``[n, L, 2, B, H, D]``, on any device, as :func:`gather_blocks` returns them.
        layers: L tensors ``[2, N, B, H, D]``.
        block_ids: where the i-th goes to; n different ones.

    Raises:
        ValueError: if there are not as many blocks as ids.
    """
    # TODO 15.4
    raise NotImplementedError(
        "TODO 15.4: write scatter_blocks in labs/15-disaggregation/layout.py"
        " (phase 15, 02-mini-build.md#task-4)"
    )


def to_bytes(blocks: Tensor) -> list[memoryview]:
    """One piece of memory for each of ``[n, ...]`` blocks; no copy if they are on the CPU."""
    flat = blocks.cpu().contiguous().view(torch.uint8).reshape(len(blocks), -1)
    return [memoryview(row.numpy()) for row in flat]


def from_bytes(pieces: Sequence[bytes | memoryview], layers: Sequence[Tensor]) -> Tensor:
    """The blocks ``[n, L, 2, B, H, D]`` that such pieces hold, on the CPU.

    Raises:
        ValueError: if a piece has another length than a block of these layers.
    """
    shape = block_shape(layers)
    dtype = layers[0].dtype
    num_bytes = shape.numel() * dtype.itemsize
    for piece in pieces:
        if len(piece) != num_bytes:
            raise ValueError(f"a piece has {len(piece)} bytes; a block has {num_bytes}")
    joined = bytearray().join(pieces)
    return torch.frombuffer(joined, dtype=dtype).view(len(pieces), *shape)


def block_shape(layers: Sequence[Tensor]) -> torch.Size:
    """``[L, 2, B, H, D]`` of one block."""
    two, _, *rest = layers[0].shape
    return torch.Size([len(layers), two, *rest])
