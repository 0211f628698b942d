"""Tokens of several requests in chunks of one size, so that one product computes many chunks.

The state passes from chunk to chunk, so the chunks of one request are computed one after another.
But the first chunks of all requests are computed together, then all second chunks (size 2)::

    flat batch   a0 a1 a2  b0  c0 c1 c2 c3
    chunks       a0 a1 | b0 b0' | c0 c1 || a2 a2' | c2 c3
                 ------- round 0 -------   --- round 1 ---

The last chunk of a request is padded with copies (') of its last token. A copy has log decay 0 and
beta 0, so it neither decays nor writes the state. Because the copy is of the same request, a NaN of
another request cannot reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import itemgetter

import torch
from torch import Tensor

CHUNK_SIZE = 32
"""Tokens of a chunk. The work inside a chunk grows with the square of its size, and the work saved
between chunks only linearly. On a CPU 32 is faster than 64 (`benchmarks/bench_mixers.py --size
64`), the size of vLLM's kernels."""


class Chunks:
    """How one step's tokens are split into chunks; the same for all layers.

    Args:
        lens: tokens of each request, in the order of the flat batch; each at least 1.
    """

    def __init__(
        self, lens: Sequence[int], size: int = CHUNK_SIZE, device: torch.device | str = "cpu"
    ) -> None:
        self.size = size = min(size, max(lens))
        ends = list(accumulate(lens))
        self.starts = torch.tensor([0, *ends])  # [R + 1], on the host
        spans = sorted(  # per chunk: round, request, first token, last token of the request
            (index, request, end - count + index * size, end - 1)
            for request, (count, end) in enumerate(zip(lens, ends, strict=True))
            for index in range(-(-count // size))
        )
        self.rounds: list[tuple[slice | Tensor, slice]] = []
        """For each round the indices of its states (or all), and its chunks."""
        for _, members in groupby(spans, key=itemgetter(0)):
            own = [request for _, request, *_ in members]
            states = slice(None) if len(own) == len(lens) else torch.tensor(own).to(device)
            start = self.rounds[-1][1].stop if self.rounds else 0
            self.rounds.append((states, slice(start, start + len(own))))
        firsts, lasts = torch.tensor([span[2:] for span in spans])[..., None].unbind(1)
        tokens = firsts + torch.arange(size)
        is_padding = tokens > lasts
        places = torch.empty(ends[-1], dtype=torch.long)
        places[tokens[~is_padding]] = (~is_padding).flatten().nonzero()[:, 0]
        self.is_padding = is_padding.to(device)  # [M, size]
        self.sources = tokens.minimum(lasts).to(device)  # [M, size], of the flat batch
        self.places = places.to(device)  # [T], of M * size

    def split(self, x: Tensor) -> Tensor:
        """`[T, H, D]` of the flat batch as chunks `[M, H, size, D]`."""
        rows = x.index_select(0, self.sources.flatten())
        return rows.unflatten(0, self.sources.shape).transpose(1, 2).contiguous()

    def split_scalars(self, x: Tensor) -> Tensor:
        """`[T, H]` of the flat batch as chunks `[M, H, size]`, 0 in padding."""
        return x[self.sources].masked_fill_(self.is_padding[..., None], 0).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """Chunks `[M, H, size, D]` as the flat batch `[T, H, D]`."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.places)


def decay_between(total: Tensor) -> Tensor:
    """The share of token j's write that remains at token i of a chunk: `[..., C] -> [..., C, C]`.

    `total` is the running sum of log decays, each at most 0. Entries with j > i are 0. Their
    exponent would be positive and may overflow, so it is clamped to 0 before `exp`.
    """
    return (total[..., :, None] - total[..., None, :]).clamp_(max=0).exp_().tril_()
