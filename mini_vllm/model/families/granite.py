"""Granite 3 (dense): Llama with four scale factors.

    embeddings * embedding_multiplier, scores * attention_multiplier instead of 1 / sqrt(D)
    stream + branch * residual_multiplier, logits / logits_scaling

Source: vllm/model_executor/models/granite.py#L189-L251 (GraniteDecoderLayer) @ v0.22.1.
"""

from mini_vllm.model.config_rules import number
from mini_vllm.model.families.table import Config, Family, Parts

SCALE = number(1e-9, 1e9)


def parts(config: Config) -> Parts:
    return Parts(
        attention_scale=config["attention_multiplier"],
        embedding_scale=config["embedding_multiplier"],
        residual_scale=config["residual_multiplier"],
        logit_scale=1 / config["logits_scaling"],
    )


GRANITE = Family(
    defaults={
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    rules={
        "attention_multiplier": SCALE,
        "embedding_multiplier": SCALE,
        "residual_multiplier": SCALE,
        "logits_scaling": SCALE,
    },
    parts=parts,
)
