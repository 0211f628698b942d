"""Attention over pages as Triton kernels. Only kernels live here: `kernels/attention.py` says how
each is launched, with which grid and tiles.

    store_kv_kernel        new keys and values into their slots
    online_softmax         one step of a softmax that sees its row tile by tile
    paged_decode_kernel    one new token per request, over its pages, optionally in splits
    reduce_splits_kernel   the splits' partial results into one
    paged_prefill_kernel   many new tokens per request, causal

The cache is flat here: slot s = block_id * BLOCK_SIZE + offset holds `[Hkv, HEAD_DIM]` numbers.
Tiles have a power of two as their size, so those named `*_TILE` may be longer than what they hold;
every load and store masks the rest. Scores, sums and accumulators are float32 whatever the dtype.

Shapes: T new tokens, R requests, Hq query heads in groups of GROUP that share one of Hkv
key/value heads, S splits of a context.
"""

import triton
import triton.language as tl


@triton.jit
def store_kv_kernel(
    key_ptr,  # [T, Hkv * HEAD_DIM], rows `key_stride` apart
    value_ptr,  # the same, rows `value_stride` apart
    key_cache_ptr,  # [num_slots, Hkv * HEAD_DIM]
    value_cache_ptr,  # the same
    slot_mapping_ptr,  # [T] int64; -1 = do not store
    key_stride,
    value_stride,
    ROW: tl.constexpr,  # Hkv * HEAD_DIM
    ROW_TILE: tl.constexpr,
):
    """Copy the key and the value of one token into its slot. Grid: (T,).

    A slot number times ROW exceeds 32 bits in a cache of a few GiB, so it must stay an int64.
    Source: vllm/v1/attention/ops/triton_reshape_and_cache_flash.py#L18-L124
    (reshape_and_cache_kernel_flash) @ v0.22.1.
    """
    # TODO 04.2
    tl.static_assert(
        False,
        "TODO 04.2: write store_kv_kernel in labs/04-attention-kernels/triton_paged.py"
        " (phase 04, 02-mini-build.md#task-2)",
    )


@triton.jit
def online_softmax(scores, row_max, row_sum):
    """Take in one more tile of a softmax that never sees its whole row.

    `scores` `[M, N]` float32 holds -inf where a key is not visible; `row_max` and `row_sum` `[M]`
    describe the tiles so far (at first -inf and 0). Returns `(weights, rescale, row_max, row_sum)`:

        weights [M, N]   exp(score - new maximum), 0 where not visible
        rescale [M]      what an accumulator of the tiles so far must be multiplied by
        row_max, row_sum [M]   both including this tile

    A row that has seen no visible key yet has the maximum -inf, and -inf - -inf is NaN: such a row
    subtracts 0 instead.
    """
    # TODO 04.4
    tl.static_assert(
        False,
        "TODO 04.4: write online_softmax in labs/04-attention-kernels/triton_paged.py"
        " (phase 04, 02-mini-build.md#task-4)",
    )


@triton.jit
def paged_decode_kernel(
    output_ptr,  # [R, Hq, NUM_SPLITS, HEAD_DIM]
    lse_ptr,  # [R, Hq, NUM_SPLITS] float32; not touched if NUM_SPLITS is 1
    query_ptr,  # [R, Hq, HEAD_DIM], requests `query_stride` apart
    key_cache_ptr,  # [num_slots, Hkv, HEAD_DIM]
    value_cache_ptr,  # the same
    block_table_ptr,  # [R, max_blocks] int32, rows `table_stride` apart
    seq_lens_ptr,  # [R] int32; 0 = an inert row, whose output is 0
    query_stride,
    table_stride,
    scale,
    window,  # only the last `window` tokens are visible
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    order_ptr=None,  # [R] int64: each request once, the first to start first; None = 0, 1, ...
):
    """Attention of one new token over its request's pages. Grid: (R, Hkv, NUM_SPLITS).

    One program serves all GROUP query heads that share a key/value head, so that each key and
    value is read once. The visible tokens are cut into NUM_SPLITS stretches of whole tiles; this
    program reads one of them and writes the softmax average over it, and with more than one split
    also log(sum(exp(scores))), -inf for an empty stretch, by which the splits are combined.

        visible tokens   |<-- split 0 -->|<-- split 1 -->|<- 2 ->|       stretch = tiles per split
        tiles            | KEY_TILE | ...                              * KEY_TILE

    A GPU starts programs by the first axis of the grid, so program (i, j) is number j * R + i of a
    split. With `order_ptr` the first Hkv of them are all heads of the first request of the order,
    and so on; which program does the work changes no number.

    Source: vllm/v1/attention/ops/triton_decode_attention.py#L262-L442
    (_fwd_grouped_kernel_stage1) @ v0.22.1.
    """
    # TODO 04.4
    tl.static_assert(
        False,
        "TODO 04.4: write paged_decode_kernel in labs/04-attention-kernels/triton_paged.py"
        " (phase 04, 02-mini-build.md#task-4)",
    )


@triton.jit
def reduce_splits_kernel(
    output_ptr,  # [R, Hq, HEAD_DIM]
    partial_ptr,  # [R, Hq, NUM_SPLITS, HEAD_DIM] float32
    lse_ptr,  # [R, Hq, NUM_SPLITS] float32; -inf for an empty split
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    DIM_TILE: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):
    """Combine the splits of one query head. Grid: (R * Hq,).

    A split's share is exp(lse) of the sum of all: averages are weighed by how much softmax mass
    they stand for. If all splits are empty, the output is 0.
    Source: vllm/v1/attention/ops/triton_decode_attention.py#L549-L612 (_fwd_kernel_stage2)
    @ v0.22.1.
    """
    # TODO 04.5
    tl.static_assert(
        False,
        "TODO 04.5: write reduce_splits_kernel in labs/04-attention-kernels/triton_paged.py"
        " (phase 04, 02-mini-build.md#task-5)",
    )


@triton.jit
def paged_prefill_kernel(
    output_ptr,  # [T, Hq, HEAD_DIM]
    query_ptr,  # [T, Hq, HEAD_DIM], tokens `query_stride` apart
    key_cache_ptr,  # [num_slots, Hkv, HEAD_DIM]
    value_cache_ptr,  # the same
    block_table_ptr,  # [R, max_blocks] int32, rows `table_stride` apart
    query_start_loc_ptr,  # [R + 1] int32: where each request's new tokens begin
    seq_lens_ptr,  # [R] int32: context including the new tokens
    query_stride,
    table_stride,
    scale,
    window,  # a token sees itself and the window - 1 before it
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Causal attention of QUERY_TILE new tokens and one head over their request's pages.

    Grid: (tiles of the longest request, Hq, R); a tile behind its request's last token returns.
    The new tokens are the last of the context, so row i stands at seq_len - query_len + i. Keys
    are read from the first that any row sees to the last that any row sees:

        query_len 4, seq_len 9, KEY_TILE 4, window 4      position  0 1 2 3 4 5 6 7 8
                                                     row 0 (at 5)       x x x x
        first = 5 - 4 + 1 = 2                        row 3 (at 8)             x x x x

    Source: vllm/v1/attention/ops/triton_unified_attention.py#L179-L642 (kernel_unified_attention)
    @ v0.22.1.
    """
    # TODO 04.6
    tl.static_assert(
        False,
        "TODO 04.6: write paged_prefill_kernel in labs/04-attention-kernels/triton_paged.py"
        " (phase 04, 02-mini-build.md#task-6)",
    )
