"""Maps the architecture in a `config.json` to the class that implements it.

A family that is a table of parts is listed in `families.TABLES` instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from mini_vllm.import_utils import resolve_obj_by_qualname
from mini_vllm.model.decoder import composed
from mini_vllm.model.families import FAMILIES, TABLES, known, unsupported
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.qwen3 import Qwen3ForCausalLM
from mini_vllm.model.qwen3_moe import Qwen3MoeForCausalLM
from mini_vllm.model.qwen3_vl import Qwen3VLForConditionalGeneration

MODELS: dict[str, type[LlamaForCausalLM] | str] = {
    "LlamaForCausalLM": LlamaForCausalLM,
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
    """Register a class of another package for an architecture; for general plugins.

    Args:
        architecture: the name in a checkpoint's `config.json`.
        model_cls: a subclass of Llama's, or its path "package.module:Class", which is imported
            when a checkpoint needs it.
        defaults: the defaults of entries in `config.json`, as in `families.FAMILIES`.

    Raises:
        ValueError: if another class is registered for the architecture.

    Source: vllm/model_executor/models/registry.py#L963-L1007 (_ModelRegistry.register_model)
    @ v0.22.1. Difference: there the later one wins, with a warning.
    """
    if architecture in known() and MODELS.get(architecture) != model_cls:
        there = MODELS.get(architecture, "the table of a family")
        raise ValueError(
            f"architecture {architecture!r} is run by {there} already; {model_cls} cannot replace "
            "it; register it under another name"
        )
    MODELS[architecture] = model_cls
    FAMILIES[architecture] = dict(defaults or {})


class ModelRegistry:
    """vLLM's name of what is here, for general plugins and scripts written for it.

    Source: vllm/model_executor/models/registry.py#L955-L1007 (_ModelRegistry) @ v0.22.1
    """

    register_model = staticmethod(register_model)

    @staticmethod
    def get_supported_archs() -> Set[str]:
        """Names of all architectures that a checkpoint may have."""
        return set(known())


def resolve_model_class(architectures: Sequence[str]) -> type[LlamaForCausalLM]:
    """The class of the first known name. Raises ValueError that lists the supported ones."""
    for name in architectures:
        if name in MODELS:
            found = MODELS[name]
            return resolve_obj_by_qualname(found) if isinstance(found, str) else found
        if name in TABLES:
            return composed(name)
    raise ValueError(unsupported(architectures))
