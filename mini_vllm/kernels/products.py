"""How the kernel of `kernels/dense_gemm.py` is launched, and the least work it can do."""

from __future__ import annotations

from torch import Tensor

from mini_vllm.kernels.attention import MIN_DOT
from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes

MODULE = "mini_vllm.kernels.dense_gemm"
ROW_TILE, COLUMN_TILE = 64, 64


def product_tiles(num_tokens: int, rows: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and tiles of a product: as many tokens in a tile as there are, from 16 to 64."""
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

SPECS = (GEMM,)
