"""How the kernel of `kernels/grouped_gemm.py` is launched, and the least work it can do."""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes
from mini_vllm.kernels.moe_layout import MIN_DOT

MODULE = "mini_vllm.kernels.grouped_gemm"


# ---------------------------------------------------------------- grouped_gemm
def plan_grouped_gemm(
    x: Tensor,
    weight: Tensor,
    sorted_ids: Tensor,
    expert_ids: Tensor,
    top_k: int,
    output: Tensor,
) -> list[Launch]:
    """`x` `[P / top_k, K]` (its row stride is free), `weight` `[E, N, K]`, the lists of
    `moe_align_block_size` -> `output` `[P, N]`."""
    _, columns, inner = weight.shape
    column_tile = max(min(64, next_power_of_2(columns)), MIN_DOT)
    launch = Launch(
        "grouped_gemm_kernel",
        grid=(len(expert_ids), -(-columns // column_tile)),
        args={
            "output_ptr": output,
            "x_ptr": x,
            "weight_ptr": weight,
            "sorted_ids_ptr": sorted_ids,
            "expert_ids_ptr": expert_ids,
            "num_pairs": len(output),
            "x_stride": x.stride(0),
        },
        constexprs={
            "N": columns,
            "K": inner,
            "TOP_K": top_k,
            "ROW_TILE": len(sorted_ids) // len(expert_ids),
            "COLUMN_TILE": column_tile,
            "INNER_TILE": max(min(64, next_power_of_2(inner)), MIN_DOT),
        },
    )
    return [launch]


def work_grouped_gemm(
    x: Tensor,
    weight: Tensor,
    sorted_ids: Tensor,
    expert_ids: Tensor,
    top_k: int,
    output: Tensor,
) -> Work:
    """Each used expert once, each row of x, and each result."""
    tiles = expert_ids[expert_ids >= 0]
    num_used = len(tiles.unique())
    listed = len(tiles) * (len(sorted_ids) // len(expert_ids)) * sorted_ids.itemsize
    read = num_used * tensor_bytes(weight[0]) + tensor_bytes(x, expert_ids) + listed
    return Work(read, tensor_bytes(output), flops=2 * output.numel() * weight.shape[2])


GROUPED_GEMM = KernelSpec(
    name="grouped_gemm",
    module=MODULE,
    kernels=("grouped_gemm_kernel",),
    plan=plan_grouped_gemm,
    work=work_grouped_gemm,
    outputs=("output",),
)

SPECS = (GROUPED_GEMM,)


# ---------------------------------------------------------------- for the engine
def grouped_gemm(
    x: Tensor, weight: Tensor, sorted_ids: Tensor, expert_ids: Tensor, top_k: int, num_pairs: int
) -> Tensor:
    """x[pair // top_k] @ weight[expert of the pair]^T: `[P / top_k, K]`, `[E, N, K]` -> `[P, N]`.

    The lists are those of `moe_align_block_size`.
    """
    output = torch.empty(num_pairs, weight.shape[1], dtype=x.dtype, device=x.device)
    GROUPED_GEMM.run(
        x=x,
        weight=weight,
        sorted_ids=sorted_ids,
        expert_ids=expert_ids,
        top_k=top_k,
        output=output,
    )
    return output
