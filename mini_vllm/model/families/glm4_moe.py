"""GLM-4.5: GLM-4 with DeepSeek V3's router, and a norm over queries and keys in its large form.

Source: vllm/model_executor/models/glm4_moe.py#L316-L387 (Glm4MoeDecoderLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN, integer, number
from mini_vllm.model.families.experts import (
    COUNT,
    SIZE,
    deepseek_experts,
    feed_forwards,
    first_dense,
    layers_behind,
)
from mini_vllm.model.families.table import Config, Family, Parts


def parts(config: Config) -> Parts:
    return Parts(
        feed_forwards=feed_forwards(config, first_dense(config)),
        qk_norm="head" if config["use_qk_norm"] else None,
    )


def args(config: Config) -> dict[str, Any]:
    return {
        "moe": deepseek_experts(config),
        "qkv_bias": config["attention_bias"],
        "o_bias": False,
        "ignored_tensors": layers_behind(config),
    }


GLM4_MOE = Family(
    defaults={
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "use_qk_norm": False,
    },
    rules={
        "first_k_dense_replace": integer(0, 1024),
        "n_group": SIZE,
        "n_routed_experts": COUNT,
        "n_shared_experts": integer(0, 1024),
        "num_experts_per_tok": COUNT,
        "routed_scaling_factor": number(1e-9, 1e9),
        "topk_group": SIZE,
        "use_qk_norm": BOOLEAN,
    },
    args=args,
    parts=parts,
    can_be_recorded=False,
)
