"""Change request 1: two tokens stay."""

from __future__ import annotations

import torch

from labkit.testing import expect
from mini_vllm.sample.logits_processors import apply_top_p


def kept(probabilities: list[float], top_p: float) -> int:
    logits = torch.tensor([probabilities]).log()
    return int(apply_top_p(logits, torch.tensor([top_p])).isfinite().sum())


def test_change_1_two_stay() -> None:
    """One token has nearly all."""
    expect(kept([0.9, 0.06, 0.04], 0.5), 2, at="0.9 0.06 0.04, top_p 0.5")


def test_change_1_more_if_top_p_says_so() -> None:
    """A wide distribution is cut as before."""
    expect(kept([0.4, 0.3, 0.2, 0.1], 0.8), 3, at="0.4 0.3 0.2 0.1, top_p 0.8")


def test_change_1_what_was_ruled_out_stays_out() -> None:
    """An earlier filter has left one token."""
    logits = torch.tensor([[1.0, float("-inf"), float("-inf")]])
    out = apply_top_p(logits, torch.tensor([0.5]))
    expect(out.isfinite().tolist(), [[True, False, False]], at="one finite logit")
