"""Which experts a token uses, and their weights: logits `[T, E]` -> weights, ids `[T, k]`.

    fused_topk     softmax over all experts, the best k                      Mixtral, Qwen
    grouped_topk   the best groups first, then the best k in them            DeepSeek V2 and V3
    topk_softmax   the best k, softmax over these                            gpt-oss
    topk_sigmoid   the best k, sigmoid of each; scales the expert's input    Llama 4

All tokens are routed together, without a loop over tokens or experts. A token's k experts may stand
in any order. Weights are float32, whatever the logits are. With two scores nearly equal, bfloat16
logits choose other experts than float32 ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mini_vllm.model.moe.args import MoEArgs

Route = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(logits `[T, E]`, correction bias `[E]` or None) -> weights `[T, k]` float32 and ids `[T, k]`."""


def fused_topk(logits: Tensor, topk: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """The `topk` most probable experts of each token, and their probabilities.

    Probabilities are over all experts; `renormalize` divides a token's k by their sum.
    Source: vllm/model_executor/layers/fused_moe/router/fused_topk_router.py#L69-L120 (fused_topk)
    @ v0.22.1.
    """
    # TODO 17.4
    raise NotImplementedError(
        "TODO 17.4: write fused_topk in labs/17-models-and-experts/routers.py"
        " (phase 17, 02-mini-build.md#task-4)"
    )


def grouped_topk(
    logits: Tensor,
    topk: int,
    renormalize: bool,
    num_expert_group: int = 1,
    topk_group: int = 1,
    scoring_func: str = "softmax",
    routed_scaling_factor: float = 1.0,
    e_score_correction_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The `topk` best experts of a token's best `topk_group` groups.

    Neighbouring experts make up a group, so a token's experts lie on few machines. Without a
    correction bias a group is as good as its best expert (DeepSeek V2); with one, as the sum of its
    two best (V3). The bias `[E]` counts where experts are chosen, and is not in their weights:
    training moves it until all experts have equally much to do, without changing what they say.

    Source: vllm/model_executor/layers/fused_moe/router/grouped_topk_router.py#L75-L162
    (grouped_topk) @ v0.22.1.
    """
    # TODO 17.5
    raise NotImplementedError(
        "TODO 17.5: write grouped_topk in labs/17-models-and-experts/routers.py"
        " (phase 17, 02-mini-build.md#task-5)"
    )


def in_best_groups(scores: Tensor, num_groups: int, best: int, judged_by: int) -> Tensor:
    """Whether each expert is in one of the `best` groups, by the sum of a group's `judged_by` best
    scores: bool `[T, E]`."""
    # TODO 17.5
    raise NotImplementedError(
        "TODO 17.5: write in_best_groups in labs/17-models-and-experts/routers.py"
        " (phase 17, 02-mini-build.md#task-5)"
    )


def topk_softmax(logits: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """The `topk` largest logits of each token, and the softmax over these alone.

    That of `fused_topk`, renormalised, is the same number; what is rounded is not.
    Source: vllm/model_executor/models/gpt_oss.py#L166-L206 (MLPBlock) @ v0.22.1.
    """
    # TODO 17.4
    raise NotImplementedError(
        "TODO 17.4: write topk_softmax in labs/17-models-and-experts/routers.py"
        " (phase 17, 02-mini-build.md#task-4)"
    )


def topk_sigmoid(logits: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """The `topk` largest logits of each token, and the sigmoid of each.

    Llama 4 multiplies an expert's input by it, not its result: the expert's activation is not
    linear, so that is another number.
    Source: vllm/model_executor/models/llama4.py#L73-L83 (Llama4MoE.custom_routing_function)
    @ v0.22.1.
    """
    values, ids = logits.topk(topk, -1)
    return values.float().sigmoid(), ids


def make_router(args: MoEArgs) -> Route:
    """The router of a config."""
    k, renormalize = args.num_experts_per_tok, args.norm_topk_prob
    if args.routing == "grouped_topk":
        grouped = partial(
            grouped_topk,
            topk=k,
            renormalize=renormalize,
            num_expert_group=args.n_group,
            topk_group=args.topk_group,
            scoring_func=args.scoring_func,
            routed_scaling_factor=args.routed_scaling_factor,
        )
        return lambda logits, bias: grouped(logits, e_score_correction_bias=bias)
    if args.routing == "fused_topk":
        return lambda logits, bias: fused_topk(logits, k, renormalize)
    over_k = {"topk_softmax": topk_softmax, "topk_sigmoid": topk_sigmoid}[args.routing]
    return lambda logits, bias: over_k(logits, k)
