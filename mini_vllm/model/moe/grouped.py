"""All pairs of a token and an expert, sorted by expert, so that each expert multiplies once.

    pairs    T tokens x k experts     t0:e2  t0:e0  t1:e2  t1:e5  t2:e0  t2:e2
    sort     by expert, stable        e0: t0 t2     e2: t0 t1 t2     e5: t1
    product  one for each expert that has rows
    add      each result, times its weight, to its token

An expert without rows costs nothing: a decode step reads only the weights of the experts that its
tokens chose. This is why a model of 30 billion weights can be as fast as one of three.

Source: vllm/model_executor/layers/fused_moe/fused_moe.py#L1664-L1869 (fused_experts_impl)
@ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def sort_by_expert(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """The T * k pairs of token and expert in the experts' order: `ids` is `[T, k]`.

    Returns:
        pairs `[T * k]`: numbers of pairs, of which pair p is of token p // k; those of expert 0
        first, and of one expert in the tokens' order. And counts `[E]`: the pairs of each expert,
        0 for one that no token chose. Pairs are sorted and not compared with every expert.
    """
    flat = ids.flatten()
    return flat.argsort(stable=True), flat.bincount(minlength=num_experts)


def product_by_expert(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """x @ weight[e]^T for the rows of each expert e: `[P, in]`, `[E, out, in]` -> `[P, out]`.

    The first `counts[0]` rows are of expert 0, the next `counts[1]` of expert 1, and so on. There
    is one product for each expert that has rows, and none for the others; without any rows the
    result is `[0, out]`. It has the dtype of `x`, which is that of `weight`.
    """
    rows = zip(x.split(counts.tolist()), weight, strict=True)
    products = [F.linear(own, matrix) for own, matrix in rows if len(own)]
    return torch.cat(products) if products else x.new_empty(0, weight.shape[1])


def mix_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    num_experts: int,
    run: Callable[[Tensor, Tensor], Tensor],
    scales_input: bool = False,
) -> Tensor:
    """The weighted sum `[T, H]` of each token's experts, in the dtype of `x` `[T, H]`.

    Args:
        weights, ids: `[T, k]`: how much each of a token's k experts counts, and which it is. The
            weights are float32, and are rounded to the dtype of `x` before anything is multiplied.
        run: `(rows [T * k, H], counts [E]) -> results [T * k, H]`: all experts, each on its own
            rows, which follow one another in the experts' order. It is called once.
        scales_input: a pair's weight multiplies its row before `run`, and not its result.
    """
    pairs, counts = sort_by_expert(ids, num_experts)
    tokens = pairs // ids.shape[1]
    rows, scale = x[tokens], weights.flatten()[pairs, None].to(x.dtype)
    results = run(rows * scale, counts) if scales_input else run(rows, counts) * scale
    return torch.zeros_like(x).index_add_(0, tokens, results)
