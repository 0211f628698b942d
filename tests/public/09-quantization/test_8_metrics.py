"""Task 09.8: compare with the original: KL, top-1, perplexity."""

from __future__ import annotations

import math
from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.metrics import kl_divergence, perplexity, top1_agreement

P, Q = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.25, 0.5, 0.25]]).log()


def test_09_8_the_divergence_by_hand(lab: Any) -> None:
    """0.5 log 2 - 0.25 log 2."""
    expect(lab.listed(kl_divergence(P, Q)), [round(0.25 * math.log(2), 4)], at="natural logarithm")


def test_09_8_it_asks_from_the_original(lab: Any) -> None:
    """Not the same the other way round; 0 for the same."""
    q = torch.tensor([[0.9, 0.05, 0.05]]).log()
    expected = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.25 / 0.05)
    expect(lab.listed(kl_divergence(P, q)), [round(expected, 4)], at="p = 0.5 0.25 0.25")
    expect(lab.listed(kl_divergence(P, P)), [0.0], at="the same twice")


def test_09_8_logits_need_no_norm(lab: Any) -> None:
    """Adding the same to all logits changes nothing; one number a position."""
    both = torch.cat((P, P))
    expect(lab.listed(kl_divergence(both + 5, both - 3)), [0.0, 0.0], at="two positions")


def test_09_8_what_is_ruled_out_adds_nothing(lab: Any) -> None:
    """A token of probability 0 in the original."""
    p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    expect(lab.listed(kl_divergence(p, P)), [round(0.5 * math.log(2), 4)], at="0 * log 0 is 0")
    expect(lab.listed(kl_divergence(P, p)), [math.inf], at="the other rules out what p does not")


def test_09_8_agreement_and_perplexity(lab: Any) -> None:
    """The share of equal favourites; and a fair die has perplexity 6."""
    expect(top1_agreement(torch.cat((P, P)), torch.cat((P, Q))), 0.5, at="one of two")
    expect(round(perplexity(torch.zeros(3, 6), torch.tensor([0, 5, 2])), 6), 6.0, at="six tokens")
    found = perplexity(torch.cat((P, P)), torch.tensor([0, 1]))
    expect(round(found, 6), round(math.sqrt(8), 6), at="probabilities 1/2 and 1/4")
