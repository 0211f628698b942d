"""How the kernel of `kernels/decode_inputs.py` is launched, and the least work it can do."""

from __future__ import annotations

from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes
from mini_vllm.kernels.pointwise import warps_for

TILE = 1024
"""Columns of a table that a program copies, if there are so many: of 16,384 tokens, in blocks of
16."""


def plan_decode_inputs(
    input_ids: Tensor | None,
    positions: Tensor | None,
    slot_mapping: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    static_input_ids: Tensor,
    static_positions: Tensor,
    static_slot_mapping: Tensor,
    static_seq_lens: Tensor,
    static_block_table: Tensor,
    bucket: int,
) -> list[Launch]:
    """A step's `input_ids`, `positions` and `slot_mapping` `[R]` int64, `seq_lens` `[R]` int32 and
    `block_table` `[R, width]` int32, into `static_...` of at least `bucket` rows and `width`
    columns. All are contiguous, but for the rows of tables, which may lie apart. The first two are
    None if they are not to be copied."""
    num_reqs, width = block_table.shape
    tile = min(next_power_of_2(static_block_table.shape[1]), TILE)
    launch = Launch(
        "decode_inputs_kernel",
        grid=(bucket, -(-width // tile)),
        args={
            "static_input_ids_ptr": static_input_ids,
            "static_positions_ptr": static_positions,
            "static_slot_mapping_ptr": static_slot_mapping,
            "static_seq_lens_ptr": static_seq_lens,
            "static_block_table_ptr": static_block_table,
            "input_ids_ptr": slot_mapping if input_ids is None else input_ids,
            "positions_ptr": slot_mapping if positions is None else positions,
            "slot_mapping_ptr": slot_mapping,
            "seq_lens_ptr": seq_lens,
            "block_table_ptr": block_table,
            "num_reqs": num_reqs,
            "width": width,
            "table_stride": block_table.stride(0),
            "static_table_stride": static_block_table.stride(0),
        },
        constexprs={"HAS_TOKENS": input_ids is not None, "TILE": tile},
        num_warps=warps_for(tile),
    )
    return [launch]


def work_decode_inputs(
    input_ids: Tensor | None,
    positions: Tensor | None,
    slot_mapping: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    static_input_ids: Tensor,
    static_positions: Tensor,
    static_slot_mapping: Tensor,
    static_seq_lens: Tensor,
    static_block_table: Tensor,
    bucket: int,
) -> Work:
    """What came with the step, read and written once, and a slot and a length of each row of
    padding."""
    tokens = [tensor for tensor in (input_ids, positions) if tensor is not None]
    read = tensor_bytes(slot_mapping, seq_lens, block_table, *tokens)
    padding = (bucket - len(seq_lens)) * (slot_mapping.itemsize + seq_lens.itemsize)
    return Work(read, read + padding, flops=0)


DECODE_INPUTS = KernelSpec(
    name="decode_inputs",
    module="mini_vllm.kernels.decode_inputs",
    kernels=("decode_inputs_kernel",),
    plan=plan_decode_inputs,
    work=work_decode_inputs,
    updates=(
        "static_input_ids",
        "static_positions",
        "static_slot_mapping",
        "static_seq_lens",
        "static_block_table",
    ),
)

SPECS = (DECODE_INPUTS,)
