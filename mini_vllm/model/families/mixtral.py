"""Mixtral: Mistral with experts in place of every MLP. `intermediate_size` is the expert's size.

Source: vllm/model_executor/models/mixtral.py#L238-L293 (MixtralDecoderLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.families.experts import COUNT, experts_of, feed_forwards
from mini_vllm.model.families.table import Config, Family, Parts, window_everywhere


def parts(config: Config) -> Parts:
    return Parts(feed_forwards=feed_forwards(config))


def experts(config: Config) -> dict[str, Any]:
    moe = experts_of(
        config,
        num_experts=config["num_local_experts"],
        moe_intermediate_size=config["intermediate_size"],
        norm_topk_prob=True,
    )
    return {"moe": moe}


MIXTRAL = Family(
    defaults={
        "max_position_embeddings": 131072,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
    },
    rules={"num_local_experts": COUNT, "num_experts_per_tok": COUNT},
    windows=window_everywhere,
    args=experts,
    parts=parts,
    can_be_recorded=False,
)
