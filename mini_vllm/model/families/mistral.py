"""Mistral: Llama with a window in all layers, if the config has one.

Ministral may also have a window in some layers only.
Source: vllm/model_executor/models/mistral.py#L230-L342 (MistralForCausalLM) @ v0.22.1.
"""

from mini_vllm.model.families.table import Config, Family, window_everywhere, windows_by_layer

DEFAULTS = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}


def windows(config: Config) -> tuple[int | None, ...]:
    has_kinds = bool(config.get("layer_types"))
    return windows_by_layer(every=1)(config) if has_kinds else window_everywhere(config)


MISTRAL = Family(defaults=DEFAULTS, windows=window_everywhere)
MINISTRAL = Family(defaults=DEFAULTS, windows=windows)
