"""Kernels in Triton and, for a CPU, in C++; and the modules that launch them.

    launch.py      Launch (grid, arguments, constants of one kernel call) and KernelSpec
    attention.py   how the kernels of `attention/triton_paged.py` are launched
    tiled.py       how the kernel of `attention/tiled_prefill.py` is launched
    pointwise.py   how the kernels of `kernels/fused.py` are launched
    qkv.py         how the kernel of `qk_norm_rope_store.py` is launched
    replay.py      how the kernel of `decode_inputs.py` is launched
    masking.py     how the kernel of `kernels/bitmask.py` is launched
    judging.py     how the kernel of `kernels/rejection.py` is launched
    sampling.py    how the kernels of `kernels/sampling_kernels.py` are launched
    experts.py     how the kernel of `kernels/grouped_gemm.py` is launched
    mixers.py      how the kernels of `gdn_decode.py` and `mla_decode.py` are launched
    products.py    how the kernels of `dense_gemm.py` and `gemv.py` are launched
    fused.py       the fused kernels: norm with residual, rope, silu-mul
    qk_norm_rope_store.py  norm, rotation and store of a step in one launch
    decode_inputs.py  the inputs of a recorded decode step in one launch
    bitmask.py     the mask of structured output
    rejection.py   the judge of drafts
    sampling_kernels.py  the plain sampler
    dense_gemm.py  the product in tiles
    gemv.py        the product of few tokens
    grouped_gemm.py  the products of experts
    gdn_decode.py  the gated delta rule of one token a request
    mla_decode.py  attention of one token a request over latents
    cpu.cpp        for a CPU, in C++: operations between products, and products of packed weights
    native.py      builds cpu.cpp where there is a compiler, and calls it
    native_states.py  calls its loops of layers with a state

A kernel module contains only kernels. The grid, the arguments and the tile sizes of a kernel are in
a launcher, which the engine and the kernel checker share.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from mini_vllm.platforms import platform_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's interpreter runs kernels on the CPU, slowly, one program after another."""
USES_GEMV = os.environ.get("MINI_VLLM_GEMV") == "1"
"""Whether the kernel in `gemv.py` is used for few tokens. Off by default: it has not been measured
to be faster than torch's product; `gpu-report --part roofline` measures both."""
USES_TILED_PREFILL = os.environ.get("MINI_VLLM_TILED_PREFILL") == "1"
"""Whether the kernel in `tiled_prefill.py` is used for prompts. Off by default."""
USES_ORDERED_DECODE = os.environ.get("MINI_VLLM_ORDERED_DECODE") == "1"
"""Whether decodes that cannot all run at once start with the longest. Off by default."""


def can_launch(tensor: Tensor) -> bool:
    """Whether kernels can run on `tensor`: on a GPU always, elsewhere with the interpreter.

    Not while `torch.compile` traces, because it generates its own kernels.
    """
    return not torch.compiler.is_compiling() and can_launch_on(tensor.device)


def can_launch_on(device: torch.device) -> bool:
    """Whether kernels can run on tensors of a device."""
    return INTERPRETED or platform_of(device).launches_kernels
