"""Tensor parallelism at both ends of the model: embedding and head, divided by tokens.

::

    vocabulary of 131, 2 ranks     padded to 192, 96 rows each
    rank 0    tokens   0 ..  95
    rank 1    tokens  96 .. 130, and 61 rows of zeros without a token

A tied head is the embedding, so both are cut alike.

Source: vllm/model_executor/layers/vocab_parallel_embedding.py#L190-L512 (VocabParallelEmbedding)
@ v0.22.1
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.model.layout import Part

VOCAB_PADDING = 64
"""Ranks get a multiple of as many rows together: products of odd sizes are slow on a GPU."""


def vocab_range(vocab_size: int, rank: int, p: int) -> slice:
    """The rows of rank ``rank`` of ``p``; they may end behind the vocabulary, or begin there.

    The vocabulary is padded to the next multiple of 64 and of ``p``, and divided evenly.

    Source: vllm/model_executor/layers/vocab_parallel_embedding.py#L81-L106
    (pad_vocab_size, vocab_range_from_global_vocab_size) @ v0.22.1
    """
    unit = math.lcm(VOCAB_PADDING, p)
    each = -(-vocab_size // unit) * unit // p
    return slice(rank * each, (rank + 1) * each)


class VocabParallelEmbedding:
    """Rows of the table are divided; a rank looks up its own, and all get the sum."""

    adds_bias = True

    def __init__(self, group: GroupCoordinator, vocab_size: int) -> None:
        self.group, self.vocab_size = group, vocab_size
        self.rows = vocab_range(vocab_size, group.rank_in_group, group.world_size)

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        return [Part(self.rows, slice(0, input_size)) for _ in output_sizes]

    def lookup(self, input_ids: Tensor, weight: Tensor) -> Tensor:
        """The vectors ``[T, H]`` of ``[T]`` tokens, on every rank.

        Args:
            weight: ``[rows, H]``, the rows ``self.rows`` of the table.

        A token of another rank has no row here: look up some row in its place, and make its
        vector zero *afterwards*. Then add all ranks' vectors: of each token's, one is not zero,
        so the sum is exact in any dtype, and is sent in the table's.

        Source: vllm/model_executor/layers/vocab_parallel_embedding.py#L470-L490
        (VocabParallelEmbedding.forward) @ v0.22.1
        """
        is_here = (input_ids >= self.rows.start) & (input_ids < self.rows.stop)
        local_ids = (input_ids - self.rows.start) * is_here
        vectors = F.embedding(local_ids, weight).masked_fill(~is_here[:, None], 0)
        return self.group.all_reduce(vectors)

    def finish(self, y: Tensor) -> Tensor:
        return self.group.all_reduce(y)


class VocabParallelHead(VocabParallelEmbedding):
    """Rows of the head are divided; each rank computes the logits of its tokens."""

    def finish(self, y: Tensor) -> Tensor:
        """All logits ``[B, V]`` on every rank, from this rank's ``[B, rows]``.

        Rank after rank along the last dimension, cut to the vocabulary, and sent in the dtype of
        ``y``. The logit of a row of padding is 0, which beats every token whose logit is negative.

        Source: vllm/model_executor/layers/logits_processor.py#L89-L104
        (LogitsProcessor._get_logits) @ v0.22.1
        """
        return self.group.all_gather(y, dim=-1)[..., : self.vocab_size]
