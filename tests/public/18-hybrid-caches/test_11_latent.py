"""Task 18.11: one query a request over latents as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.model.mixers.mla import attend_latent

C, P, R, V, N = 5, 3, 2, 4, 2
SCALE = 0.3


def problem(hy: Any, requests: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, latents and the weight that makes keys and values of them."""
    query = hy.random(requests, N, P + R)
    return query, hy.random(requests, length, C + R, seed=1), hy.random(N, P + V, C, seed=2)


def plainly(query: Tensor, latents: Tensor, weight: Tensor, scale: float = SCALE) -> Tensor:
    """One request, head by head, with keys and values made."""
    size, p = weight.shape[2], query.shape[1] - (latents.shape[1] - weight.shape[2])
    outs = []
    for own, made in zip(query, weight, strict=True):
        keys = torch.cat((latents[:, :size] @ made[:p].T, latents[:, size:]), dim=1)
        shares = (keys @ own * scale).softmax(0)
        outs.append(shares @ (latents[:, :size] @ made[p:].T))
    return torch.stack(outs)


def test_18_11_the_same_as_with_keys_and_values(hy: Any) -> None:
    """Three requests with 7 latents each, against attention that makes keys and values."""
    query, latents, weight = problem(hy, 3, 7)
    out = attend_latent(query, latents, torch.tensor([7, 7, 7]), weight, SCALE)
    right = [plainly(q, own, weight) for q, own in zip(query, latents, strict=True)]
    hy.near(out, torch.stack(right), "attention of 3 requests, 2 heads", 1e-12)


def test_18_11_only_the_first_latents_count(hy: Any) -> None:
    """Requests of 7, 1 and 4 tokens in one batch."""
    query, latents, weight = problem(hy, 3, 7)
    lens = [7, 1, 4]
    out = attend_latent(query, latents, torch.tensor(lens), weight, SCALE)
    rows = zip(query, latents, lens, strict=True)
    right = [plainly(q, own[:length], weight) for q, own, length in rows]
    hy.near(out, torch.stack(right), "requests with 7, 1, 4 latents of 7 places", 1e-12)


def test_18_11_what_lies_behind_may_be_anything(hy: Any) -> None:
    """A block was another request's. NaN there changes nothing: 0 times NaN would be NaN."""
    query, latents, weight = problem(hy, 1, 7)
    right = plainly(query[0], latents[0, :4], weight)
    latents[:, 4:] = torch.nan
    out = attend_latent(query, latents, torch.tensor([4]), weight, SCALE)
    hy.near(out[0], right, "4 latents, and NaN behind them", 1e-12)


def test_18_11_the_scale_is_the_callers(hy: Any) -> None:
    """It is that of a whole key, P + R numbers, perhaps stretched. Do not derive it from C + R."""
    query, latents, weight = problem(hy, 1, 6)
    for scale in (0.1, 2.0):
        out = attend_latent(query, latents, torch.tensor([6]), weight, scale)
        right = plainly(query[0], latents[0], weight, scale)
        hy.near(out[0], right, f"scale {scale}", 1e-12)


def test_18_11_arguments_stay_as_they_are(hy: Any) -> None:
    """Latents lie in the cache."""
    query, latents, weight = problem(hy, 2, 5)
    before = [x.clone() for x in (query, latents, weight)]
    attend_latent(query, latents, torch.tensor([5, 2]), weight, SCALE)
    for name, now, old in zip(
        ("query", "latents", "weight"), (query, latents, weight), before, strict=True
    ):
        hy.near(now, old, f"{name} after the call")


def test_18_11_keys_and_values_are_never_made(hy: Any) -> None:
    """512 latents, 8 heads: keys and values alone would be 8 times all the latents."""
    from labkit.inside.cost import elements

    heads, length, width = 8, 512, 64
    query, latents = hy.random(1, heads, 32 + 16), hy.random(1, length, width + 16)
    weight = hy.random(heads, 64, width)
    cost = elements(attend_latent, query, latents, torch.tensor([length]), weight, SCALE)
    most = 4 * latents.numel() + 8 * heads * length + 4 * weight.numel()
    expect(cost < most, True, at=f"{cost} numbers touched, at most {most}")
