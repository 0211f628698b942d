"""How the kernels of `attention/triton_paged.py` are launched, and the least work they can do.

A cache here is `[num_blocks, block_size, Hkv, D]`, for keys and for values one each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes

MODULE = "mini_vllm.attention.triton_paged"
NO_WINDOW = 2**31 - 1  # every context is shorter
MIN_DOT = 16  # `tl.dot` takes no tile with a smaller side


def attention_work(
    query_lens: list[int],
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    window: int | None = None,
    **_: Any,
) -> Work:
    """Bytes that attention reads, and its FLOPs. Writes, and the rest of a problem, are not
    counted.

    Each query is read once, and so is each visible key, value and table entry. FLOPs are those of
    the visible pairs.
    """
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    limit = window or NO_WINDOW
    num_keys = num_pairs = num_entries = 0
    for query_len, seq_len in zip(query_lens, seq_lens.tolist(), strict=True):
        positions = torch.arange(seq_len - query_len, seq_len)
        first = max(seq_len - query_len - limit + 1, 0)
        num_keys += seq_len - first
        num_pairs += int((positions + 1).clamp(max=limit).sum())
        num_entries += -(-seq_len // block_size) - first // block_size
    cache_bytes = num_keys * num_kv_heads * head_dim * (key_cache.itemsize + value_cache.itemsize)
    read = cache_bytes + num_entries * block_table.itemsize + tensor_bytes(query, seq_lens)
    return Work(read, 0, flops=4 * num_pairs * query.shape[1] * head_dim)


# ---------------------------------------------------------------- store_kv
def plan_store_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> list[Launch]:
    """`key`, `value` `[T, Hkv, D]` (only the token stride is free); `slot_mapping` `[T]` int64."""
    row = key.shape[1] * key.shape[2]
    launch = Launch(
        "store_kv_kernel",
        grid=(len(slot_mapping),),
        args={
            "key_ptr": key,
            "value_ptr": value,
            "key_cache_ptr": key_cache,
            "value_cache_ptr": value_cache,
            "slot_mapping_ptr": slot_mapping,
            "key_stride": key.stride(0),
            "value_stride": value.stride(0),
        },
        constexprs={"ROW": row, "ROW_TILE": next_power_of_2(row)},
    )
    return [launch]


def work_store_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> Work:
    stored = int((slot_mapping >= 0).sum())
    row = key.shape[1] * key.shape[2]
    read = stored * row * (key.itemsize + value.itemsize) + tensor_bytes(slot_mapping)
    return Work(read, stored * row * (key_cache.itemsize + value_cache.itemsize), flops=0)


STORE_KV = KernelSpec(
    name="store_kv",
    module=MODULE,
    kernels=("store_kv_kernel",),
    plan=plan_store_kv,
    work=work_store_kv,
    updates=("key_cache", "value_cache"),
)


# ---------------------------------------------------------------- paged_decode
def decode_launch(
    kernel: str,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scale: float,
    window: int | None = None,
    order: Tensor | None = None,
) -> Launch:
    """One token a request: `query` `[R, Hq, D]` (only the request stride is free) -> `output`.

    A program is a request and a key/value head. `order` `[R]` int64: each request once, the first
    to start first; a kernel without `order_ptr` takes none.
    """
    num_reqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    return Launch(
        kernel,
        grid=(num_reqs, num_kv_heads),
        args={
            "output_ptr": output,
            "query_ptr": query,
            "key_cache_ptr": key_cache,
            "value_cache_ptr": value_cache,
            "block_table_ptr": block_table,
            "seq_lens_ptr": seq_lens,
            "query_stride": query.stride(0),
            "table_stride": block_table.stride(0),
            "scale": scale,
            "window": NO_WINDOW if window is None else window,
        }
        | ({} if order is None else {"order_ptr": order}),
        constexprs={
            "BLOCK_SIZE": block_size,
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "GROUP_TILE": max(next_power_of_2(group), MIN_DOT),
            "DIM_TILE": max(next_power_of_2(head_dim), MIN_DOT),
            "KEY_TILE": 64 if query.itemsize < 4 else 32,
        },
    )


def plan_paged_decode(output: Tensor, lse: Tensor | None = None, **problem: Any) -> list[Launch]:
    """See `decode_launch`. `output` is `[R, Hq, D]`, or `[R, Hq, S, D]` with `lse` `[R, Hq, S]` for
    S splits."""
    num_splits = 1 if lse is None else lse.shape[2]
    launch = decode_launch("paged_decode_kernel", output=output, **problem)
    return [
        replace(
            launch,
            grid=(*launch.grid, num_splits),
            args={"output_ptr": output, "lse_ptr": output if lse is None else lse} | launch.args,
            constexprs=launch.constexprs | {"NUM_SPLITS": num_splits},
        )
    ]


def work_paged_decode(
    output: Tensor, lse: Tensor | None = None, order: Tensor | None = None, **problem: Any
) -> Work:
    """Attention of one token a request, the order, and what it writes."""
    written = (output,) if lse is None else (output, lse)
    read = 0 if order is None else tensor_bytes(order)
    query_lens = [1] * len(problem["seq_lens"])
    attention = attention_work(query_lens, **problem)
    return attention + Work(read, tensor_bytes(*written), flops=0)


PAGED_DECODE = KernelSpec(
    name="paged_decode",
    module=MODULE,
    kernels=("online_softmax", "paged_decode_kernel"),
    plan=plan_paged_decode,
    work=work_paged_decode,
    outputs=("output",),
)


AT_ONCE = 4
"""Programs of a decode that a multiprocessor runs at the same time. With 128 features in half
precision each needs 39 KB of shared memory: four fit on sm_80, five on sm_90."""


def order_matters(num_programs: int, num_processors: int) -> bool:
    """Whether some programs must wait for others to end. If all start at once, order is
    irrelevant."""
    return num_programs > AT_ONCE * num_processors


# ---------------------------------------------------------------- splits
def plan_reduce_splits(partial: Tensor, lse: Tensor, output: Tensor) -> list[Launch]:
    """`partial` `[R, Hq, S, D]` and `lse` `[R, Hq, S]` in float32 -> `output` `[R, Hq, D]`."""
    num_reqs, num_heads, num_splits, head_dim = partial.shape
    launch = Launch(
        "reduce_splits_kernel",
        grid=(num_reqs * num_heads,),
        args={"output_ptr": output, "partial_ptr": partial, "lse_ptr": lse},
        constexprs={
            "HEAD_DIM": head_dim,
            "NUM_SPLITS": num_splits,
            "DIM_TILE": next_power_of_2(head_dim),
            "SPLIT_TILE": next_power_of_2(num_splits),
        },
    )
    return [launch]


def work_reduce_splits(partial: Tensor, lse: Tensor, output: Tensor) -> Work:
    return Work(tensor_bytes(partial, lse), tensor_bytes(output), flops=2 * partial.numel())


REDUCE_SPLITS = KernelSpec(
    name="reduce_splits",
    module=MODULE,
    kernels=("reduce_splits_kernel",),
    plan=plan_reduce_splits,
    work=work_reduce_splits,
    outputs=("output",),
)


def plan_split_decode(output: Tensor, partial: Tensor, lse: Tensor, **problem: Any) -> list[Launch]:
    """Decode with S splits, then combine them: `partial` `[R, Hq, S, D]`, `lse` `[R, Hq, S]`."""
    decode = plan_paged_decode(output=partial, lse=lse, **problem)
    return decode + plan_reduce_splits(partial, lse, output)


def work_split_decode(output: Tensor, partial: Tensor, lse: Tensor, **problem: Any) -> Work:
    """Partial results are written and read in addition: the cost of the parallelism."""
    decode = work_paged_decode(output=partial, lse=lse, **problem)
    return decode + work_reduce_splits(partial, lse, output)


SPLIT_DECODE = KernelSpec(
    name="split_decode",
    module=MODULE,
    kernels=("online_softmax", "paged_decode_kernel", "reduce_splits_kernel"),
    plan=plan_split_decode,
    work=work_split_decode,
    outputs=("output", "partial", "lse"),
)


def choose_num_splits(num_programs: int, max_seq_len: int, num_processors: int) -> int:
    """How many splits keep a GPU busy: 1 where requests and heads alone do, else a power of two.

    `num_programs` is R * Hkv, `num_processors` the GPU's streaming multiprocessors. Two programs
    for each of them hide each other's waiting. A split shorter than 256 tokens is not worth
    its reduction, and more than 32 are never used.
    """
    wanted = next_power_of_2(-(-2 * num_processors // max(num_programs, 1)))
    useful = next_power_of_2(max(max_seq_len // 256, 1))
    return min(wanted, useful, 32)


# ---------------------------------------------------------------- paged_prefill
def plan_paged_prefill(
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
    """Ragged prefill: `query` and `output` `[T, Hq, D]` (query's token stride is free)."""
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    small = query.itemsize == 4 or head_dim > 128
    query_tile = 32 if small else 64
    launch = Launch(
        "paged_prefill_kernel",
        grid=(-(-max_query_len // query_tile), num_heads, len(seq_lens)),
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
            "GROUP": num_heads // num_kv_heads,
            "HEAD_DIM": head_dim,
            "DIM_TILE": max(next_power_of_2(head_dim), MIN_DOT),
            "QUERY_TILE": query_tile,
            "KEY_TILE": 32 if small else 64,
        },
    )
    return [launch]


def work_paged_prefill(output: Tensor, query_start_loc: Tensor, **problem: Any) -> Work:
    """Attention of the ragged queries, the offsets of the queries, and the output."""
    attention = attention_work(query_start_loc.diff().tolist(), **problem)
    return attention + Work(tensor_bytes(query_start_loc), tensor_bytes(output), flops=0)


PAGED_PREFILL = KernelSpec(
    name="paged_prefill",
    module=MODULE,
    kernels=("online_softmax", "paged_prefill_kernel"),
    plan=plan_paged_prefill,
    work=work_paged_prefill,
    outputs=("output",),
)

SPECS = (STORE_KV, PAGED_DECODE, REDUCE_SPLITS, SPLIT_DECODE, PAGED_PREFILL)
