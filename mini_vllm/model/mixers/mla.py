"""Multi-head latent attention: the cache has one latent vector per token, for all heads together.

    c   = norm(W_dkv x) [C]      the latent, from which each head's key and value are computed
    k_r = rotated [R]            the part of keys that depends on positions, shared by all heads
    cache                        [C + R] per token; DeepSeek-V3: 576 numbers instead of 40,960

The same attention has two forms. A prompt computes keys and values of its whole context, once for
many queries (`attend_expanded`): k = [W_uk c | k_r], v = W_uv c. A decode has one query, for which
that would be far more work than the attention itself. It applies W_uk to the query instead, and
W_uv after the softmax (`attend_latent`)::

    q . k = q_n . (W_uk c) + q_r . k_r = [W_uk^T q_n | q_r] . [c | k_r]
    sum of p v = W_uv (sum of p c)

so that all heads read the cached latents directly.
Source: vllm/model_executor/layers/attention/mla_attention.py#L322-L334 (MLAAttention) @ v0.22.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend_expanded(query: Tensor, latents: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Causal attention of a request's last n tokens, with keys and values from its L latents.

    `query` `[n, N, P + R]`, `latents` `[L, C + R]`, `weight` `[N, P + V, C]`: for each head W_uk,
    then W_uv. Returns `[n, N, V]`.
    """
    (num_heads, _, size), (length, width) = weight.shape, latents.shape
    p = query.shape[2] - (width - size)
    c, k_r = latents.split([size, width - size], dim=-1)
    made = F.linear(c, weight.flatten(0, 1)).view(length, num_heads, -1)
    k = torch.cat((made[..., :p], k_r[:, None].expand(-1, num_heads, -1)), dim=-1)
    # torch's fused attention needs values as wide as keys, and a batch dimension.
    v = F.pad(made[..., p:], (0, max(query.shape[2] - (made.shape[2] - p), 0)))
    seen = None
    if 1 < len(query) < length:  # a whole prompt uses is_causal; a single last token sees all
        seen = torch.ones(len(query), length, dtype=torch.bool, device=query.device)
        seen = seen.tril(length - len(query))
    q, k, v = (x.transpose(0, 1)[None] for x in (query, k, v))
    is_causal = len(query) == length
    out = F.scaled_dot_product_attention(q, k, v, seen, is_causal=is_causal, scale=scale)
    return out[0].transpose(0, 1)[..., : made.shape[2] - p]


def attend_latent(
    query: Tensor, latents: Tensor, lens: Tensor, weight: Tensor, scale: float
) -> Tensor:
    """Attention of one query a request over latents as they are: `[B, N, V]`.

    `query` `[B, N, P + R]`, `latents` `[B, L, C + R]`, of which the first `lens` `[B]` count: what
    lies behind them, NaN too, changes nothing. `weight` as in `attend_expanded`, and so is the
    result, which has the arguments' dtype. Keys and values are never made: all heads read the same
    latents. No argument is changed.
    """
    size, width = weight.shape[2], latents.shape[2]
    p = query.shape[2] - (width - size)
    beyond = torch.arange(latents.shape[1], device=lens.device) >= lens[:, None]
    latents = latents.masked_fill(beyond[..., None], 0)  # for 0 times what lies there may be NaN
    absorbed = torch.cat(
        (torch.einsum("bnp,npc->bnc", query[..., :p], weight[:, :p]), query[..., p:]), dim=-1
    )
    scores = (absorbed @ latents.mT).mul_(scale)  # [B, N, L]
    shares = scores.masked_fill_(beyond[:, None], -torch.inf).softmax(-1)
    mixed = shares @ latents[..., :size]  # [B, N, C]
    return torch.einsum("bnc,nvc->bnv", mixed, weight[:, p:])
