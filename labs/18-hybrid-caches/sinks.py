"""Attention sinks: a head may attend to nothing.

A learned logit of each head is part of the softmax and has no value. So a head whose scores are all
low has a small output, instead of an average of values that do not fit. The softmax over the keys
alone has the denominator e^lse (lse: logarithm of the sum of exponentials of the scores); with the
sink it is e^lse + e^sink, and the ratio of both is sigmoid(lse - sink). So sinks can be applied
after any attention that also returns lse.

If the context was split, lse is that of all splits together: the sink counts once.
Source: vllm/v1/attention/ops/triton_attention_helpers.py#L109-L138 (init_softmax_M) @ v0.22.1.
"""

from __future__ import annotations

from torch import Tensor


def add_sink(out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """Attention's `out` `[T, H, D]` as if a logit `sink` `[H]` had been in its softmax.

    `lse` `[T, H]` float32 is the logarithm of the sum of exponentials of each row's scores; it may
    be of any size. A sink of -inf changes nothing. What `out` is multiplied by is computed in
    float32, and rounded once. The result has the dtype of `out`. No argument is changed.
    """
    # TODO 18.12
    raise NotImplementedError(
        "TODO 18.12: write add_sink in labs/18-hybrid-caches/sinks.py"
        " (phase 18, 02-mini-build.md#task-12)"
    )


def merge_splits(partial: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """One attention from those over parts of the context: out `[T, H, D]` and lse `[T, H]`.

    `partial` `[T, H, S, D]` and `lse` `[T, H, S]` are of S parts, the latter of any size; an empty
    part has lse -inf and counts for nothing, and not all are empty. `out` has the dtype of
    `partial`, and no step has a narrower one than the arguments. No argument is changed. Sinks come
    behind this, see above.
    Source: vllm/v1/attention/ops/merge_attn_states.py#L9-L20 (merge_attn_states) @ v0.22.1.
    """
    # TODO 18.12
    raise NotImplementedError(
        "TODO 18.12: write merge_splits in labs/18-hybrid-caches/sinks.py"
        " (phase 18, 02-mini-build.md#task-12)"
    )
