"""StarCoder2: LayerNorms with biases, biases everywhere, and an MLP without a gate.

Source: vllm/model_executor/models/starcoder2.py#L173-L217 (Starcoder2DecoderLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN
from mini_vllm.model.families.table import ACTIVATION, Config, Family, Parts, window_everywhere


def biases(config: Config) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), config["use_bias"])


def parts(config: Config) -> Parts:
    return Parts(norm="layer", feed_forwards=["mlp"] * config["num_hidden_layers"])


STARCODER2 = Family(
    defaults={
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "num_key_value_heads": 2,
        "norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "use_bias": True,
    },
    spelled={"norm_epsilon": "rms_norm_eps"},
    rules={"use_bias": BOOLEAN, "hidden_act": ACTIVATION},
    windows=window_everywhere,
    args=biases,
    parts=parts,
    names={".mlp.up_proj.": ".mlp.c_fc.", ".mlp.down_proj.": ".mlp.c_proj."},
    supports=frozenset({"tp", "pp"}),
)
