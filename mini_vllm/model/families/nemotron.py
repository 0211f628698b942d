"""Nemotron (Minitron): LayerNorms that multiply by 1 + weight, and an MLP of squared ReLUs.

Source: vllm/model_executor/models/nemotron.py#L228-L292 (NemotronDecoderLayer) @ v0.22.1.
"""

from mini_vllm.model.families.table import ACTIVATION, Config, Family, Parts


def parts(config: Config) -> Parts:
    return Parts(norm="layer_1p", feed_forwards=["mlp"] * config["num_hidden_layers"])


NEMOTRON = Family(
    defaults={
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    },
    spelled={"norm_eps": "rms_norm_eps"},
    rules={"hidden_act": ACTIVATION},
    parts=parts,
)
