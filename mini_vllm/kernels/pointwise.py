"""How the kernels of `kernels/fused.py` are launched, and the least work they can do."""

from __future__ import annotations

from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes

MODULE = "mini_vllm.kernels.fused"


def warps_for(tile: int) -> int:
    """About 8 elements a thread, with 1 to 16 warps of 32 threads."""
    return min(max(tile // 256, 1), 16)


# ---------------------------------------------------------------- rms_norm
def plan_rms_norm(
    x: Tensor, weight: Tensor, output: Tensor, eps: float, residual: Tensor | None = None
) -> list[Launch]:
    """`x` and `output` `[T, size]`, or `[T, H, D]` with a weight `[H, D]`; `residual` as `output`.

    The stride of x over tokens is free, so it may be a slice of a wider matrix.
    """
    num_heads, size = (1, *x.shape[1:]) if x.dim() == 2 else x.shape[1:]
    tile = next_power_of_2(size)
    launch = Launch(
        "rms_norm_kernel",
        grid=(len(x), num_heads),
        args={
            "output_ptr": output,
            "x_ptr": x,
            "residual_ptr": output if residual is None else residual,
            "weight_ptr": weight,
            "x_stride": x.stride(0),
            "eps": eps,
        },
        constexprs={"SIZE": size, "SIZE_TILE": tile, "HAS_RESIDUAL": residual is not None},
        num_warps=warps_for(tile),
    )
    return [launch]


def work_rms_norm(
    x: Tensor, weight: Tensor, output: Tensor, eps: float, residual: Tensor | None = None
) -> Work:
    in_place = () if residual is None else (residual,)
    read, written = tensor_bytes(x, weight, *in_place), tensor_bytes(output, *in_place)
    return Work(read, written, flops=4 * x.numel())


RMS_NORM = KernelSpec(
    name="rms_norm",
    module=MODULE,
    kernels=("rms_norm_kernel",),
    plan=plan_rms_norm,
    work=work_rms_norm,
    outputs=("output",),
    updates=("residual",),
)


# ---------------------------------------------------------------- rope
def plan_rope(x: Tensor, cos: Tensor, sin: Tensor) -> list[Launch]:
    """`x` `[T, H, D]` (its token stride is free), rotated in place by `cos`, `sin` `[T, 1, D]`."""
    num_tokens, num_heads, head_dim = x.shape
    tile = next_power_of_2(num_heads) * next_power_of_2(head_dim // 2)
    launch = Launch(
        "rope_kernel",
        grid=(num_tokens,),
        args={"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "x_stride": x.stride(0)},
        constexprs={
            "NUM_HEADS": num_heads,
            "HEAD_DIM": head_dim,
            "HEADS_TILE": next_power_of_2(num_heads),
            "HALF_TILE": next_power_of_2(head_dim // 2),
        },
        num_warps=warps_for(tile),
    )
    return [launch]


def work_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Work:
    """The two halves of an angle's cos and sin are the same: half of each is enough."""
    angles = tensor_bytes(cos, sin) // 2
    return Work(tensor_bytes(x) + angles, tensor_bytes(x), flops=3 * x.numel())


ROPE = KernelSpec(
    name="rope",
    module=MODULE,
    kernels=("rope_kernel",),
    plan=plan_rope,
    work=work_rope,
    updates=("x",),
)


# ---------------------------------------------------------------- silu_mul
def plan_silu_mul(gate_up: Tensor, output: Tensor) -> list[Launch]:
    """`gate_up` `[T, 2 * size]`, contiguous -> `output` `[T, size]`."""
    num_tokens, size = output.shape
    tile = min(next_power_of_2(size), 1024)
    launch = Launch(
        "silu_mul_kernel",
        grid=(num_tokens, -(-size // tile)),
        args={"output_ptr": output, "gate_up_ptr": gate_up},
        constexprs={"SIZE": size, "TILE": tile},
    )
    return [launch]


def work_silu_mul(gate_up: Tensor, output: Tensor) -> Work:
    return Work(tensor_bytes(gate_up), tensor_bytes(output), flops=5 * output.numel())


SILU_MUL = KernelSpec(
    name="silu_mul",
    module=MODULE,
    kernels=("silu_mul_kernel",),
    plan=plan_silu_mul,
    work=work_silu_mul,
    outputs=("output",),
)

SPECS = (RMS_NORM, ROPE, SILU_MUL)
