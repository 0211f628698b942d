"""Command R: attention and MLP read the same norm, and both are added to the stream.

    x + attention(norm(x)) + mlp(norm(x))      norms subtract the mean, and have no bias
    neighbouring features are rotated as pairs; logits are multiplied by logit_scale

Command R7B and later (Cohere2) have a window in three layers of four, and rotate only in those.
Source: vllm/model_executor/models/commandr.py#L236-L276 (CohereDecoderLayer) @ v0.22.1.
"""

from mini_vllm.model.config_rules import BOOLEAN, number
from mini_vllm.model.families.table import ONE_NORM, Config, Family, Parts, windows_by_pattern

DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "use_qk_norm": False,
}
RULES = {"logit_scale": number(1e-9, 1e9), "use_qk_norm": BOOLEAN.or_null()}
windows = windows_by_pattern(every=4)


def cohere_parts(config: Config) -> Parts:
    return Parts(
        norm="layer_no_bias",
        norms=ONE_NORM,
        is_parallel=True,
        qk_norm="head_rows" if config["use_qk_norm"] else None,
        turns_neighbours=True,
        logit_scale=config["logit_scale"],
    )


def cohere2_parts(config: Config) -> Parts:
    return Parts(
        norm="layer_no_bias",
        norms=ONE_NORM,
        is_parallel=True,
        rotates=[window is not None for window in windows(config)],
        turns_neighbours=True,
        logit_scale=config["logit_scale"],
    )


COHERE = Family(
    defaults=DEFAULTS,
    spelled={"layer_norm_eps": "rms_norm_eps"},
    rules=RULES,
    parts=cohere_parts,
    supports=frozenset({"pp", "lora", "quantization"}),  # a norm has a row for each head
)
COHERE2 = Family(
    defaults={**DEFAULTS, "rope_theta": 10000.0, "sliding_window": 4096},
    spelled={"layer_norm_eps": "rms_norm_eps"},
    rules=RULES,
    windows=windows,
    parts=cohere2_parts,
)
