"""Hunyuan (dense): Llama, with a norm of each head's query and key after the rotation.

Source: vllm/model_executor/models/hunyuan_v1.py#L147-L251 (HunYuanAttention) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN, integer, is_integer, is_number, off
from mini_vllm.model.families.table import Config, Family, Parts


def rewrite(config: dict[str, Any]) -> dict[str, Any]:
    """Rewrite the "dynamic" rotation with an `alpha` as a plain one with a larger `rope_theta`."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key)
    if not isinstance(rope, dict) or not isinstance(alpha := rope.get("alpha"), int | float):
        return config
    if rope.get("rope_type", rope.get("type")) != "dynamic" or alpha <= 0:
        return config
    numbers: list[Any] = [config.get(name) for name in ("hidden_size", "num_attention_heads")]
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    if not all(is_integer(n) and n > 0 for n in numbers) or not is_number(theta):
        return config  # the rules refuse it
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    stretched = theta * alpha ** (size / (size - 2))
    return {**config, key: {"rope_type": "default", "rope_theta": stretched}}


def parts(config: Config) -> Parts:
    return Parts(qk_norm="head" if config["use_qk_norm"] else None, norms_after_rotation=True)


HUNYUAN = Family(
    defaults={"rms_norm_eps": 1e-5, "use_qk_norm": True},
    rules={
        "num_experts": integer(0, 1),  # files of dense models say 1
        "use_cla": off("keys and values that layers share"),
        "use_qk_norm": BOOLEAN,
    },
    rewrite=rewrite,
    parts=parts,
    names={".q_norm.": ".query_layernorm.", ".k_norm.": ".key_layernorm."},
)
