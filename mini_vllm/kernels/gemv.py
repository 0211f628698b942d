"""A product for one to four tokens. Only the kernel lives here: `kernels/products.py` says how it
is launched.

With so few tokens the weight is nearly all that is moved, and each of its numbers is used once a
token: there is nothing for tensor cores, whose tiles have 16 tokens at least. What counts is how
many bytes are on their way at a time. So a program has few rows of the weight, many columns of
them in each step, and all columns in the end: their sum needs no second kernel and no atomics, and
has one order, whatever else runs.
"""

import triton
import triton.language as tl


@triton.jit
def gemv_kernel(
    output_ptr,  # [T, N]
    x_ptr,  # [T, K], tokens `x_stride` apart
    weight_ptr,  # [N, K]
    num_tokens,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKEN_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    """Some rows of x @ weight^T, for all tokens. Grid: (tiles of N,); T is at most TOKEN_TILE.

    Each column of a tile has a sum of its own, in float32; they are added up, and rounded, once,
    at the end.
    """
    token = tl.arange(0, TOKEN_TILE)[:, None, None].to(tl.int64)
    row = (tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE))[None, :, None].to(tl.int64)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros([TOKEN_TILE, ROW_TILE, COLUMN_TILE], tl.float32)
    for start in range(0, K, COLUMN_TILE):
        column = (start + tl.arange(0, COLUMN_TILE))[None, None, :]
        inside = column < K
        weight = tl.load(weight_ptr + row * K + column, mask=is_row & inside, other=0.0)
        x = tl.load(x_ptr + token * x_stride + column, mask=is_token & inside, other=0.0)
        total += x.to(tl.float32) * weight.to(tl.float32)
    place = output_ptr + tl.arange(0, TOKEN_TILE)[:, None].to(tl.int64) * N
    row = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    mask = (tl.arange(0, TOKEN_TILE) < num_tokens)[:, None] & (row < N)[None, :]
    tl.store(place + row[None, :], tl.sum(total, axis=2), mask=mask)
