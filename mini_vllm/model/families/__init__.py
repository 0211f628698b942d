"""What the families of models leave out of their `config.json`, and where they read it differently.

A config file holds only what differs from its class's defaults, and each class has its own. How a
family computes is said in one of two ways: as a class that changes Llama's (`qwen3.py`,
`gemma3.py`, ...), whose defaults stand in `FAMILIES`; or as a table of parts with a file here,
named in `TABLES`.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.model.families.table import Family
from mini_vllm.model.families.tripwire import needs

TABLES: dict[str, tuple[str, str]] = {
    "ArceeForCausalLM": ("arcee", "ARCEE"),
    "Cohere2ForCausalLM": ("cohere", "COHERE2"),
    "CohereForCausalLM": ("cohere", "COHERE"),
    "DeepseekV2ForCausalLM": ("deepseek", "DEEPSEEK_V2"),
    "DeepseekV3ForCausalLM": ("deepseek", "DEEPSEEK_V3"),
    "Dots1ForCausalLM": ("dots1", "DOTS1"),
    "Ernie4_5ForCausalLM": ("ernie", "ERNIE45"),
    "Exaone4ForCausalLM": ("exaone4", "EXAONE4"),
    "FlexOlmoForCausalLM": ("flex_olmo", "FLEX_OLMO"),
    "Gemma2ForCausalLM": ("gemma", "GEMMA2"),
    "GemmaForCausalLM": ("gemma", "GEMMA"),
    "Glm4ForCausalLM": ("glm", "GLM4"),
    "Glm4MoeForCausalLM": ("glm4_moe", "GLM4_MOE"),
    "GlmForCausalLM": ("glm", "GLM"),
    "GptOssForCausalLM": ("gpt_oss", "GPT_OSS"),
    "GraniteForCausalLM": ("granite", "GRANITE"),
    "GraniteMoeHybridForCausalLM": ("granite_hybrid", "GRANITE_HYBRID"),
    "HeliumForCausalLM": ("helium", "HELIUM"),
    "HunYuanDenseV1ForCausalLM": ("hunyuan", "HUNYUAN"),
    "Llama4ForCausalLM": ("llama4", "LLAMA4"),
    "Mamba2ForCausalLM": ("mamba2", "MAMBA2"),
    "MinistralForCausalLM": ("ministral", "MINISTRAL"),
    "MixtralForCausalLM": ("mixtral", "MIXTRAL"),
    "NemotronForCausalLM": ("nemotron", "NEMOTRON"),
    "Olmo3ForCausalLM": ("olmo3", "OLMO3"),
    "OlmoeForCausalLM": ("olmoe", "OLMOE"),
    "PhiForCausalLM": ("phi", "PHI"),
    "Qwen2MoeForCausalLM": ("qwen2_moe", "QWEN2_MOE"),
    "Qwen3NextForCausalLM": ("qwen3_next", "QWEN3_NEXT"),
    "Qwen3_5ForCausalLM": ("qwen3_next", "QWEN3_5"),
    "Qwen3_5MoeForCausalLM": ("qwen3_next", "QWEN3_5_MOE"),
    "SeedOssForCausalLM": ("seed_oss", "SEED_OSS"),
    "SmolLM3ForCausalLM": ("smollm3", "SMOLLM3"),
    "StableLmForCausalLM": ("stablelm", "STABLELM"),
    "Starcoder2ForCausalLM": ("starcoder2", "STARCODER2"),
}
"""By architecture: the file here, and the name of the table in it.

Source: vllm/model_executor/models/registry.py#L71-L223 (_TEXT_GENERATION_MODELS) @ v0.22.1.
"""

FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {"max_position_embeddings": 32768},
    "Qwen3ForCausalLM": {"head_dim": 128, "max_position_embeddings": 32768},
    "Qwen3MoeForCausalLM": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
    },
    "Qwen3VLForConditionalGeneration": {  # of its decoder
        "head_dim": 128,
        "rope_theta": 500000.0,
        "max_position_embeddings": 128000,
    },
    "MistralForCausalLM": {
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
    },
    "Phi3ForCausalLM": {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    "Olmo2ForCausalLM": {"rms_norm_eps": 1e-5},
    "Gemma3ForCausalLM": {
        "head_dim": 256,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
}
"""By architecture of a class: the defaults of its config class where they are not Llama's."""

WINDOW_IN_ALL_LAYERS = ("MistralForCausalLM", "Phi3ForCausalLM")
WINDOW_BY_PATTERN = ("Gemma3ForCausalLM",)
EVERY_SIXTH = 6
"""Of Gemma 3's layers sees the whole context; those between see a window."""


def known() -> tuple[str, ...]:
    """The architectures that run here."""
    return (*FAMILIES, *TABLES)


@functools.cache
def table(architecture: str) -> Family:
    """The table of a family; that of Llama for one that is a class, or that is not known."""
    if architecture not in TABLES:
        return Family()
    module, name = TABLES[architecture]
    found: Family = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found


CLASSIFIES = ("ForSequenceClassification", "ForTokenClassification")
EMBEDS = ("ForTextEncoding", "Model")
"""How architectures end that have a family's decoder, and another head or none."""


def with_decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with each architecture that only adds to a family's decoder by that family's name:
    `Qwen3ForSequenceClassification` and `Qwen3Model` are `Qwen3ForCausalLM`."""
    names = config.get("architectures")
    if not isinstance(names, list) or family(config):
        return config
    return {**config, "architectures": [_decoder_of(name) for name in names]}


def _decoder_of(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    stems = [name.removesuffix(end) for end in (*CLASSIFIES, *EMBEDS) if name.endswith(end)]
    stems += [stem.removesuffix("Text") for stem in stems]
    found = [f"{stem}ForCausalLM" for stem in stems if f"{stem}ForCausalLM" in known()]
    return found[0] if found else name


def family(config: Mapping[str, Any]) -> str:
    """The first architecture of the config that is known here; "" without one."""
    names = config.get("architectures")
    if not isinstance(names, list):
        return ""
    return next((name for name in names if isinstance(name, str) and name in known()), "")


def is_foreign(config: Mapping[str, Any]) -> bool:
    """Whether the config names architectures, and none that is known here."""
    names = config.get("architectures")
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return is_list and bool(names) and not family(config)


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with what its class would add. An explicit null stays: it may mean "none"."""
    name = family(config)
    whole = {**FAMILIES.get(name, {}), **table(name).defaults, **config}
    for own, ours in table(name).spelled.items():
        if own in whole:
            whole[ours] = whole[own]
    if config.get("num_local_experts") is not None:  # as newer files of transformers spell it
        whole["num_experts"] = config["num_local_experts"]
    rewrite = table(name).rewrite
    return whole if rewrite is None else rewrite(whole)


def sliding_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The attention window of each layer, None for the whole context.

    Mistral and Phi-3 have one for all layers or none; Gemma 3 says by layer, or by a pattern; Qwen
    switches it on by `use_sliding_window`, from layer `max_window_layers` on.
    """
    num_layers, name = config["num_hidden_layers"], family(config)
    if name in TABLES:
        own = table(name).windows
        return own(config) if own is not None else (None,) * num_layers
    window = config.get("sliding_window")
    if name in WINDOW_IN_ALL_LAYERS:
        return (window,) * num_layers
    if name in WINDOW_BY_PATTERN:
        every = config.get("sliding_window_pattern") or EVERY_SIXTH
        is_sliding = [bool((index + 1) % every) for index in range(num_layers)]
    else:
        window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
        first = config.get("max_window_layers")
        is_sliding = [index >= (28 if first is None else first) for index in range(num_layers)]
    if kinds := config.get("layer_types"):
        is_sliding = [kind == "sliding_attention" for kind in kinds]
    return tuple(window if slides else None for slides in is_sliding)


def unsupported(architectures: Sequence[str], config: Mapping[str, Any] | None = None) -> str:
    """Says that nothing here runs these, what comes nearest, and what they would need by their
    `config`."""

    def stem(name: str) -> str:
        return name.partition("For")[0].lower()

    stems = {stem(name): name for name in known()}
    wanted = stem(architectures[0]) if architectures else ""
    nearest = difflib.get_close_matches(wanted, stems, n=1, cutoff=0.0)
    hint = f"; the nearest is {stems[nearest[0]]}" if wanted else ""
    lacks = needs(config) if config else ""
    would = f"; by its config it needs {lacks}" if lacks else ""
    names = f"{list(architectures)} is not supported; supported are {sorted(known())}"
    return f"architecture {names}{hint}{would}{'' if architectures else _without_name(config)}"


def _without_name(config: Mapping[str, Any] | None) -> str:
    """What to write where a config has no `architectures`, by its `model_type`."""
    kind = (config or {}).get("model_type")
    plain = str(kind).removesuffix("_text").replace("_", "")
    names = [n for n in known() if n.lower().replace("_", "") == f"{plain}forcausallm"]
    if not names:
        return ""
    return (
        f"; the file names none, and its model_type is {kind!r}: add "
        f'"architectures": ["{names[0]}"], or pass hf_overrides={{"architectures": ["{names[0]}"]}}'
    )
