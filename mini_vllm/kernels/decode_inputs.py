"""The inputs of a recorded decode step, copied in one launch. Only the kernel lives here:
`kernels/replay.py` says how it is launched.

The arrays of a step are small, and a launch costs the same whatever it moves. So one kernel does
what five copies and two fills do. Its numbers change from step to step, and Triton would compile
again for a 1 or a multiple of 16: the decorator forbids that.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_reqs", "width", "table_stride", "static_table_stride"])
def decode_inputs_kernel(
    static_input_ids_ptr,  # [B], as the next three
    static_positions_ptr,
    static_slot_mapping_ptr,
    static_seq_lens_ptr,
    static_block_table_ptr,  # [B, static width], rows `static_table_stride` apart
    input_ids_ptr,  # [R], as the next three
    positions_ptr,
    slot_mapping_ptr,
    seq_lens_ptr,
    block_table_ptr,  # [R, width], rows `table_stride` apart
    num_reqs,
    width,
    table_stride,
    static_table_stride,
    HAS_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
):
    """One row of the step, or of its padding, and a tile of its table. Grid: (bucket, tiles).

    Padding gets slot -1 and length 0. Without tokens, ids and positions are left alone.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_request = row < num_reqs
    inside = column < tl.where(is_request, width, 0)
    blocks = tl.load(block_table_ptr + row * table_stride + column, mask=inside)
    tl.store(static_block_table_ptr + row * static_table_stride + column, blocks, mask=inside)
    if tl.program_id(1) == 0:
        slot = tl.load(slot_mapping_ptr + row, mask=is_request, other=-1)
        tl.store(static_slot_mapping_ptr + row, slot)
        seq_len = tl.load(seq_lens_ptr + row, mask=is_request, other=0)
        tl.store(static_seq_lens_ptr + row, seq_len)
        if HAS_TOKENS:
            input_id = tl.load(input_ids_ptr + row, mask=is_request)
            tl.store(static_input_ids_ptr + row, input_id, mask=is_request)
            position = tl.load(positions_ptr + row, mask=is_request)
            tl.store(static_positions_ptr + row, position, mask=is_request)
