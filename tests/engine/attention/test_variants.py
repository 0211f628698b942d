"""Sinks, capped scores and chunks, against the formula written out for one request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata, quantized
from mini_vllm.attention.quantized import FORMATS, QuantizedKV
from mini_vllm.attention.reference import ReferenceAttention
from mini_vllm.attention.variants import VariantAttention

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 8, 4
LENS = [(1, 9), (1, 3), (7, 7), (5, 11)]
"""New tokens and context of each request, decodes first."""


def expected(q: Tensor, k: Tensor, v: Tensor, window: int | None, **how: Any) -> Tensor:
    """One request: `q` `[Q, Hq, D]`, `k` and `v` `[L, Hkv, D]`; token by token, head by head."""
    rows = []
    for place in range(len(q)):
        position = len(k) - len(q) + place
        chunk = how.get("chunk")
        first = 0 if chunk is None else position // chunk * chunk
        first = first if window is None else max(first, position - window + 1)
        heads = []
        for head in range(HEADS):
            keys, values = (x[first : position + 1, head * KV_HEADS // HEADS] for x in (k, v))
            scores = keys @ q[place, head] * 0.3
            if cap := how.get("softcap"):
                scores = cap * torch.tanh(scores / cap)
            weights = scores.exp()
            sink = how["sinks"][head].exp() if "sinks" in how else 0.0
            heads.append(weights @ values / (weights.sum() + sink))
        rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(
    "how", [{"sinks": torch.tensor([0.5, -2.0, 3.0, 0.0])}, {"softcap": 1.5}, {"chunk": 5}]
)
def test_it_is_the_formula(how: dict[str, Any], window: int | None, monkeypatch: Any) -> None:
    monkeypatch.setattr("mini_vllm.attention.variants.QUERIES_AT_ONCE", 3)
    torch.manual_seed(0)
    tables, wanted, queries = [[1, 4, 2], [3], [5, 6], [7, 9, 8]], [], []
    cache = torch.zeros(2, 10, BLOCK, KV_HEADS, SIZE)
    for (new, length), table in zip(LENS, tables, strict=True):
        q, k, v = torch.randn(new, HEADS, SIZE), *torch.randn(2, length, KV_HEADS, SIZE)
        slots = torch.tensor([table[i // BLOCK] * BLOCK + i % BLOCK for i in range(length)])
        for plane, values in zip(cache.flatten(1, 2), (k, v), strict=True):
            plane[slots] = values
        queries.append(q)
        wanted.append(expected(q, k, v, window, **how))
    news, lens = zip(*LENS, strict=True)
    metadata = AttentionMetadata.from_lists(news, lens, tables, BLOCK)
    backend = VariantAttention(ReferenceAttention(), **how)
    out = backend.forward(torch.cat(queries), cache, metadata, 0.3, window)
    torch.testing.assert_close(out, torch.cat(wanted), rtol=1e-5, atol=1e-5)


def test_a_kernel_for_a_cache_of_bytes_is_not_asked_for_sinks(monkeypatch: Any) -> None:
    """It has the plain softmax only; on a GPU it would take every step of decodes."""
    monkeypatch.setattr(quantized, "can_launch", lambda x: True)
    variant = VariantAttention(ReferenceAttention(), torch.zeros(HEADS))
    backend = QuantizedKV(variant, FORMATS["int8_per_token_head"])
    cache = torch.zeros(2, 3, BLOCK, KV_HEADS, SIZE + 4, dtype=torch.int8)
    metadata = AttentionMetadata.from_lists([1], [3], [[1]], BLOCK)
    out = backend.forward(torch.ones(1, HEADS, SIZE), cache, metadata, 0.3)
    assert out.shape == (1, HEADS, SIZE)
