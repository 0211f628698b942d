"""StableLM 2: LayerNorms with biases, and a quarter of each head is rotated.

Source: vllm/model_executor/models/stablelm.py#L177-L214 (StablelmDecoderLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN, off
from mini_vllm.model.families.table import ONE_NORM, PRE_NORM, Config, Family, Parts


def biases(config: Config) -> dict[str, Any]:
    return {"qkv_bias": config["use_qkv_bias"], "o_bias": False}


def parts(config: Config) -> Parts:
    is_parallel = config["use_parallel_residual"]
    norms = ONE_NORM if is_parallel else PRE_NORM
    return Parts(norm="layer", norms=norms, is_parallel=is_parallel)


STABLELM = Family(
    defaults={
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "partial_rotary_factor": 0.25,
        "qk_layernorm": False,
        "use_parallel_residual": False,
        "use_qkv_bias": False,
    },
    spelled={"layer_norm_eps": "rms_norm_eps"},
    rules={
        "qk_layernorm": off("a norm for each head of its own"),
        "use_parallel_residual": BOOLEAN,
        "use_qkv_bias": BOOLEAN,
    },
    args=biases,
    parts=parts,
)
