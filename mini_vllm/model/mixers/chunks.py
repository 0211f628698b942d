"""Tokens of several requests in chunks of one size, so that a product takes many chunks at once.

A state is handed from chunk to chunk, so the chunks of one request follow each other; but all
requests' first chunks are computed together, then all second ones (size 2)::

    flat batch   a0 a1 a2  b0  c0 c1 c2 c3
    chunks       a0 a1 | b0 b0' | c0 c1 || a2 a2' | c2 c3
                 ------- round 0 -------   --- round 1 ---

The last chunk of a request is padded with copies (') of its last token. A copy's decay and strength
are 0, so it forgets nothing and writes nothing; being the request's own, it brings no other
request's damage with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK_SIZE = 64
"""Tokens of a chunk. Work inside a chunk grows with its square, what is saved grows with it."""


class Chunks:
    """How one step's tokens are dealt into chunks; the same for all layers.

    Args:
        lens: tokens of each request, in the order of the flat batch; each at least 1.
    """

    def __init__(
        self, lens: Sequence[int], size: int = CHUNK_SIZE, device: torch.device | str = "cpu"
    ) -> None:
        counts, self.size = torch.tensor(lens), min(size, max(lens))
        ends, chunks = counts.cumsum(0), -(-counts // self.size)
        num_rounds = int(chunks.max())
        members = [(chunks > index).nonzero()[:, 0] for index in range(num_rounds)]
        starts = torch.tensor([0, *map(len, members)]).cumsum(0)
        self.rounds = [
            # The states of a round, all of them or those numbers; and its chunks.
            (
                slice(None) if len(own) == len(lens) else own.to(device),
                slice(start, start + len(own)),
            )
            for own, start in zip(members, starts.tolist(), strict=False)
        ]
        begins = ends - counts
        firsts = [begins[own] + index * self.size for index, own in enumerate(members)]
        lasts = ends[torch.cat(members), None] - 1
        tokens = torch.cat(firsts)[:, None] + torch.arange(self.size)
        is_padding = tokens > lasts
        self.is_padding = is_padding.to(device)  # [M, size]
        self.sources = tokens.minimum(lasts).to(device)  # [M, size], of the flat batch
        places = tokens[~is_padding].argsort()
        self.places = (~is_padding).flatten().nonzero()[places, 0].to(device)  # [T], of M * size

    def split(self, x: Tensor) -> Tensor:
        """`[T, H, D]` of the flat batch as chunks `[M, H, size, D]`."""
        heads = torch.arange(x.shape[1], device=x.device)
        return x[self.sources[:, None, :], heads[:, None]]

    def split_scalars(self, x: Tensor) -> Tensor:
        """`[T, H]` of the flat batch as chunks `[M, H, size]`, 0 in padding."""
        return x[self.sources].masked_fill_(self.is_padding[..., None], 0).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """Chunks `[M, H, size, D]` as the flat batch `[T, H, D]`."""
        return x.transpose(1, 2)[self.places // self.size, self.places % self.size]


def decay_between(total: Tensor) -> Tensor:
    """How much of what token j wrote is left at token i of a chunk: `[..., C] -> [..., C, C]`.

    `total` is the running sum of log decays, each at most 0. What is not yet written is 0: it is
    masked before `exp`, whose argument would be above 0 there and may overflow.
    """
    size = total.shape[-1]
    future = total.new_full((size, size), -torch.inf).triu(1)
    return (total[..., :, None] - total[..., None, :]).add_(future).exp_()
