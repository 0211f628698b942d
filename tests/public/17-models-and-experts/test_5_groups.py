"""Task 17.5: DeepSeek's router. Eight experts in four groups of two, unless told otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.model.moe.routers import grouped_topk, in_best_groups

SCORES = torch.tensor([[0.9, 0.1, 0.6, 0.5, 0.7, 0.2, 0.3, 0.35]])
V3 = dict(scoring_func="sigmoid", num_expert_group=4, topk_group=2)


def logits(scores: Tensor) -> Tensor:
    """Whose sigmoid is `scores`."""
    return (scores / (1 - scores)).log()


def route(lab: Any, found: tuple[Tensor, Tensor]) -> Any:
    """Expert -> weight, for the only token."""
    pairs = zip(found[1][0].tolist(), lab.rounded(found[0])[0], strict=True)
    return dict(sorted(pairs))


def test_17_5_which_groups_are_best() -> None:
    """By the best of each group, or by the sum of the best two."""
    by_one = in_best_groups(SCORES, 4, 2, 1)
    expect(by_one.int().tolist(), [[1, 1, 0, 0, 1, 1, 0, 0]], at="groups by their best expert")
    by_two = in_best_groups(SCORES, 4, 2, 2)
    expect(by_two.int().tolist(), [[1, 1, 1, 1, 0, 0, 0, 0]], at="groups by the sum of two")


def test_17_5_without_groups(lab: Any) -> None:
    """One group: sigmoid, the best k."""
    found = route(lab, grouped_topk(logits(SCORES), 3, False, scoring_func="sigmoid"))
    expect(found, {0: 0.9, 2: 0.6, 4: 0.7}, at="the best 3 of 8")


def test_17_5_a_group_by_its_best(lab: Any) -> None:
    """No bias, so V2's rule: groups of 0.9 and of 0.7 win."""
    found = route(lab, grouped_topk(logits(SCORES), 3, False, **V3))
    expect(found, {0: 0.9, 4: 0.7, 5: 0.2}, at="3 experts of 2 groups of 4")


def test_17_5_a_group_by_its_best_two(lab: Any) -> None:
    """With a bias, even of zeros, V3's rule: 0.6 + 0.5 beats 0.7 + 0.2."""
    bias = torch.zeros(8)
    found = route(lab, grouped_topk(logits(SCORES), 3, False, **V3, e_score_correction_bias=bias))
    expect(found, {0: 0.9, 2: 0.6, 3: 0.5}, at="a bias of zeros")


def test_17_5_the_bias_chooses_and_does_not_weigh(lab: Any) -> None:
    """Expert 7 is chosen for its bias, and counts 0.35."""
    bias = torch.tensor([0.0, 0, 0, 0, 0, 0, 0, 2.0])
    found = route(lab, grouped_topk(logits(SCORES), 2, False, **V3, e_score_correction_bias=bias))
    expect(found, {2: 0.6, 7: 0.35}, at="a bias of 2 on expert 7")


def test_17_5_other_groups_are_out_for_good(lab: Any) -> None:
    """Scores with a bias may be negative, and a 0 would beat them: masked is -inf."""
    bias = torch.full((8,), -3.0)
    found = route(lab, grouped_topk(logits(SCORES), 4, False, **V3, e_score_correction_bias=bias))
    expect(found, {0: 0.9, 1: 0.1, 2: 0.6, 3: 0.5}, at="a bias of -3 on all")


def test_17_5_renormalised_then_scaled(lab: Any) -> None:
    """Weights add up to the factor, not to 1."""
    found = route(lab, grouped_topk(logits(SCORES), 2, True, **V3, routed_scaling_factor=2.0))
    expect(found, {0: 1.125, 4: 0.875}, at="0.9 and 0.7, renormalised, times 2")


def test_17_5_softmax_scores(lab: Any) -> None:
    """V2: over all experts, also those of other groups."""
    shares = torch.tensor([[0.4, 0.05, 0.2, 0.05, 0.1, 0.1, 0.05, 0.05]])
    found = grouped_topk(shares.log(), 2, False, num_expert_group=4, topk_group=1)
    expect(route(lab, found), {0: 0.4, 1: 0.05}, at="one group of 4")


def test_17_5_scores_are_float32() -> None:
    """Logits in bfloat16 are widened first."""
    weights, _ = grouped_topk(torch.tensor([[1.0, 2.0]]).bfloat16(), 1, False)
    expect(str(weights.dtype), "torch.float32", at="the weights' dtype")
