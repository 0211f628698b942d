"""GLM-4 (dense): half of each head is rotated, as pairs of neighbours; biases on q, k and v.

GLM-4-0414 (`Glm4ForCausalLM`) has two more norms per layer, after attention and after the MLP.
Source: vllm/model_executor/models/glm4.py#L150-L218 (Glm4DecoderLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.families.table import PRE_NORM, Config, Family, Norms, Parts

DEFAULTS = {
    "attention_bias": True,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-7,
}
STACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_up_proj"]}
FOUR_NORMS = Norms(
    "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
)


def biases(config: Config) -> dict[str, Any]:
    return {"qkv_bias": config["attention_bias"], "o_bias": False}


def glm_parts(config: Config) -> Parts:
    return Parts(norms=PRE_NORM, turns_neighbours=True)


def glm4_parts(config: Config) -> Parts:
    return Parts(norms=FOUR_NORMS, turns_neighbours=True)


NO_SHARDS = frozenset({"pp", "quantization"})
"""Gate and up are one tensor in the file, which neither ranks nor adapters can split."""
GLM = Family(defaults=DEFAULTS, args=biases, parts=glm_parts, stacked=STACKED, supports=NO_SHARDS)
GLM4 = Family(defaults=DEFAULTS, args=biases, parts=glm4_parts, stacked=STACKED, supports=NO_SHARDS)
