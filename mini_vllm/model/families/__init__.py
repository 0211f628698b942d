"""The families of models: the defaults of their `config.json`, and where they read it differently.

A config file holds only what differs from its class's defaults, and each class has its own. Nearly
every family is a table of parts, in a file here that `TABLES` names. Only Llama and the Qwen
families that change Llama's classes (`qwen3.py`, ...) have no table; their defaults are in
`FAMILIES`.
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
    "Gemma3ForCausalLM": ("gemma", "GEMMA3"),
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
    "MinistralForCausalLM": ("mistral", "MINISTRAL"),
    "MistralForCausalLM": ("mistral", "MISTRAL"),
    "MixtralForCausalLM": ("mixtral", "MIXTRAL"),
    "NemotronForCausalLM": ("nemotron", "NEMOTRON"),
    "Olmo2ForCausalLM": ("olmo", "OLMO2"),
    "Olmo3ForCausalLM": ("olmo", "OLMO3"),
    "OlmoeForCausalLM": ("olmoe", "OLMOE"),
    "Phi3ForCausalLM": ("phi3", "PHI3"),
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
}
"""By architecture: the defaults of its config class that differ from Llama's."""

WINDOW_IN_ALL_LAYERS = ("Qwen3MoeForCausalLM",)
"""Where `use_sliding_window` is on; `max_window_layers` is not read."""


def known() -> tuple[str, ...]:
    """The supported architectures."""
    return (*FAMILIES, *TABLES)


@functools.cache
def table(architecture: str) -> Family:
    """The table of a family; Llama's for a family that is a class, or that is not known."""
    if architecture not in TABLES:
        return Family()
    module, name = TABLES[architecture]
    found: Family = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found


CLASSIFIES = ("ForSequenceClassification", "ForTokenClassification")
EMBEDS = ("ForTextEncoding", "Model")
"""Suffixes of architectures that have a family's decoder with another head, or none."""


def with_decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the name of the causal family in place of its variants:
    `Qwen3ForSequenceClassification` and `Qwen3Model` become `Qwen3ForCausalLM`."""
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
    """The first supported architecture of the config; "" if there is none."""
    names = config.get("architectures")
    if not isinstance(names, list):
        return ""
    return next((name for name in names if isinstance(name, str) and name in known()), "")


def is_foreign(config: Mapping[str, Any]) -> bool:
    """Whether the config names architectures, but no supported one."""
    names = config.get("architectures")
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return is_list and bool(names) and not family(config)


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with its class's defaults. An explicit null stays, because it may mean "none"."""
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

    Families with a table say it there. Qwen's have windows if `use_sliding_window` is true, from
    layer `max_window_layers` on, or in the layers that `layer_types` names; Qwen3-MoE in all.
    """
    num_layers, name = config["num_hidden_layers"], family(config)
    if name in TABLES:
        own = table(name).windows
        return own(config) if own is not None else (None,) * num_layers
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    first = 0 if name in WINDOW_IN_ALL_LAYERS else config.get("max_window_layers")
    is_sliding = [index >= (28 if first is None else first) for index in range(num_layers)]
    if kinds := config.get("layer_types"):
        is_sliding = [kind == "sliding_attention" for kind in kinds]
    return tuple(window if slides else None for slides in is_sliding)


def unsupported(architectures: Sequence[str], config: Mapping[str, Any] | None = None) -> str:
    """The message that these architectures are not supported, with the nearest one that is, and the
    features that their `config` would need."""

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
