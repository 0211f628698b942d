"""Which class runs which architecture name of a `config.json`."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.qwen3 import Qwen3ForCausalLM
from mini_vllm.model.qwen3_vl import Qwen3VLForConditionalGeneration

MODELS: dict[str, type[LlamaForCausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "Qwen2ForCausalLM": LlamaForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen3VLForConditionalGeneration": Qwen3VLForConditionalGeneration,
}


def resolve_model_class(architectures: Sequence[str]) -> type[LlamaForCausalLM]:
    """The class of the first known name. Raises ValueError that lists the supported ones."""
    for name in architectures:
        if name in MODELS:
            return MODELS[name]
    raise ValueError(
        f"architecture {list(architectures)} is not supported; supported are {sorted(MODELS)}"
    )
