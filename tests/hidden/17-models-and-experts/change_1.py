"""Change request 1, over random logits: beside a loop over tokens."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

from mini_vllm.model.moe.routers import grouped_topk


def score(logit: float) -> float:
    """The root of log(1 + e^logit), without e^logit where that is large."""
    return math.sqrt(max(logit, 0.0) + math.log1p(math.exp(-abs(logit))))


def wanted(logits: list[float], bias: list[float], k: int, groups: int, best: int) -> list[int]:
    choice = [score(logit) + b for logit, b in zip(logits, bias, strict=True)]
    size = len(logits) // groups
    by_group = [sum(sorted(choice[g * size :][:size])[-2:]) for g in range(groups)]
    allowed = sorted(range(groups), key=lambda g: -by_group[g])[:best]
    experts = [e for e in range(len(logits)) if e // size in allowed]
    return sorted(experts, key=lambda e: -choice[e])[:k]


@pytest.mark.parametrize("seed", range(40))
def test_change_1_random_tokens(seed: int) -> None:
    rng = Random(seed)
    groups, size = rng.choice((1, 2, 4)), rng.randint(2, 4)
    best = rng.randint(1, groups)
    k, factor = rng.randint(1, best * size), rng.choice((1.0, 2.5))
    bias = [rng.uniform(-3, 3) for _ in range(groups * size)]
    tokens = [[rng.uniform(-8, 8) for _ in bias] for _ in range(5)]
    weights, ids = grouped_topk(
        torch.tensor(tokens), k, True, groups, best, "sqrtsoftplus", factor, torch.tensor(bias)
    )
    assert weights.dtype == torch.float32
    for token, logits in enumerate(tokens):
        experts = wanted(logits, bias, k, groups, best)
        assert sorted(ids[token].tolist()) == sorted(experts)
        scores = {expert: score(logits[expert]) for expert in experts}
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            assert weight == pytest.approx(factor * scores[expert] / sum(scores.values()), rel=1e-5)


def test_change_1_logits_of_half_the_width() -> None:
    """They are widened before anything is computed: 100 is more than e^x has in float16."""
    for dtype in (torch.float16, torch.bfloat16):
        logits = torch.tensor([[100.0, 0.0]], dtype=dtype)
        weights, _ = grouped_topk(logits, 2, False, scoring_func="sqrtsoftplus")
        assert weights.tolist()[0] == pytest.approx([10.0, math.sqrt(math.log(2))])


def test_change_1_some_tokens_are_far_below() -> None:
    """One row of zeros changes no other row, and no number is NaN."""
    logits = torch.tensor([[-1000.0, -1000.0], [0.0, 0.0]])
    weights, _ = grouped_topk(logits, 2, True, scoring_func="sqrtsoftplus")
    assert weights.tolist() == [[0.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize("name", ["", "Sigmoid", "softplus", "sqrt_softplus"])
def test_change_1_near_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="sqrtsoftplus") as refused:
        grouped_topk(torch.zeros(1, 2), 1, False, scoring_func=name)
    assert name in str(refused.value)
