"""How far a quantised model is from the original: measured on what it predicts, token by token.

Perplexity asks how surprised a model is by a text; it falls when an over-confident model gets
noisy. The divergence asks the question you mean: does it still say what the original said?
"""

from __future__ import annotations

import torch
from torch import Tensor


def kl_divergence(original: Tensor, other: Tensor) -> Tensor:
    """How much `other` differs from `original`: the sum over tokens v of p(v) * log(p(v) / q(v)).

    p is the distribution of the logits `original` `[T, V]`, q that of `other`. Natural logarithm,
    in float64, whatever the dtype of the logits. A token that p rules out adds 0.

    Returns:
        `[T]` float64, 0 where both are the same.
    """
    log_p, log_q = (logits.double().log_softmax(-1) for logits in (original, other))
    return torch.where(log_p > -torch.inf, log_p.exp() * (log_p - log_q), 0.0).sum(-1)


def top1_agreement(original: Tensor, other: Tensor) -> float:
    """The share of the positions at which both would say the same next token: the largest logit's,
    of equal ones the first."""
    return (original.argmax(-1) == other.argmax(-1)).double().mean().item()


def perplexity(logits: Tensor, targets: Tensor) -> float:
    """exp of the mean surprise: `logits` `[T, V]` predict the tokens `targets` `[T]`."""
    surprise = -logits.double().log_softmax(-1).gather(-1, targets[:, None])
    return surprise.mean().exp().item()


def relative_error(original: Tensor, other: Tensor) -> float:
    """|original - other| / |original|, over all numbers."""
    difference = (original.double() - other.double()).norm()
    return (difference / original.double().norm()).item()
