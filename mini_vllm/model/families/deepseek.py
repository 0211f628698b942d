"""DeepSeek V2 and V3: latent attention, many small experts in groups, and shared experts.

    attention   keys and values are computed from one latent vector per token; see `mixers/mla.py`
    V2          scores by softmax; the score of a group is that of its best expert
    V3          scores by sigmoid; a bias is added to choose experts, but not to their weights; the
                score of a group is the sum of its two best experts

The first `first_k_dense_replace` layers have an MLP.
Source: vllm/model_executor/models/deepseek_v2.py#L1070-L1201 (DeepseekV2DecoderLayer) @ v0.22.1.
"""

import math
from dataclasses import replace
from typing import Any

from mini_vllm.model.config_rules import BOOLEAN, integer, number, one_of
from mini_vllm.model.families.experts import (
    COUNT,
    SIZE,
    deepseek_experts,
    feed_forwards,
    layers_behind,
)
from mini_vllm.model.families.layer_kinds import dense_layers
from mini_vllm.model.families.table import Config, Family, Parts
from mini_vllm.model.mixers.args import LatentArgs


def parts(config: Config) -> Parts:
    num_layers = config["num_hidden_layers"]
    return Parts(
        mixers=["latent"] * num_layers,
        feed_forwards=feed_forwards(config, dense_layers(config)),
        turns_neighbours=config.get("rope_interleave") is not False,
        attention_scale=scale(config),
    )


def scale(config: Config) -> float:
    """(P + R) ** -0.5, and more if YaRN scales the angles, because softmax is over longer texts."""
    size = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    factor, weight = rope.get("factor") or 1.0, rope.get("mscale_all_dim") or 0.0
    is_plain = rope.get("rope_type", rope.get("type", "default")) == "default"
    sharper = 1.0 if is_plain or factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
    return float(size**-0.5 * sharper**2)


def args(config: Config) -> dict[str, Any]:
    """Raises ValueError for experts and groups that do not go together."""
    has_groups = config["topk_method"] != "greedy"
    moe = deepseek_experts(
        config,
        scoring_func=config["scoring_func"],
        has_correction_bias=config["topk_method"] == "noaux_tc",
        dense_layers=dense_layers(config),
        **{} if has_groups else {"n_group": 1, "topk_group": 1},
    )
    latent = LatentArgs(
        kv_lora_rank=config["kv_lora_rank"],
        q_lora_rank=config["q_lora_rank"],
        qk_nope_head_dim=config["qk_nope_head_dim"],
        qk_rope_head_dim=config["qk_rope_head_dim"],
        v_head_dim=config["v_head_dim"],
    )
    return {"moe": moe, "latent": latent, "ignored_tensors": layers_behind(config)}


HEAD_SIZE = integer(2, 2**16)
DEEPSEEK_V2 = Family(
    defaults={
        "first_k_dense_replace": 0,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 1407,
        "moe_layer_freq": 1,
        "n_group": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "topk_group": None,
        "topk_method": "greedy",
        "v_head_dim": 128,
    },
    spelled={"qk_rope_head_dim": "head_dim"},  # the rotated part of a head
    rules={
        "first_k_dense_replace": integer(0, 1024).or_null(),
        "kv_lora_rank": SIZE,
        "moe_layer_freq": integer(1, 1024),
        "n_group": SIZE.or_null(),
        "n_routed_experts": COUNT,
        "n_shared_experts": integer(0, 1024).or_null(),
        "norm_topk_prob": BOOLEAN.or_null(),
        "num_experts_per_tok": COUNT,
        "q_lora_rank": SIZE.or_null(),
        "qk_nope_head_dim": HEAD_SIZE,
        "qk_rope_head_dim": HEAD_SIZE,
        "rope_interleave": BOOLEAN.or_null(),
        "routed_scaling_factor": number(1e-9, 1e9),
        "scoring_func": one_of("softmax", "sigmoid"),
        "topk_group": SIZE.or_null(),
        "topk_method": one_of("greedy", "group_limited_greedy", "noaux_tc"),
        "v_head_dim": HEAD_SIZE,
    },
    args=args,
    parts=parts,
    supports=frozenset({"latents", "tp", "pp"}),
    can_be_recorded=False,
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    defaults={
        **DEEPSEEK_V2.defaults,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 4,
        "topk_method": "noaux_tc",
    },
)
