"""Helium: Llama, with neighbouring features rotated as pairs.

Source: transformers, models/helium/modeling_helium.py (apply_rotary_pos_emb).
"""

from typing import Any

from mini_vllm.model.families.table import Config, Family, Parts


def biases(config: Config) -> dict[str, Any]:
    return {"qkv_bias": config.get("attention_bias", False), "o_bias": False}


def parts(config: Config) -> Parts:
    return Parts(turns_neighbours=True)


HELIUM = Family(
    defaults={
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100000.0,
    },
    args=biases,
    parts=parts,
)
