"""Attention whose softmax is not the plain one: sinks, capped scores, chunks.

    sink        p_j = exp(s_j) / (exp(sink) + sum_k exp(s_k))    a head may attend to nothing
    soft cap    s -> cap * tanh(s / cap)                         no score leaves (-cap, cap)
    chunk       c tokens that see each other only                a mask that jumps, no window

The kernels of the other backends know none of them. This one is plain torch on any device: decodes
are one padded batch, and prompts come one after the other, some rows at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mini_vllm.attention import AttentionBackend
from mini_vllm.attention.metadata import AttentionMetadata

QUERIES_AT_ONCE = 128
"""Rows of a prompt whose scores are held together."""


class VariantAttention:
    """An `AttentionBackend` that stores as `inner` does and computes the softmax itself.

    Args:
        inner: the backend that stores keys and values.
        sinks: a logit for each query head `[Hq]`; None: no head has one.
        softcap: what scores are bent to stay within; None: they are not.
        chunk: the text is cut into pieces of so many tokens, and a token sees its own piece only.

    Source: vllm/v1/attention/backends/cpu_attn.py#L259-L413 (CPUAttentionBackendImpl) @ v0.22.1.
    """

    def __init__(
        self,
        inner: AttentionBackend,
        sinks: Tensor | None = None,
        softcap: float | None = None,
        chunk: int | None = None,
    ) -> None:
        self.store, self.sinks, self.softcap, self.chunk = inner.store, sinks, softcap, chunk

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        """See `AttentionBackend`."""
        output = torch.empty_like(query)
        first_prompt = metadata.num_decode_reqs
        spans = [(slice(0, first_prompt), slice(0, first_prompt), 1)] if first_prompt else []
        start = first_prompt  # decodes have a token each
        for row in range(first_prompt, metadata.num_reqs):
            length = metadata.query_lens_cpu[row]
            spans.append((slice(row, row + 1), slice(start, start + length), length))
            start += length
        for rows, tokens, length in spans:
            keys, values = gather(kv_cache, metadata, rows)
            queries = query[tokens].unflatten(0, (-1, length))
            ends = metadata.seq_lens[rows].long()
            for part in torch.arange(length, device=query.device).split(QUERIES_AT_ONCE):
                positions = ends[:, None] - length + part
                mask = visible(positions, keys.shape[1], sliding_window, self.chunk)
                out = self.attend(queries[:, part], keys, values, mask, scale)
                output[tokens].unflatten(0, (-1, length))[:, part] = out.to(query.dtype)
        return output

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
    ) -> Tensor:
        """`query` `[n, Q, Hq, D]` over `keys` and `values` `[n, L, Hkv, D]`: the same, float32.

        `mask` `[n, Q, L]` is true where a token sees another.
        """
        grouped = query.float().unflatten(2, (keys.shape[2], -1))  # [n, Q, Hkv, G, D]
        scores = torch.einsum("nqhgd,nlhd->nhgql", grouped, keys.float()) * scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
        if self.sinks is not None:
            column = self.sinks.float().view(1, *scores.shape[1:3], 1, 1)
            column = column.expand(*scores.shape[:-1], 1)
            weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        return torch.einsum("nhgql,nlhd->nqhgd", weights, values.float()).flatten(2, 3)


def gather(kv_cache: Tensor, metadata: AttentionMetadata, rows: slice) -> Any:
    """Keys and values of some requests, `[n, L, Hkv, D]` each, padded to the longest of them."""
    longest = max(metadata.seq_lens_cpu[rows])
    width = -(-longest // kv_cache.shape[2])
    pages = kv_cache[:, metadata.block_table[rows, :width].long()]
    return pages.flatten(2, 3)[:, :, :longest]


def visible(positions: Tensor, length: int, window: int | None, chunk: int | None = None) -> Tensor:
    """Which of `length` tokens each of `positions` `[n, Q]` sees: `[n, Q, L]`."""
    context, own = torch.arange(length, device=positions.device), positions[..., None]
    seen = context <= own
    if window is not None:
        seen &= context > own - window
    if chunk is not None:
        seen &= context >= own // chunk * chunk
    return seen
