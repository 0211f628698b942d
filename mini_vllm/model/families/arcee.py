"""Arcee (AFM): Llama with an ungated MLP of squared ReLUs.

Source: vllm/model_executor/models/arcee.py#L52-L97 (ArceeMLP) @ v0.22.1.
"""

from mini_vllm.model.families.table import ACTIVATION, Config, Family, Parts


def parts(config: Config) -> Parts:
    return Parts(feed_forwards=["mlp"] * config["num_hidden_layers"])


ARCEE = Family(
    defaults={"hidden_act": "relu2", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    rules={"hidden_act": ACTIVATION},
    parts=parts,
)
