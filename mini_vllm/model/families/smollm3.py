"""SmolLM3: Llama, with no rotation in every fourth layer.

Source: transformers, models/smollm3/modeling_smollm3.py (SmolLM3Attention); vLLM runs that class
itself, vllm/model_executor/models/registry.py#L639-L647 (_TRANSFORMERS_SUPPORTED_MODELS) @ v0.22.1.
"""

from mini_vllm.model.config_rules import integer, list_of
from mini_vllm.model.families.table import Config, Family, Parts, rotates


def windows(config: Config) -> tuple[int | None, ...]:
    """A window in the layers without rotation, if the config switches windows on."""
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    kinds = config.get("layer_types") or [
        "full_attention" if turns else "sliding_attention" for turns in rotates(config)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def parts(config: Config) -> Parts:
    return Parts(rotates=rotates(config))


SMOLLM3 = Family(
    defaults={
        "max_position_embeddings": 32768,
        "no_rope_layer_interval": 4,
        "num_key_value_heads": 4,
        "rope_theta": 2000000.0,
        "tie_word_embeddings": True,
    },
    rules={
        "no_rope_layers": list_of(integer(0, 1), "zeros and ones, one a layer").or_null(),
        "no_rope_layer_interval": integer(1, 1024),
    },
    windows=windows,
    parts=parts,
)
