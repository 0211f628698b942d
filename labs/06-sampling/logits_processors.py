"""The steps between raw logits and the distribution that is sampled. All are pure functions.

    logits [B, V] float32: B rows (requests whose next token is due), V tokens
    parameters [B]: one value per row; the value named in the docstring switches a row off

A token is ruled out by setting its logit to -inf, which makes its probability exactly 0. None of
these functions changes its input, and each works on all rows at once, whatever the mix.

    allowed ids -> stop token ban -> logit bias -> penalties        (these can change the argmax)
    -> filters.py -> temperature -> min_p -> top_k -> top_p         (these cannot)

Source: vllm/v1/sample/sampler.py#L20-L59 (Sampler) @ v0.22.1, which fixes this order.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEG_INF = -float("inf")


def apply_allowed_token_ids(logits: Tensor, allowed: Tensor) -> Tensor:
    """Rule out every token that is not allowed.

    Args:
        logits: [B, V].
        allowed: [B, V] bool; a row that is all True is off.
    """
    # TODO 06.3
    raise NotImplementedError(
        "TODO 06.3: write apply_allowed_token_ids in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-3)"
    )


def apply_min_tokens(
    logits: Tensor, rows: Tensor, token_ids: Tensor, until: Tensor, num_output_tokens: Tensor
) -> Tensor:
    """Rule out stop tokens in rows that are still too short.

    Entry i says: row rows[i] must not sample token_ids[i] while it has fewer than until[i]
    output tokens. So with until 2, the tokens of index 0 and 1 cannot be that token.

    Args:
        logits: [B, V].
        rows, token_ids, until: [N] int64.
        num_output_tokens: [B] int64.
    """
    # TODO 06.3
    raise NotImplementedError(
        "TODO 06.3: write apply_min_tokens in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-3)"
    )


def apply_logit_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> Tensor:
    """Add values[i] to logits[rows[i], token_ids[i]].

    Args:
        logits: [B, V].
        rows, token_ids: [N] int64, no pair twice. values: [N] float32.
    """
    # TODO 06.3
    raise NotImplementedError(
        "TODO 06.3: write apply_logit_bias in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-3)"
    )


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    token_ids: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Make tokens that were used before less likely (or more, with the opposite sign).

    Entry i says: row rows[i] has token_ids[i] in its prompt or its output. Its logit goes through

        1. repetition:  logit > 0:  logit / repetition      logit <= 0:  logit * repetition
        2. frequency:   logit - frequency * (times in the output)
        3. presence:    logit - presence  * (1 if in the output else 0)

    Both branches of step 1 lower the logit when repetition > 1. Steps 2 and 3 ignore the prompt.
    A pair may occur more than once and is still treated once. Only used tokens are touched, so
    the cost does not grow with the vocabulary.

    Args:
        logits: [B, V].
        rows, token_ids: [N] int64.
        output_counts: [B, V] float32, how often each token is in the output.
        repetition: [B]; 1 is off. presence, frequency: [B]; 0 is off.

    Source: vllm/model_executor/layers/utils.py#L51-L89 (apply_penalties) @ v0.22.1.
    """
    # TODO 06.3
    raise NotImplementedError(
        "TODO 06.3: write apply_penalties in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-3)"
    )


def apply_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """Divide each row by its temperature: below 1 sharpens the distribution, above 1 flattens it.

    A greedy row has temperature 0. It stays as it is, for its token is the argmax anyway.

    Args:
        logits: [B, V].
        temperature: [B], at least 0.
    """
    # TODO 06.1
    raise NotImplementedError(
        "TODO 06.1: write apply_temperature in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-1)"
    )


def apply_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Keep the tokens at least `min_p` times as probable as the most probable one.

    p_i >= min_p * p_max is the same as logit_i >= logit_max + log(min_p), so no softmax is
    needed. The most probable token always stays.

    Args:
        logits: [B, V].
        min_p: [B] in [0, 1]; 0 is off, because log(0) is -inf.
    """
    # TODO 06.1
    raise NotImplementedError(
        "TODO 06.1: write apply_min_p in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-1)"
    )


def apply_top_k(logits: Tensor, top_k: Tensor) -> Tensor:
    """Keep the `top_k` largest logits of each row.

    Every logit below the k-th largest goes. A tie with the k-th largest stays, so more than k
    tokens may be left; which ones does not depend on the order of a sort.

    Args:
        logits: [B, V].
        top_k: [B] int64; 0 is off, and so is a value of V or more.
    """
    # TODO 06.1
    raise NotImplementedError(
        "TODO 06.1: write apply_top_k in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-1)"
    )


def apply_top_p(logits: Tensor, top_p: Tensor) -> Tensor:
    """Keep the smallest set of most probable tokens whose probabilities sum to `top_p` or more.

        sorted probabilities  0.5   0.3   0.15   0.05
        running sum           0.5   0.8   0.95   1.0
        top_p = 0.6           keep  keep                the token that crosses 0.6 stays

    So at least one token stays. Tokens tied with the last one kept stay too.

    A full sort of the vocabulary is slow, and most sets are small. So look at the largest 128
    logits first, and sort everything only if some row's set is not complete.

    Args:
        logits: [B, V].
        top_p: [B] in (0, 1]; 1 is off.
    """
    # TODO 06.2
    raise NotImplementedError(
        "TODO 06.2: write apply_top_p in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-2)"
    )


def apply_top_k_top_p(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """Top-k first; top-p then counts only the probability that top-k has left.

    Args:
        logits: [B, V].
        top_k: [B] int64, or None when no row uses it. top_p: [B], or None.
    """
    # TODO 06.2
    raise NotImplementedError(
        "TODO 06.2: write apply_top_k_top_p in labs/06-sampling/logits_processors.py"
        " (phase 06, 02-mini-build.md#task-2)"
    )
