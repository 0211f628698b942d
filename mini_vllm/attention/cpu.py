"""Fast attention on CPU: dense groups of requests instead of one request after another.

A step's requests are put into groups that need no ragged arithmetic:

    decodes    one new token each; grouped by context length, within a factor of two, and padded
               to the longest table of the group
    prefills   grouped by equal query and context length, without padding

For each group one gather copies the pages into a dense buffer, and one call of torch's
`scaled_dot_product_attention` (a flash kernel on CPU) does the rest. Indices and masks depend only
on the step, so they are built once and used by every layer.

Shapes: n requests of a group, Q new tokens each, L context tokens, Hq = Hkv * G heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.reference import causal_mask


@dataclass
class Group:
    """Requests that are computed together, and what is the same for them in every layer."""

    tokens: slice | Tensor  # their rows of the flat batch, n * Q of them
    size: int  # n
    query_len: int  # Q
    seq_len: int  # L: the same for all, or for decodes the room that the longest one needs
    pages: Tensor  # [2 * n * blocks] int64: key pages of all requests, then value pages
    seq_lens: Tensor | None  # [n] for decodes, whose lengths differ; None for prefills
    masks: dict[tuple[int | None, torch.dtype], Tensor]

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """What is added to the scores, 0 or -inf: `[n, 1, 1, L]` for decodes, else `[Q, L]`."""
        key = (window, dtype)
        if key not in self.masks:
            if self.seq_lens is None:
                visible = causal_mask(self.query_len, self.seq_len, window)
            else:
                last = self.seq_lens[:, None, None, None] - 1
                positions = torch.arange(self.seq_len)
                visible = positions <= last
                if window is not None:
                    visible &= positions > last - window
            zeros = torch.zeros(visible.shape, dtype=dtype)
            self.masks[key] = zeros.masked_fill_(~visible, float("-inf"))
        return self.masks[key]


def make_groups(metadata: AttentionMetadata, num_blocks: int, block_size: int) -> list[Group]:
    """Group the requests of one step. `num_blocks` is the size of the cache."""
    starts = list(accumulate(metadata.query_lens_cpu, initial=0))
    members: dict[tuple[int, int], list[int]] = {}
    for i, (query_len, seq_len) in enumerate(
        zip(metadata.query_lens_cpu, metadata.seq_lens_cpu, strict=True)
    ):
        decode = i < metadata.num_decode_reqs
        key = (1, (-(-seq_len // block_size) - 1).bit_length()) if decode else (query_len, seq_len)
        members.setdefault((decode, *key), []).append(i)
    return [
        _make_group(metadata, decode, query_len, rows, starts, num_blocks, block_size)
        for (decode, query_len, _), rows in members.items()
    ]


def _make_group(
    metadata: AttentionMetadata,
    decode: bool,
    query_len: int,
    rows: list[int],
    starts: list[int],
    num_blocks: int,
    block_size: int,
) -> Group:
    seq_len = max(metadata.seq_lens_cpu[i] for i in rows)
    width = -(-seq_len // block_size)
    consecutive = rows[-1] - rows[0] + 1 == len(rows)
    index: slice | Tensor = slice(rows[0], rows[-1] + 1) if consecutive else torch.tensor(rows)
    first = starts[rows[0]]
    tokens: slice | Tensor = slice(first, first + len(rows) * query_len)
    if not consecutive:
        begins = torch.tensor([starts[i] for i in rows])
        tokens = (begins[:, None] + torch.arange(query_len)).flatten()
    pages = metadata.block_table[index, :width].long().flatten()
    return Group(
        tokens=tokens,
        size=len(rows),
        query_len=query_len,
        seq_len=width * block_size if decode else seq_len,
        pages=torch.cat((pages, pages + num_blocks)),
        seq_lens=metadata.seq_lens[index] if decode else None,
        masks={},
    )


class CpuAttention:
    """The `AttentionBackend` for CPUs. Keeps one scratch buffer, reused by all layers and steps."""

    def __init__(self) -> None:
        self.scratch = torch.empty(0)

    def store(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        """See `AttentionBackend`. Padding (slot -1) is written into the null block."""
        slots = slot_mapping.clamp(min=0)
        keys, values = kv_cache.flatten(1, 2)
        keys.index_copy_(0, slots, key.to(kv_cache.dtype))
        values.index_copy_(0, slots, value.to(kv_cache.dtype))

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        if metadata.plan is None:
            metadata.plan = make_groups(metadata, *kv_cache.shape[1:3])
        output = torch.empty_like(query)
        for group in metadata.plan:
            attend = self._decode if group.seq_lens is not None else self._prefill
            output[group.tokens] = attend(
                query[group.tokens], kv_cache, group, scale, sliding_window
            )
        return output

    def _gather(self, kv_cache: Tensor, group: Group) -> Tensor:
        """Copy the group's pages into dense keys and values: `[2, n, Hkv, L, D]` (a view)."""
        pages = kv_cache.flatten(0, 1).flatten(1)  # [2 * num_blocks, elements of one page]
        size = len(group.pages) * pages.shape[1]
        if self.scratch.numel() < size or self.scratch.dtype != kv_cache.dtype:
            self.scratch = torch.empty(size, dtype=kv_cache.dtype)
        dense = self.scratch[:size].view(len(group.pages), -1)
        torch.index_select(pages, 0, group.pages, out=dense)
        dense = dense.view(2, group.size, -1, *kv_cache.shape[3:])
        return dense[:, :, : group.seq_len].transpose(2, 3)

    def _decode(
        self, query: Tensor, kv_cache: Tensor, group: Group, scale: float, window: int | None
    ) -> Tensor:
        """The G query heads of one key head become G "query tokens" that share one mask row.

        So no key is repeated. Keys and values are read as they are stored: converting them to
        another dtype would cost more than the arithmetic.
        """
        keys, values = self._gather(kv_cache, group)
        num_kv_heads = keys.shape[1]
        q = query.to(keys.dtype).view(group.size, num_kv_heads, -1, query.shape[-1])
        mask = group.mask(window, q.dtype)
        out = F.scaled_dot_product_attention(q, keys, values, mask, scale=scale)
        return out.reshape(query.shape)

    def _prefill(
        self, query: Tensor, kv_cache: Tensor, group: Group, scale: float, window: int | None
    ) -> Tensor:
        """A dense batch of n requests; a whole prompt uses the kernel's own causal mode.

        Here arithmetic costs more than converting, so keys and values take the query's dtype.
        """
        keys, values = self._gather(kv_cache, group).to(query.dtype)
        q = query.view(group.size, group.query_len, *query.shape[1:]).transpose(1, 2)
        causal = window is None and group.query_len == group.seq_len
        mask = None if causal else group.mask(window, q.dtype)
        out = F.scaled_dot_product_attention(
            q, keys, values, mask, is_causal=causal, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(query.shape)
