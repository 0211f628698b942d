"""How the kernels of `lora/triton_ops.py` are launched, and the least work they can do."""

from __future__ import annotations

from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes

MODULE = "mini_vllm.lora.triton_ops"
MIN_DOT = 16
"""Least side of a tile for `tl.dot`."""
ROWS_BY_RANK = 2**13
WEIGHTS_BY_RANK = 2**14
"""Most numbers of a tile of rows, which is in registers, and of a tile of weights, two of which are
in shared memory. So a tile of a high rank has fewer rows and columns."""


def rank_tile_of(rank: int) -> int:
    """The side of a tile for the rank, which is never split."""
    return max(next_power_of_2(rank), MIN_DOT)


def rows_tile(num_tokens: int, num_segments: int, rank: int) -> int:
    """Rows of a tile: the mean of a segment, from 16 to 64, or fewer for a high rank."""
    most = min(64, ROWS_BY_RANK // rank_tile_of(rank))
    return max(min(next_power_of_2(num_tokens // num_segments), most), MIN_DOT)


def columns_tile(usual: int, rank: int) -> int:
    """Columns of a tile of A or of B: the usual number, or fewer for a high rank."""
    return max(min(usual, WEIGHTS_BY_RANK // rank_tile_of(rank)), MIN_DOT)


def users_of(num_tokens: Tensor, lora_ids: Tensor) -> list[tuple[int, int]]:
    """The slots that a problem uses, each with the number of its rows."""
    pairs = zip(lora_ids.tolist(), num_tokens.tolist(), strict=True)
    return [(slot, count) for slot, count in pairs if slot >= 0 and count]


# ---------------------------------------------------------------- lora_shrink
def plan_lora_shrink(
    x: Tensor,
    lora_a: Tensor,
    order: Tensor,
    lora_ids: Tensor,
    num_tokens: Tensor,
    starts: Tensor,
    hidden: Tensor,
) -> list[Launch]:
    """`x` `[T, in]` (its row stride is free), `lora_a` `[S, n, R, in]` -> `hidden` `[n, T, R]`.

    The starts of the segments are only on the device, so the grid cannot depend on them: it has
    enough programs for all T tokens in every segment.
    """
    _, num_slices, rank, in_size = lora_a.shape
    row_tile = rows_tile(len(x), len(lora_ids), rank)
    launch = Launch(
        "lora_shrink_kernel",
        grid=(-(-len(x) // row_tile), num_slices, len(lora_ids)),
        args={
            "hidden_ptr": hidden,
            "x_ptr": x,
            "lora_a_ptr": lora_a,
            "order_ptr": order,
            "lora_ids_ptr": lora_ids,
            "num_tokens_ptr": num_tokens,
            "starts_ptr": starts,
            "total_tokens": len(x),
            "x_stride": x.stride(0),
        },
        constexprs={
            "IN_SIZE": in_size,
            "RANK": rank,
            "ROW_TILE": row_tile,
            "RANK_TILE": rank_tile_of(rank),
            "IN_TILE": columns_tile(64, rank),
        },
    )
    return [launch]


def work_lora_shrink(
    x: Tensor,
    lora_a: Tensor,
    order: Tensor,
    lora_ids: Tensor,
    num_tokens: Tensor,
    starts: Tensor,
    hidden: Tensor,
) -> Work:
    """Each used adapter, and each row with an adapter; nothing for rows of the base."""
    users = users_of(num_tokens, lora_ids)
    rows = sum(count for _, count in users)
    slot = lora_a[0].numel()
    read = len(users) * slot * lora_a.itemsize + rows * x.shape[1] * x.itemsize
    read += rows * order.itemsize + tensor_bytes(lora_ids, num_tokens, starts)
    written = rows * hidden.shape[0] * hidden.shape[2] * hidden.itemsize
    return Work(read, written, flops=2 * rows * slot)


LORA_SHRINK = KernelSpec(
    name="lora_shrink",
    module=MODULE,
    kernels=("lora_shrink_kernel",),
    plan=plan_lora_shrink,
    work=work_lora_shrink,
    outputs=("hidden",),
)


# ---------------------------------------------------------------- lora_expand
def plan_lora_expand(
    hidden: Tensor,
    lora_b: Tensor,
    slice_starts: Tensor,
    max_width: int,
    order: Tensor,
    lora_ids: Tensor,
    num_tokens: Tensor,
    starts: Tensor,
    y: Tensor,
) -> list[Launch]:
    """`hidden` `[n, T, R]`, `lora_b` `[S, R, out]` -> added to `y` `[T, out]`.

    `slice_starts` `[n + 1]` says where each slice's columns begin, `max_width` how many the widest
    has. Slices are as unequal as queries and keys are.
    """
    num_slices, total_tokens, rank = hidden.shape
    row_tile = rows_tile(total_tokens, len(lora_ids), rank)
    out_tile = columns_tile(128, rank)
    launch = Launch(
        "lora_expand_kernel",
        grid=(
            -(-total_tokens // row_tile),
            num_slices * -(-max_width // out_tile),
            len(lora_ids),
        ),
        args={
            "y_ptr": y,
            "hidden_ptr": hidden,
            "lora_b_ptr": lora_b,
            "slice_starts_ptr": slice_starts,
            "order_ptr": order,
            "lora_ids_ptr": lora_ids,
            "num_tokens_ptr": num_tokens,
            "starts_ptr": starts,
            "total_tokens": total_tokens,
            "y_stride": y.stride(0),
        },
        constexprs={
            "OUT_SIZE": lora_b.shape[2],
            "NUM_SLICES": num_slices,
            "RANK": rank,
            "ROW_TILE": row_tile,
            "RANK_TILE": rank_tile_of(rank),
            "OUT_TILE": out_tile,
        },
    )
    return [launch]


def work_lora_expand(
    hidden: Tensor,
    lora_b: Tensor,
    slice_starts: Tensor,
    max_width: int,
    order: Tensor,
    lora_ids: Tensor,
    num_tokens: Tensor,
    starts: Tensor,
    y: Tensor,
) -> Work:
    """Each used adapter once; each row with an adapter is read and written."""
    users = users_of(num_tokens, lora_ids)
    rows = sum(count for _, count in users)
    num_slices, _, rank = hidden.shape
    slot = lora_b[0].numel()
    y_bytes = rows * y.shape[1] * y.itemsize
    read = len(users) * slot * lora_b.itemsize + rows * num_slices * rank * hidden.itemsize
    read += y_bytes + rows * order.itemsize
    read += tensor_bytes(lora_ids, num_tokens, starts, slice_starts)
    return Work(read, y_bytes, flops=2 * rows * slot)


LORA_EXPAND = KernelSpec(
    name="lora_expand",
    module=MODULE,
    kernels=("lora_expand_kernel",),
    plan=plan_lora_expand,
    work=work_lora_expand,
    updates=("y",),
)

SPECS = (LORA_SHRINK, LORA_EXPAND)
