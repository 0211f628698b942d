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
    # TODO 07.4
    tl.static_assert(
        False,
        "TODO 07.4: write rms_norm_kernel in labs/07-going-fast/fused.py"
        " (phase 07, 02-mini-build.md#task-4)",
    )


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
    # TODO 07.5
    tl.static_assert(
        False,
        "TODO 07.5: write rope_kernel in labs/07-going-fast/fused.py"
        " (phase 07, 02-mini-build.md#task-5)",
    )


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
    # TODO 07.6
    tl.static_assert(
        False,
        "TODO 07.6: write silu_mul_kernel in labs/07-going-fast/fused.py"
        " (phase 07, 02-mini-build.md#task-6)",
    )
