"""Prompts through layers with a state, in C++; `cpu.cpp` has the loops."""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.kernels import native


def can_run_gated_delta(states: Tensor) -> bool:
    """Whether `gated_delta` takes matrices `[..., Dk, Dv]`: float32, in whole strips."""
    whole = all(side % native.ROWS == 0 for side in states.shape[-2:])
    return whole and states.dtype == torch.float32 and native.can_run(states)


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    """All new tokens of R requests: outputs `[T, H, Dv]`, and `states` `[R, H, Dk, Dv]` themselves,
    which have moved on.

    The formulas and the other shapes are those of `model/mixers/gated_delta.py`, in chunks of
    `native.ROWS` tokens. `starts` `[R + 1]` int64 says where each request's tokens begin. Heads are
    shared out among threads.
    """
    tokens = [x.float().contiguous() for x in (q, k, v, g, beta)]
    output = torch.empty(v.shape)
    num_requests, num_heads, key_dim, value_dim = states.shape
    native.function("gated_delta", states.dtype)(
        output.data_ptr(), states.data_ptr(), *(x.data_ptr() for x in tokens),
        starts.data_ptr(), num_requests, num_heads, key_dim, value_dim,
        native.threads(len(q) * states[0].numel()),
    )  # fmt: skip
    return output, states
