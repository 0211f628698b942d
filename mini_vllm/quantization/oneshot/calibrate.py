"""Inputs of each layer on calibration texts: magnitudes, a sample, and the Hessian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.errors import show
from mini_vllm.model.layers import Linear
from mini_vllm.model.llama import LlamaForCausalLM

MAX_SAMPLE = 512
"""Rows of inputs that are kept to evaluate candidates on."""


@dataclass
class LayerInputs:
    """The inputs `[*, K]` of one layer over all calibration texts."""

    absmax: Tensor | None = None
    hessian: Tensor | None = None
    sample: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor) -> None:
        x = x.float()
        absmax, hessian = x.abs().amax(0), x.T @ x
        self.absmax = absmax if self.absmax is None else torch.maximum(self.absmax, absmax)
        self.hessian = hessian if self.hessian is None else self.hessian + hessian
        if sum(map(len, self.sample)) < MAX_SAMPLE:
            self.sample.append(x[:: max(1, len(x) // 64)])


def tokenize(
    folder: Path, dataset: Sequence[str | Sequence[int]], vocab_size: int
) -> list[list[int]]:
    """Token ids of each text; lists of ids stay as they are.

    Raises ValueError for a text without tokens, and for ids that the model does not have.
    """
    texts = [text for text in dataset if isinstance(text, str)]
    if texts:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer.encode(t) if isinstance(t, str) else list(t) for t in dataset]
    for index, prompt in enumerate(prompts):
        if not prompt or not all(token in range(vocab_size) for token in prompt):
            raise ValueError(
                f"dataset[{index}] is {show(dataset[index])}; each must have tokens, with ids of "
                f"0 to {vocab_size - 1}"
            )
    return prompts


@torch.inference_mode()
def run_prompt(model: LlamaForCausalLM, token_ids: Sequence[int]) -> Tensor:
    """Logits `[T, V]` of every position of one prompt."""
    spec, length = model.kv_cache_spec(), len(token_ids)
    shape = (2, 2, length, spec.num_kv_heads, spec.width)
    caches = [torch.zeros(shape, dtype=spec.dtype) for _ in range(spec.num_layers)]
    metadata = AttentionMetadata.from_lists([length], [length], [[1]], length)
    hidden = model(torch.tensor(token_ids), torch.arange(length), caches, metadata)
    return model.compute_logits(hidden)


def watch_inputs(
    model: LlamaForCausalLM, prompts: Sequence[Sequence[int]], max_tokens: int = 512
) -> dict[str, LayerInputs]:
    """The inputs of each linear layer while the model runs the prompts, by the layer's name."""
    inputs: dict[str, LayerInputs] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            inputs[name] = LayerInputs()

            def watch(module: Linear, args: Any, seen: LayerInputs = inputs[name]) -> None:
                seen.add(args[0])

            hooks.append(module.register_forward_pre_hook(watch))
    for prompt in prompts:
        run_prompt(model, prompt[:max_tokens])
    for hook in hooks:
        hook.remove()
    return inputs
