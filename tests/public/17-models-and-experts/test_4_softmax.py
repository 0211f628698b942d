"""Task 17.4: two routers with a softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.model.moe.routers import fused_topk, topk_softmax

SHARES = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.05, 0.05, 0.2]])
LOGITS = SHARES.log()
"""Whose softmax over all four is `SHARES`."""


def seen(lab: Any, found: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
    return found[1].tolist(), lab.rounded(found[0])


def test_17_4_the_most_probable_experts(lab: Any) -> None:
    """Probabilities over all experts, best first."""
    found = seen(lab, fused_topk(LOGITS, 2, renormalize=False))
    expect(found, ([[1, 3], [0, 3]], [[0.4, 0.3], [0.7, 0.2]]), at="the best 2 of 4")


def test_17_4_renormalised(lab: Any) -> None:
    """A token's weights add up to 1."""
    found = seen(lab, fused_topk(LOGITS, 2, renormalize=True))
    wanted = ([[1, 3], [0, 3]], [[0.5714, 0.4286], [0.7778, 0.2222]])
    expect(found, wanted, at="the best 2 of 4, renormalised")


def test_17_4_softmax_over_the_chosen(lab: Any) -> None:
    """The same numbers, made of the k logits alone."""
    found = seen(lab, topk_softmax(LOGITS, 2))
    wanted = ([[1, 3], [0, 3]], [[0.5714, 0.4286], [0.7778, 0.2222]])
    expect(found, wanted, at="softmax over the best 2 of 4")


def test_17_4_one_expert(lab: Any) -> None:
    """Softmax over one is 1; over all it is not."""
    expect(seen(lab, topk_softmax(LOGITS, 1)), ([[1], [0]], [[1.0], [1.0]]), at="k = 1")
    expect(seen(lab, fused_topk(LOGITS, 1, False)), ([[1], [0]], [[0.4], [0.7]]), at="k = 1")


def test_17_4_weights_are_float32(lab: Any) -> None:
    """Logits in bfloat16 are widened before the softmax, not behind it."""
    logits = torch.tensor([[3.0, 2.984375, 1.0]]).bfloat16()
    exact = lab.rounded(logits.float().softmax(-1)[0, :2])
    for name, found in (("fused_topk", fused_topk(logits, 2, False)),
                        ("topk_softmax", topk_softmax(logits, 2))):  # fmt: skip
        expect(str(found[0].dtype), "torch.float32", at=f"{name}'s weights")
        if name == "fused_topk":
            expect(lab.rounded(found[0][0]), exact, at="probabilities of bfloat16 logits")


def test_17_4_the_logits_stay() -> None:
    """The logits stay as they are: others may read them."""
    logits = LOGITS.clone()
    fused_topk(logits, 2, True)
    topk_softmax(logits, 2)
    expect(logits.tolist(), LOGITS.tolist(), at="the logits afterwards")
