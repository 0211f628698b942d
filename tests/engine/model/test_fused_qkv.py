"""When norm, rotation and store of a layer are one launch, and every reason why not. What the
launch computes: `tests/engine/kernels`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mini_vllm.attention.quantized import FORMATS, QuantizedKV
from mini_vllm.attention.triton_backend import TritonAttention
from mini_vllm.attention.variants import VariantAttention
from mini_vllm.model.fused_qkv import reasons_for_three_steps
from mini_vllm.model.llama import LlamaAttention
from mini_vllm.model.mixers.gated_attention import GatedAttention
from mini_vllm.model.parts.attention import Attention
from mini_vllm.model.qwen3 import Qwen3Attention

HEADS = torch.zeros(3, 8, 16)
ROPE = (torch.zeros(3, 1, 16), torch.zeros(3, 1, 16))


def layer(kind: type[LlamaAttention], backend: Any = None) -> LlamaAttention:
    """An attention layer of 4 and 2 heads, as far as the question goes."""
    attn = kind.__new__(kind)
    nn.Module.__init__(attn)
    attn.num_heads, attn.num_kv_heads = 4, 2
    attn.backend = TritonAttention() if backend is None else backend
    if kind is Qwen3Attention:
        attn.qk_weight = torch.ones(6, 16)
    return attn


@pytest.mark.parametrize("kind", [LlamaAttention, Qwen3Attention])
def test_layers_of_llama_and_qwen3_take_one_launch(kind: type[LlamaAttention]) -> None:
    assert reasons_for_three_steps(layer(kind), HEADS, ROPE) == []
    part = (torch.zeros(3, 1, 8), torch.zeros(3, 1, 8))
    assert reasons_for_three_steps(layer(kind), HEADS, part) == []


@pytest.mark.parametrize("kind", [Attention, GatedAttention])
def test_a_family_with_a_norm_of_its_own_keeps_it(kind: type[LlamaAttention]) -> None:
    (reason,) = reasons_for_three_steps(layer(kind), HEADS, ROPE)
    assert reason.startswith(f"{kind.__name__} does not say")


@pytest.mark.parametrize(
    "backend",
    [
        QuantizedKV(TritonAttention(), FORMATS["int8_per_token_head"]),
        QuantizedKV(TritonAttention(), FORMATS["fp8_per_token_head"]),
        VariantAttention(TritonAttention(), softcap=30.0),
    ],
)
def test_a_backend_around_the_kernels_stores_itself(backend: Any) -> None:
    (reason,) = reasons_for_three_steps(layer(Qwen3Attention, backend), HEADS, ROPE)
    assert reason.startswith(f"{type(backend).__name__} stores keys and values")


def test_numbers_of_another_kind_and_rows_in_pieces_are_named_together() -> None:
    heads = torch.zeros(3, 8, 32)[..., ::2]
    reasons = reasons_for_three_steps(layer(Qwen3Attention), heads.half(), ROPE)
    assert len(reasons) == 1 and "float32, not torch.float16" in reasons[0]
    reasons = reasons_for_three_steps(layer(Attention), heads, ROPE)
    assert len(reasons) == 2 and "strides (256, 32, 2)" in reasons[1]
