"""Seed-OSS: Llama, with biases on q, k and v and a free head size.

Source: vllm/model_executor/models/seed_oss.py#L110-L188 (SeedOssAttention) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN
from mini_vllm.model.families.table import Config, Family


def biases(config: Config) -> dict[str, Any]:
    return {"qkv_bias": config["attention_bias"], "o_bias": config["attention_out_bias"]}


SEED_OSS = Family(
    defaults={
        "attention_bias": True,
        "attention_out_bias": False,
        "head_dim": 128,
        "max_position_embeddings": 524288,
        "num_key_value_heads": 8,
    },
    rules={"attention_out_bias": BOOLEAN},
    args=biases,
)
