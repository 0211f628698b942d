"""A short causal convolution: each channel of a token mixes with the same channel of the tokens
just before it.

    y[t] = sum over j of weight[:, j] * x[t - (K - 1) + j]        K is 4 mostly

A request must keep its last K - 1 *inputs*, its tail; before its first token these are zeros. In a
flat batch each request's tail is put before its tokens, and one pass over all rows serves all
requests (K = 3)::

    rows       a- a- a0 a1 a2 | b- b- b0        tails are marked with -
    outputs          a0 a1 a2         b0        outputs in the place of a tail are dropped
    new tails           a1 a2      b- b0        the last K - 1 rows, also if fewer tokens came

Source: vllm/model_executor/layers/mamba/ops/causal_conv1d.py#L469-L548 (causal_conv1d_fn)
@ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class ConvRows:
    """The rows of tails and tokens in one step; the same for all layers.

    Args:
        lens: new tokens of each request, in the order of the flat batch.
        width: K, the tokens that an output is made of.
    """

    def __init__(self, lens: Sequence[int], width: int, device: torch.device | str = "cpu") -> None:
        counts = torch.tensor(lens)
        before = width - 1
        ends = counts.cumsum(0) + before * torch.arange(1, len(lens) + 1)
        requests = torch.arange(len(lens)).repeat_interleave(counts)
        self.num_rows = len(requests) + before * len(lens)
        self.tokens = (torch.arange(len(requests)) + before * (requests + 1)).to(device)
        starts = ends - counts - before
        self.tails = (starts[:, None] + torch.arange(before)).to(device)
        self.new_tails = (ends[:, None] - before + torch.arange(before)).to(device)


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, tails: Tensor, rows: ConvRows
) -> tuple[Tensor, Tensor]:
    """The convolution of `x` `[T, C]` by `weight` `[C, K]`: outputs `[T, C]`, and the new tails.

    `tails` `[R, K - 1, C]` are the inputs before this step, oldest first, in any dtype; so are the
    new ones, in that of `x`: inputs, without weight or bias. A request with fewer tokens than a
    tail keeps the end of its old one. `bias` is `[C]` or None. No request reads another one's
    inputs, and no argument is changed.
    """
    # TODO 18.9
    raise NotImplementedError(
        "TODO 18.9: write causal_conv in labs/18-hybrid-caches/causal_conv.py"
        " (phase 18, 02-mini-build.md#task-9)"
    )
