"""The config entries of a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mini_vllm.model.families.layer_kinds import dense_layers

Routing = Literal["fused_topk", "grouped_topk", "topk_softmax", "topk_sigmoid"]
"""A function of `routers.py`."""


@dataclass(frozen=True)
class MoEArgs:
    """A layer's experts, under the names of config files.

    Args:
        num_experts: that tokens are routed to.
        num_experts_per_tok: experts that each token uses, k.
        moe_intermediate_size: features between the two products of one expert.
        routing: the router.
        norm_topk_prob: the k weights of a token are divided by their sum.
        scoring_func: turns logits into scores, for "grouped_topk".
        n_group, topk_group: experts are in `n_group` groups, and a token uses only experts of its
            best `topk_group` groups.
        routed_scaling_factor: factor of the weights, for "grouped_topk".
        has_correction_bias: `e_score_correction_bias` [E] is added to scores when experts are
            chosen, and not to their weights.
        router_bias: the router's product has a bias.
        expert_bias: the experts' products have a bias.
        hidden_act: "silu", "gelu_pytorch_tanh" or "swigluoai".
        swiglu_limit: where "swigluoai" clamps.
        shared_expert_intermediate_size: of the shared expert, which all tokens use; 0: none.
        shared_expert_gate: the shared expert's output is multiplied by sigmoid(x . w).
        is_transposed: files have stacked experts as [E, in, out], not as [E, out, in].
        is_interleaved: in a stacked `gate_up_proj`, features of gate and up alternate.
        dense_layers: layers that have a plain MLP instead.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routing: Routing = "fused_topk"
    norm_topk_prob: bool = False
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    has_correction_bias: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    hidden_act: str = "silu"
    swiglu_limit: float = 7.0
    shared_expert_intermediate_size: int = 0
    shared_expert_gate: bool = False
    is_transposed: bool = False
    is_interleaved: bool = False
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that do not go together, naming them."""
        experts, k, groups = self.num_experts, self.num_experts_per_tok, self.n_group
        if k > experts:
            raise ValueError(
                f"num_experts_per_tok is {k} and the number of experts {experts}; a token cannot "
                "use more experts than there are"
            )
        if experts % groups:
            raise ValueError(
                f"n_group is {groups} and the number of experts {experts}; groups are equally "
                "large, so the second must be a multiple of the first"
            )
        if self.topk_group > groups:
            raise ValueError(
                f"topk_group is {self.topk_group} and n_group {groups}; a token cannot use more "
                "groups than there are"
            )
        if k > (allowed := self.topk_group * (experts // groups)):
            raise ValueError(
                f"num_experts_per_tok is {k}; topk_group {self.topk_group} of n_group {groups} "
                f"leaves a token {allowed} experts; it must not use more"
            )


def moe_args(config: Mapping[str, Any]) -> MoEArgs | None:
    """The experts of a config that includes its family's defaults; None for a dense model."""
    if not config.get("num_experts"):
        return None
    return MoEArgs(
        num_experts=config["num_experts"],
        num_experts_per_tok=config["num_experts_per_tok"],
        moe_intermediate_size=config["moe_intermediate_size"],
        norm_topk_prob=config.get("norm_topk_prob", False),
        hidden_act=config.get("hidden_act", "silu"),
        dense_layers=dense_layers(config),
    )
