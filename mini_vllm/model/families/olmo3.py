"""OLMo 3: OLMo 2, with a window in three layers of four; only the others stretch their angles.

Source: vllm/model_executor/models/olmo2.py#L68-L186 (Olmo2Attention) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.families.table import POST_NORM, Config, Family, Parts, windows_by_layer


def parts(config: Config) -> Parts:
    return Parts(norms=POST_NORM, qk_norm="all")


def plain_angles(config: Config) -> dict[str, Any]:
    """Of layers with a window, where the file says how to stretch without a word on layers."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if "full_attention" in given or given.get("rope_type", given.get("type")) in (None, "default"):
        return {}
    theta = given.get("rope_theta", config.get("rope_theta", 10000.0))
    return {"local_rope_parameters": {"rope_type": "default", "rope_theta": theta}}


OLMO3 = Family(
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096},
    windows=windows_by_layer(every=4),
    has_ropes_by_layer=True,
    args=plain_angles,
    parts=parts,
    supports=frozenset({"pp", "lora", "quantization"}),  # a norm over all heads needs them all
)
