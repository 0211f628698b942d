"""Which class runs which architecture name of a `config.json`.

A family that is a table of parts stands in `families.TABLES` instead, and needs no line here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.import_utils import resolve_obj_by_qualname
from mini_vllm.model.decoder import composed
from mini_vllm.model.families import FAMILIES, TABLES, known, unsupported
from mini_vllm.model.gemma3 import Gemma3ForCausalLM
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.mistral import MistralForCausalLM
from mini_vllm.model.olmo2 import Olmo2ForCausalLM
from mini_vllm.model.phi3 import Phi3ForCausalLM
from mini_vllm.model.qwen3 import Qwen3ForCausalLM
from mini_vllm.model.qwen3_moe import Qwen3MoeForCausalLM
from mini_vllm.model.qwen3_vl import Qwen3VLForConditionalGeneration

MODELS: dict[str, type[LlamaForCausalLM] | str] = {
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "Olmo2ForCausalLM": Olmo2ForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
    "Qwen2ForCausalLM": LlamaForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
    "Qwen3VLForConditionalGeneration": Qwen3VLForConditionalGeneration,
}


def register_model(
    architecture: str,
    model_cls: type[LlamaForCausalLM] | str,
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Let a class of another package run an architecture: what a general plugin calls.

    Args:
        architecture: the name in a checkpoint's `config.json`.
        model_cls: a class that changes Llama's, or its path "package.module:Class", which is
            imported when a checkpoint asks for it.
        defaults: what `config.json` means where it leaves an entry out, as in `families.FAMILIES`.

    Raises:
        ValueError: if another class runs the architecture.

    Source: vllm/model_executor/models/registry.py#L963-L1007 (_ModelRegistry.register_model)
    @ v0.22.1. Difference: there the later one wins, with a warning.
    """
    if architecture in known() and MODELS.get(architecture) != model_cls:
        there = MODELS.get(architecture, "the table of a family")
        raise ValueError(
            f"architecture {architecture!r} is run by {there} already; {model_cls} cannot take its "
            "place; register it under another name"
        )
    MODELS[architecture] = model_cls
    FAMILIES[architecture] = dict(defaults or {})


def resolve_model_class(architectures: Sequence[str]) -> type[LlamaForCausalLM]:
    """The class of the first known name. Raises ValueError that lists the supported ones."""
    for name in architectures:
        if name in MODELS:
            found = MODELS[name]
            return resolve_obj_by_qualname(found) if isinstance(found, str) else found
        if name in TABLES:
            return composed(name)
    raise ValueError(unsupported(architectures))
