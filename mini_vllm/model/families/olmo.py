"""OLMo 2 and 3: norms behind attention and MLP, and one norm over all heads of q and of k.

    Llama    x + attention(norm(x))      the input is normed
    OLMo     x + norm(attention(x))      the output is normed

OLMo 3 has a window in three layers of four; only the other layers scale their rotation.
Source: vllm/model_executor/models/olmo2.py#L234-L278 (Olmo2DecoderLayer) @ v0.22.1.
Source: vllm/model_executor/models/olmo2.py#L68-L186 (Olmo2Attention) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.families.table import POST_NORM, Config, Family, Parts, windows_by_layer

NO_TP = frozenset({"pp", "lora", "quantization", "compile"})
"""A norm over all heads needs all of them on one rank."""


def parts(config: Config) -> Parts:
    return Parts(norms=POST_NORM, qk_norm="all")


def plain_angles(config: Config) -> dict[str, Any]:
    """The unscaled rotation of layers with a window, if the file scales it without a layer type."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if "full_attention" in given or given.get("rope_type", given.get("type")) in (None, "default"):
        return {}
    theta = given.get("rope_theta", config.get("rope_theta", 10000.0))
    return {"local_rope_parameters": {"rope_type": "default", "rope_theta": theta}}


OLMO2 = Family(defaults={"rms_norm_eps": 1e-5}, parts=parts, supports=NO_TP)
OLMO3 = Family(
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096},
    windows=windows_by_layer(every=4),
    has_ropes_by_layer=True,
    args=plain_angles,
    parts=parts,
    supports=NO_TP,
)
