"""Phi-1, 1.5 and 2: attention and MLP read the same LayerNorm, and everything has a bias.

Source: vllm/model_executor/models/phi.py#L173-L203 (PhiLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import off
from mini_vllm.model.families.table import ACTIVATION, ONE_NORM, Config, Family, Parts


def biases(config: Config) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True)


def parts(config: Config) -> Parts:
    return Parts(
        norm="layer",
        norms=ONE_NORM,
        is_parallel=True,
        feed_forwards=["mlp"] * config["num_hidden_layers"],
        has_head_bias=True,
    )


PHI = Family(
    defaults={
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": False,
    },
    spelled={"layer_norm_eps": "rms_norm_eps"},
    rules={"hidden_act": ACTIVATION, "qk_layernorm": off("norms of queries and keys")},
    args=biases,
    parts=parts,
    names={
        ".self_attn.o_proj.": ".self_attn.dense.",
        ".mlp.up_proj.": ".mlp.fc1.",
        ".mlp.down_proj.": ".mlp.fc2.",
        "model.norm.": "model.final_layernorm.",
    },
    supports=frozenset({"pp"}),
)
