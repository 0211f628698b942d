"""gpt-oss: sinks, biases, windows in every second layer, and experts with a clamped activation.

    softmax    includes a learned logit per head (a sink), so a head may attend to nothing
    experts    the best k logits, softmax over these; (up + 1) * gate * sigmoid(1.702 * gate)
    file       experts stacked, gate and up interleaved; weights in mxfp4

Source: vllm/model_executor/models/gpt_oss.py#L223-L263 (TransformerBlock) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import Rule, number
from mini_vllm.model.families.experts import COUNT, feed_forwards
from mini_vllm.model.families.table import Config, Family, Parts, windows_by_layer
from mini_vllm.model.moe.args import MoEArgs


def parts(config: Config) -> Parts:
    return Parts(feed_forwards=feed_forwards(config), has_sinks=True)


def experts(config: Config) -> dict[str, Any]:
    moe = MoEArgs(
        num_experts=config["num_local_experts"],
        num_experts_per_tok=config["num_experts_per_tok"],
        moe_intermediate_size=config["intermediate_size"],
        routing="topk_softmax",
        router_bias=True,
        expert_bias=True,
        hidden_act="swigluoai",
        swiglu_limit=config["swiglu_limit"],
        is_transposed=True,
        is_interleaved=True,
    )
    return {"moe": moe}


GPT_OSS = Family(
    defaults={
        "attention_bias": True,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "rope_theta": 150000.0,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    rules={
        "num_experts_per_tok": COUNT,
        "num_local_experts": COUNT,
        "swiglu_alpha": Rule(lambda value: value == 1.702, "only 1.702 is supported"),
        "swiglu_limit": number(1e-6, 1e9),
    },
    windows=windows_by_layer(every=2),
    args=experts,
    parts=parts,
    supports=frozenset({"pp", "lora", "quantization"}),
    can_be_recorded=False,
)
