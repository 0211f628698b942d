"""A small model three of whose four layers keep a state, and what it says when computed plainly."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata, StateMetadata
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.interface import LayerSpec, StateTensor
from mini_vllm.model.layers import Build, Linear
from mini_vllm.model.llama import LlamaAttention, LlamaForCausalLM
from mini_vllm.worker.kv_cache import KVCache

SIZE, DECAY, TAIL = 8, 0.97, 2


class FadingMemory(nn.Module):
    """What was seen fades: S <- 0.97 S + k v^T, o = q S; inputs are mixed with the two before."""

    layer_spec = LayerSpec(
        "mamba",
        states=(
            StateTensor((SIZE, SIZE), torch.float32),
            StateTensor((TAIL, 3 * SIZE), torch.float32),
        ),
    )

    def __init__(self, args: ModelArgs, build: Build, window: int | None, prefix: str) -> None:
        super().__init__()
        hidden = args.hidden_size
        self.qkv_proj = Linear(hidden, 3 * SIZE, False, build, prefix=f"{prefix}.qkv_proj")
        self.o_proj = Linear(SIZE, hidden, False, build, prefix=f"{prefix}.o_proj")

    def forward(
        self, x: Tensor, rope: Any, kv_cache: tuple[Tensor, ...], metadata: StateMetadata
    ) -> Tensor:
        rows = self.qkv_proj(x)
        states, tails = (metadata.load(one) for one in kv_cache)
        out = torch.empty(len(x), SIZE)
        for index, (start, end) in enumerate(pairwise(metadata.query_start_loc.tolist())):
            for token in range(start, end):
                window = torch.cat((tails[index], rows[token : token + 1]))
                q, k, v = window.mean(0).split(SIZE)
                states[index] = DECAY * states[index] + torch.outer(k, v)
                out[token] = q @ states[index]
                tails[index] = window[1:]
        for one, values in zip(kv_cache, (states, tails), strict=True):
            metadata.store(one, values)
        out = out / out.square().mean(-1, keepdim=True).add(1e-6).sqrt()
        return self.o_proj(out)


def choose(args: ModelArgs, build: Build, window: int | None, prefix: str) -> nn.Module:
    """Every fourth layer has attention."""
    index = int(prefix.split(".")[-2])
    kind = LlamaAttention if index % 4 == 3 else FadingMemory
    return kind(args, build, window, prefix)


class RememberingForCausalLM(LlamaForCausalLM):
    attention = staticmethod(choose)  # type: ignore[assignment]
    supports = frozenset({"states"})
    can_be_recorded = False


@torch.inference_mode()
def plain_tokens(model: LlamaForCausalLM, text: list[int]) -> list[int]:
    """The best token behind each one of a text that is computed in one pass, with nothing kept."""
    spec, length = model.kv_cache_spec(), [len(text)]
    cache = KVCache(replace(spec, layers=()), 2, len(text), torch.device("cpu"))
    metadata = AttentionMetadata.from_lists(length, length, [[1]], len(text))
    states = StateMetadata(
        metadata.query_start_loc, torch.tensor([0]), torch.tensor([True]), len(text), 0,
        length, length,
    )  # fmt: skip
    caches = [
        tuple(torch.zeros(1, *s.shape, dtype=s.dtype) for s in layer.states) or kept
        for layer, kept in zip(spec.layers, cache.tensors, strict=True)
    ]
    metadata.groups = [metadata, states]
    metadata.layer_groups = [int(layer.kind == "mamba") for layer in spec.layers]
    hidden = model(torch.tensor(text), torch.arange(len(text)), caches, metadata)
    return model.compute_logits(hidden).argmax(1).tolist()
