"""OLMoE: Llama with experts, and one norm over all heads of q and of k.

Source: vllm/model_executor/models/olmoe.py#L222-L267 (OlmoeDecoderLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import NOTHING
from mini_vllm.model.families.experts import COUNT, experts_of, feed_forwards
from mini_vllm.model.families.table import Config, Family, Parts


def parts(config: Config) -> Parts:
    return Parts(feed_forwards=feed_forwards(config), qk_norm="all")


def experts(config: Config) -> dict[str, Any]:
    return {"moe": experts_of(config, moe_intermediate_size=config["intermediate_size"])}


OLMOE = Family(
    defaults={
        "max_position_embeddings": 4096,
        "norm_topk_prob": False,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-5,
    },
    spelled={"intermediate_size": "moe_intermediate_size"},
    rules={"clip_qkv": NOTHING, "num_experts": COUNT, "num_experts_per_tok": COUNT},
    args=experts,
    parts=parts,
    supports=frozenset({"pp", "lora", "quantization"}),  # a norm over all heads needs one rank
    can_be_recorded=False,
)
