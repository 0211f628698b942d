"""How the kernels of `kernels/dense_gemm.py` and `kernels/gemv.py` are launched, and the least work
they can do."""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.kernels.attention import MIN_DOT
from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes

MODULE = "mini_vllm.kernels.dense_gemm"
ROW_TILE, COLUMN_TILE = 64, 64


def product_tiles(num_tokens: int, rows: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and tiles of a product. A tile has all tokens, but at least 16 and at most 64."""
    tokens = min(max(next_power_of_2(num_tokens), MIN_DOT), 64)
    grid = (-(-num_tokens // tokens), -(-rows // ROW_TILE))
    return grid, {"TOKEN_TILE": tokens, "ROW_TILE": ROW_TILE, "COLUMN_TILE": COLUMN_TILE}


# ---------------------------------------------------------------- gemm
def plan_gemm(x: Tensor, weight: Tensor, output: Tensor) -> list[Launch]:
    """`x` `[T, K]` (its token stride is free) and `weight` `[N, K]` -> `output` `[T, N]`."""
    rows, columns = weight.shape
    grid, tiles = product_tiles(len(x), rows)
    launch = Launch(
        "gemm_kernel",
        grid=grid,
        args={
            "output_ptr": output,
            "x_ptr": x,
            "weight_ptr": weight,
            "num_tokens": len(x),
            "x_stride": x.stride(0),
        },
        constexprs={"N": rows, "K": columns, **tiles},
    )
    return [launch]


def work_gemm(x: Tensor, weight: Tensor, output: Tensor) -> Work:
    return Work(tensor_bytes(x, weight), tensor_bytes(output), flops=2 * len(x) * weight.numel())


GEMM = KernelSpec(
    name="gemm",
    module=MODULE,
    kernels=("gemm_kernel",),
    plan=plan_gemm,
    work=work_gemm,
    outputs=("output",),
)


# ---------------------------------------------------------------- gemv
FEW_TOKENS = 4


def plan_gemv(x: Tensor, weight: Tensor, output: Tensor) -> list[Launch]:
    """As `plan_gemm`, for 1 to `FEW_TOKENS` tokens.

    A program has 8 rows, or 16 if every multiprocessor still gets several programs. A tile has
    8,192 numbers of the weight, 16 KB in flight; half of that for more than two tokens, because
    each token has an accumulator for every number of a tile.
    """
    rows, columns = weight.shape
    row_tile = 8 if rows < 4096 else 16
    numbers = 8192 if len(x) <= 2 else 4096
    launch = Launch(
        "gemv_kernel",
        grid=(-(-rows // row_tile),),
        args={
            "output_ptr": output,
            "x_ptr": x,
            "weight_ptr": weight,
            "num_tokens": len(x),
            "x_stride": x.stride(0),
        },
        constexprs={
            "N": rows,
            "K": columns,
            "TOKEN_TILE": next_power_of_2(len(x)),
            "ROW_TILE": row_tile,
            "COLUMN_TILE": min(numbers // row_tile, next_power_of_2(columns)),
        },
        num_warps=8,
    )
    return [launch]


GEMV = KernelSpec(
    name="gemv",
    module="mini_vllm.kernels.gemv",
    kernels=("gemv_kernel",),
    plan=plan_gemv,
    work=work_gemm,
    outputs=("output",),
)

SPECS = (GEMM, GEMV)


# ---------------------------------------------------------------- for the engine
def takes_gemv(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether `gemv` can compute a product: `x` `[T, K]` with few tokens, in half precision, a
    weight `[N, K]` of the same dtype, and no bias."""
    return (
        bias is None
        and 1 <= len(x) <= FEW_TOKENS
        and x.itemsize == 2
        and x.dtype == weight.dtype
        and x.stride(1) == 1
        and weight.is_contiguous()
    )


def gemv(x: Tensor, weight: Tensor) -> Tensor:
    """`x` `[T, K]` times `weight` `[N, K]`: `[T, N]`. The sum is float32, and rounded once."""
    output = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    GEMV.run(x=x, weight=weight, output=output)
    return output
