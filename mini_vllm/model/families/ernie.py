"""ERNIE 4.5 (dense): Llama, with neighbouring features rotated as pairs.

Source: vllm/model_executor/models/ernie45.py#L42-L53 (Ernie4_5ForCausalLM) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN
from mini_vllm.model.families.table import Config, Family, Parts


def biases(config: Config) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), bool(config["use_bias"]))


def parts(config: Config) -> Parts:
    return Parts(turns_neighbours=True)


ERNIE45 = Family(
    defaults={
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "use_bias": False,
    },
    rules={"use_bias": BOOLEAN.or_null()},
    args=biases,
    parts=parts,
)
