"""Functions that the tables of families with experts share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from mini_vllm.model.config_rules import integer
from mini_vllm.model.families.layer_kinds import dense_layers
from mini_vllm.model.families.table import Config
from mini_vllm.model.moe.args import MoEArgs

COUNT = integer(1, 2**24, required=True)
"""A number of experts, at least one."""
SIZE = integer(1, 2**24)


def feed_forwards(config: Config, dense: Collection[int] = ()) -> Sequence[str]:
    """Experts in all layers except the `dense` ones, which have an MLP."""
    layers = range(config["num_hidden_layers"])
    return ["gated_mlp" if index in dense else "moe" for index in layers]


def experts_of(config: Config, **own: Any) -> MoEArgs:
    """Experts whose config entries have the names of `MoEArgs`; `own` are the fields that a family
    names differently or has in addition."""
    usual = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
    given = {name: config[name] for name in usual if name not in own}
    return MoEArgs(**given | {"hidden_act": config.get("hidden_act", "silu")} | own)


def qwen_experts(config: Config) -> MoEArgs:
    """Qwen's experts: with a shared expert that has a gate."""
    return experts_of(
        config,
        shared_expert_intermediate_size=config["shared_expert_intermediate_size"],
        shared_expert_gate=True,
        dense_layers=dense_layers(config),
    )


def deepseek_experts(config: Config, **own: Any) -> MoEArgs:
    """DeepSeek V3's experts: in groups, chosen by sigmoid and a bias, with shared experts; `own` as
    for :func:`experts_of`."""
    num_shared = config["n_shared_experts"] or 0
    usual = {
        "num_experts": config["n_routed_experts"],
        "routing": "grouped_topk",
        "norm_topk_prob": bool(config["norm_topk_prob"]),
        "scoring_func": "sigmoid",
        "n_group": config["n_group"] or 1,
        "topk_group": config["topk_group"] or 1,
        "routed_scaling_factor": config["routed_scaling_factor"],
        "has_correction_bias": True,
        "shared_expert_intermediate_size": config["moe_intermediate_size"] * num_shared,
        "dense_layers": tuple(first_dense(config)),
    }
    return experts_of(config, **usual | own)


def first_dense(config: Config) -> range:
    """The first layers, which have an MLP, by `first_k_dense_replace`."""
    return range(min(config["first_k_dense_replace"] or 0, config["num_hidden_layers"]))


def layers_behind(config: Config) -> tuple[str, ...]:
    """Names of the multi-token-prediction layers (MTP), which follow the last decoder layer."""
    last, count = config["num_hidden_layers"], config.get("num_nextn_predict_layers") or 0
    count = max(count, config.get("num_mtp_layers") or 0)
    return tuple(f"model.layers.{last + index}." for index in range(count))
