"""Which class runs which architecture name of a `config.json`."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.model.families import unsupported
from mini_vllm.model.gemma3 import Gemma3ForCausalLM
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.mistral import MistralForCausalLM
from mini_vllm.model.olmo2 import Olmo2ForCausalLM
from mini_vllm.model.phi3 import Phi3ForCausalLM
from mini_vllm.model.qwen3 import Qwen3ForCausalLM
from mini_vllm.model.qwen3_moe import Qwen3MoeForCausalLM
from mini_vllm.model.qwen3_vl import Qwen3VLForConditionalGeneration

MODELS: dict[str, type[LlamaForCausalLM]] = {
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


def resolve_model_class(architectures: Sequence[str]) -> type[LlamaForCausalLM]:
    """The class of the first known name. Raises ValueError that lists the supported ones."""
    for name in architectures:
        if name in MODELS:
            return MODELS[name]
    raise ValueError(unsupported(architectures, tuple(MODELS)))
