"""Several small operations in one kernel each, so that their data makes one trip through memory.

    rms_norm_kernel   add to the residual, then normalise: four trips instead of six
    rope_kernel       rotate queries and keys where they lie
    silu_mul_kernel   silu(gate) * up

Only kernels live here: `kernels/pointwise.py` says how each is launched.
"""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    output_ptr,  # [T, H, SIZE]
    x_ptr,  # [T, H, SIZE], tokens `x_stride` apart
    residual_ptr,  # [T, H, SIZE]; not touched without HAS_RESIDUAL
    weight_ptr,  # [H, SIZE]
    x_stride,
    eps,
    SIZE: tl.constexpr,
    SIZE_TILE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """One row: x / sqrt(mean(x^2) + eps) * weight. Grid: (T, H).

    H is 1 for the hidden states of T tokens; the norm of queries and keys has a row and a weight
    for each head. With HAS_RESIDUAL x is first added to the residual, and the sum, rounded to the
    dtype of x, is both what is normalised and the new residual (written in place). The mean is
    taken in float32; the normalised row is rounded to the dtype of x before the weight multiplies
    it, as Hugging Face does.
    Source: vllm/model_executor/layers/layernorm.py#L82-L116 (RMSNorm.forward_native) @ v0.22.1.
    """
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
    normalised = (x32 * scale).to(x.dtype).to(tl.float32)
    output = normalised * weight.to(tl.float32)
    tl.store(output_ptr + row * SIZE + column, output, mask=inside)


@triton.jit
def rope_kernel(
    x_ptr,  # [T, H, HEAD_DIM], tokens `x_stride` apart; rotated in place
    cos_ptr,  # [T, HEAD_DIM]: both halves the same
    sin_ptr,  # [T, HEAD_DIM]: negative in the first half
    x_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    HALF_TILE: tl.constexpr,
):
    """Rotate all heads of one token. Grid: (T,).

    Feature i of the first half and feature i of the second form a pair; (a, b) becomes
    (a cos - b sin, b cos + a sin). Both must be read before either is written.
    Source: vllm/model_executor/layers/rotary_embedding/base.py#L140-L180
    (RotaryEmbedding.forward_static) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_TILE)
    pair = tl.arange(0, HALF_TILE)
    in_half = pair < HEAD_DIM // 2
    in_tile = (head < NUM_HEADS)[:, None] & in_half[None, :]
    angle = token * HEAD_DIM + HEAD_DIM // 2 + pair
    cos = tl.load(cos_ptr + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    first_ptr = x_ptr + token * x_stride + head[:, None] * HEAD_DIM + pair[None, :]
    second_ptr = first_ptr + HEAD_DIM // 2
    first = tl.load(first_ptr, mask=in_tile, other=0.0).to(tl.float32)
    second = tl.load(second_ptr, mask=in_tile, other=0.0).to(tl.float32)
    tl.store(first_ptr, first * cos - second * sin, mask=in_tile)
    tl.store(second_ptr, second * cos + first * sin, mask=in_tile)


@triton.jit
def silu_mul_kernel(
    output_ptr,  # [T, SIZE]
    gate_up_ptr,  # [T, 2 * SIZE]: gate, then up
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """silu(gate) * up of one token's tile; silu(x) = x / (1 + exp(-x)). Grid: (T, tiles of SIZE).

    Computed in float32, and rounded once.
    Source: vllm/model_executor/layers/activation.py#L118-L151 (SiluAndMul) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < SIZE
    gate_ptr = gate_up_ptr + token * 2 * SIZE + column
    gate = tl.load(gate_ptr, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + SIZE, mask=inside, other=0.0).to(tl.float32)
    tl.store(output_ptr + token * SIZE + column, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)
