"""The sampler where kernels can run: plain rows in two launches, all others as everywhere.

A CPU, and rows that ask for more, take the steps of
:class:`~mini_vllm.sample.sampler.Sampler`: many operations, some of which read or write all logits.
The two kernels read the logits once, in the dtype of the head, and draw with the same number from
the same seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.kernels.sampling import DRAW_TOKENS, num_tiles
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.sampler import MAX_LOGIT, Sampler, SamplerOutput


class KernelSampler(Sampler):
    """See :class:`~mini_vllm.sample.sampler.Sampler`; for logits on which kernels can work."""

    def forward(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        if not metadata.is_plain or logits.stride(1) != 1:
            return super().forward(logits, metadata)
        return SamplerOutput(draw_tokens(logits, metadata), None)


def draw_tokens(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """The token of each row, or the code of its error: all that `Sampler` does for plain rows.

    Args:
        logits: [B, V], any float dtype, rows contiguous; not changed.
        metadata: plain; see `SamplingMetadata.is_plain`.

    Returns:
        [B] int64.
    """
    num_rows, vocab_size = logits.shape
    largest, mass = logits.new_empty((2, num_rows, num_tiles(vocab_size)), dtype=torch.float32)
    token_ids = logits.new_empty(num_rows, dtype=torch.int64)
    DRAW_TOKENS.run(
        token_ids=token_ids,
        logits=logits,
        temperature=metadata.temperature,
        seeds=metadata.seeds,
        num_output_tokens=None if metadata.all_greedy else metadata.num_output_tokens,
        largest=largest,
        mass=mass,
        max_logit=MAX_LOGIT,
    )
    return token_ids
