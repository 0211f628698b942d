"""Change request 1: scores of a third kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.model.moe.routers import grouped_topk

FAR_BELOW = -1000.0


def route(lab: Any, logits: list[float], k: int, renormalize: bool, **more: Any) -> Any:
    """Expert -> weight, for one token."""
    found = grouped_topk(torch.tensor([logits]), k, renormalize, **more)
    return dict(sorted(zip(found[1][0].tolist(), lab.rounded(found[0])[0], strict=True)))


def test_change_1_the_score(lab: Any) -> None:
    """The root of log(1 + e^logit), also where e^logit is more than a float32 holds."""
    found = route(lab, [2.0, 0.0, -20.0, 1000.0], 4, False, scoring_func="sqrtsoftplus")
    expect(found, {0: 1.4584, 1: 0.8326, 2: 0.0, 3: 31.6228}, at="logits 2, 0, -20, 1000")


def test_change_1_divided_by_their_sum(lab: Any) -> None:
    """Two of three; and three that are all 0."""
    found = route(lab, [2.0, 0.0, FAR_BELOW], 2, True, scoring_func="sqrtsoftplus")
    expect(found, {0: 0.6366, 1: 0.3634}, at="logits 2, 0, -1000")
    weights, _ = grouped_topk(torch.full((1, 3), FAR_BELOW), 2, True, scoring_func="sqrtsoftplus")
    expect(weights.tolist(), [[0.0, 0.0]], at="logits -1000, -1000, -1000")


def test_change_1_a_bias_chooses(lab: Any) -> None:
    """As with sigmoid: it is not in the weights."""
    bias = torch.tensor([0.0, 5.0, 0.0])
    found = route(
        lab, [2.0, 0.0, 1.0], 1, False, scoring_func="sqrtsoftplus", e_score_correction_bias=bias
    )
    expect(found, {1: 0.8326}, at="a bias of 5 on expert 1")


def test_change_1_other_names_are_refused() -> None:
    """By name, with the three that are known."""
    with pytest.raises(ValueError) as refused:
        grouped_topk(torch.zeros(1, 2), 1, False, scoring_func="relu")
    missing = [name for name in ("relu", "softmax", "sigmoid", "sqrtsoftplus")
               if name not in str(refused.value)]  # fmt: skip
    expect(missing, [], at="names that the message does not contain")


def test_change_1_the_others_are_as_before(lab: Any) -> None:
    """Sigmoid and softmax."""
    expect(
        route(lab, [2.0, -1.0, 1.0, 0.5], 2, True, scoring_func="sigmoid"),
        {0: 0.5464, 2: 0.4536},
        at="sigmoid, the best 2 of 2, -1, 1, 0.5",
    )
    expect(
        route(lab, [2.0, -1.0, 1.0, 0.5], 2, False, scoring_func="softmax"),
        {0: 0.6095, 2: 0.2242},
        at="softmax, the best 2 of 2, -1, 1, 0.5",
    )
