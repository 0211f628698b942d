"""How the kernel of `kernels/bitmask.py` is launched, and the least work it can do."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes

MODULE = "mini_vllm.kernels.bitmask"


def plan_apply_token_bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor) -> list[Launch]:
    """`logits` `[B, V]` and `bitmask` `[N, W]` int32 with free row strides; `indices` `[N]`."""
    num_rows, num_words = bitmask.shape
    vocab_size = logits.shape[1]
    tile = min(next_power_of_2(-(-vocab_size // 32)), 32)
    launch = Launch(
        "apply_token_bitmask_kernel",
        grid=(num_rows, -(-vocab_size // (32 * tile))),
        args={
            "logits_ptr": logits,
            "bitmask_ptr": bitmask,
            "indices_ptr": indices,
            "logits_stride": logits.stride(0),
            "bitmask_stride": bitmask.stride(0),
            "vocab_size": vocab_size,
            "num_words": num_words,
        },
        constexprs={"WORDS": tile},
    )
    return [launch]


def work_apply_token_bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor) -> Work:
    """Each word that has a token is read once, each forbidden logit written once."""
    vocab_size = logits.shape[1]
    words = bitmask[:, : -(-vocab_size // 32)].contiguous()
    bits = np.unpackbits(words.cpu().numpy().view(np.uint8), axis=1, bitorder="little")
    num_forbidden = len(words) * vocab_size - int(bits[:, :vocab_size].sum())
    return Work(tensor_bytes(words, indices), num_forbidden * logits.itemsize, flops=0)


APPLY_TOKEN_BITMASK = KernelSpec(
    name="apply_token_bitmask",
    module=MODULE,
    kernels=("apply_token_bitmask_kernel",),
    plan=plan_apply_token_bitmask,
    work=work_apply_token_bitmask,
    updates=("logits",),
)

SPECS = (APPLY_TOKEN_BITMASK,)
