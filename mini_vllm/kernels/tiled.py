"""How the kernel of `attention/tiled_prefill.py` is launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from mini_vllm.kernels.attention import plan_paged_prefill, work_paged_prefill
from mini_vllm.kernels.launch import KernelSpec, Launch, next_power_of_2

MOST_HEADS = 16
"""Heads of a group that share a tile; a larger group has several tiles."""
KEY_TILE = 32
"""With 64 keys, a tile of 128 rows and 128 features does not fit the registers of sm_80; it fits
those of sm_90, where it has not been measured which is faster."""


def plan_tiled_prefill(
    query: Tensor, key_cache: Tensor, max_query_len: int, **problem: Any
) -> list[Launch]:
    """The same problem and arguments as `plan_paged_prefill`, with other tiles."""
    same = {"query": query, "key_cache": key_cache, "max_query_len": max_query_len}
    (plain,) = plan_paged_prefill(**same, **problem)
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = key_cache.shape[2]
    group = num_heads // num_kv_heads
    group_tile = min(next_power_of_2(group), MOST_HEADS)
    row_tile = 32 if query.itemsize == 4 else 128 if head_dim <= 128 else 64
    tiles = {"GROUP_TILE": group_tile, "ROW_TILE": row_tile, "KEY_TILE": KEY_TILE}
    kept = {name: size for name, size in plain.constexprs.items() if name != "QUERY_TILE"}
    launch = replace(
        plain,
        kernel="tiled_prefill_kernel",
        grid=(
            -(-max_query_len // (row_tile // group_tile)),
            num_kv_heads * -(-group // group_tile),
            plain.grid[2],
        ),
        constexprs=kept | tiles,
        num_warps=8,
    )
    return [launch]


TILED_PREFILL = KernelSpec(
    name="tiled_prefill",
    module="mini_vllm.attention.tiled_prefill",
    kernels=("tiled_prefill_kernel",),
    plan=plan_tiled_prefill,
    work=work_paged_prefill,
    outputs=("output",),
)

SPECS = (TILED_PREFILL,)
