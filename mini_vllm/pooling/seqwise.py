"""From the states of a prompt, which may come in chunks, to one vector.

    chunk 1 [h0 h1 h2]     chunk 2 [h3 h4]        LAST   h4
    CLS    h0              h0                     CLS    h0
    MEAN   h0+h1+h2        h0+h1+h2+h3+h4         MEAN   sum / 5
    ALL    [h0 h1 h2]      [h0 h1 h2 h3 h4]       ALL    all, for each token

Source: vllm/model_executor/layers/pooler/seqwise/methods.py#L60-L108 (MeanPool) @ v0.22.1.
Difference: there CLS and MEAN need the whole prompt in one step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pool_chunk(
    kind: str, chunk: Tensor, end: int, prompt_len: int, kept: list[Tensor]
) -> Tensor | None:
    """The states `[n, H]` that a prompt comes to, or None while it is not whole.

    Args:
        kind: "LAST", "CLS" or "MEAN", with n = 1; any other: all states, in their order.
        chunk: `[t, H]`: the states of this step, those of tokens end - t to end - 1. It is
            overwritten behind the step, so what is kept of it for later is a copy.
        end: how many tokens of the prompt are computed with this chunk.
        prompt_len: how many it has.
        kept: what earlier chunks left here, changed in place. A chunk that begins with the first
            token forgets it: the request was preempted and begins anew. It is empty once the
            prompt is whole.

    "LAST" keeps nothing, and "CLS" and "MEAN" keep one row however many chunks there are. A mean is
    float32, summed in float32 at least, and divided by the tokens of the whole prompt.
    """
    if end == len(chunk):
        kept.clear()
    if kind == "LAST":
        kept[:] = [chunk[-1:]]
    elif kind == "CLS":
        kept[:] = kept or [chunk[:1].clone()]
    elif kind == "MEAN":
        kept[:] = [sum(kept) + chunk.sum(0, keepdim=True, dtype=torch.float32)]
    else:
        kept.append(chunk.clone())
    if end < prompt_len:
        if kind == "LAST":
            kept.clear()
        return None
    states = torch.cat(kept)
    kept.clear()
    return states / prompt_len if kind == "MEAN" else states


def embedding(pooled: Tensor, dimensions: int | None, normalizes: bool) -> Tensor:
    """Embeddings `[N, d]` of pooled states `[N, D]`.

    `dimensions` keeps the first so many, which models are trained for whose embeddings may be cut
    (Matryoshka); None keeps all. What is left is then divided by its length, if `normalizes`, so
    that a dot product is a cosine. A row of zeros stays zeros.

    Source: vllm/model_executor/layers/pooler/seqwise/heads.py#L33-L99 (EmbeddingPoolerHead)
    @ v0.22.1.
    """
    cut = pooled if dimensions is None else pooled[:, :dimensions]
    return F.normalize(cut, dim=-1) if normalizes else cut
