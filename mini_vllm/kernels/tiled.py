"""How the kernel of `attention/tiled_prefill.py` is launched."""

from __future__ import annotations

from torch import Tensor

from mini_vllm.kernels.attention import MIN_DOT, NO_WINDOW, work_paged_prefill
from mini_vllm.kernels.launch import KernelSpec, Launch, next_power_of_2

MOST_HEADS = 16
"""Heads of a group that share a tile; a larger group has several tiles."""
KEY_TILE = 32
"""With 64 keys the registers of sm_80 do not hold a tile of 128 rows and 128 features; those of
sm_90 do. Which is faster there is for a GPU to say."""


def plan_tiled_prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scale: float,
    max_query_len: int,
    window: int | None = None,
) -> list[Launch]:
    """As `plan_paged_prefill`."""
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    group_tile = min(next_power_of_2(group), MOST_HEADS)
    row_tile = 32 if query.itemsize == 4 else 128 if head_dim <= 128 else 64
    launch = Launch(
        "tiled_prefill_kernel",
        grid=(
            -(-max_query_len // (row_tile // group_tile)),
            num_kv_heads * -(-group // group_tile),
            len(seq_lens),
        ),
        args={
            "output_ptr": output,
            "query_ptr": query,
            "key_cache_ptr": key_cache,
            "value_cache_ptr": value_cache,
            "block_table_ptr": block_table,
            "query_start_loc_ptr": query_start_loc,
            "seq_lens_ptr": seq_lens,
            "query_stride": query.stride(0),
            "table_stride": block_table.stride(0),
            "scale": scale,
            "window": NO_WINDOW if window is None else window,
        },
        constexprs={
            "BLOCK_SIZE": block_size,
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "GROUP_TILE": group_tile,
            "ROW_TILE": row_tile,
            "DIM_TILE": max(next_power_of_2(head_dim), MIN_DOT),
            "KEY_TILE": KEY_TILE,
        },
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
