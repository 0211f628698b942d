"""Our logits equal those of transformers, whatever the way through the paged cache."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import Tensor

from mini_vllm.attention import AttentionMetadata, get_backend
from mini_vllm.model import layers
from mini_vllm.model.build import load_model
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.rope import RotaryEmbedding

SHAPE = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


def rope(rope_type: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 5000.0, **more}}


LLAMA3 = rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)
LONGROPE = {
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 5000.0,
        "partial_rotary_factor": 0.5,
        "short_factor": [1.01, 1.53, 2.07],
        "long_factor": [4.0, 5.0, 6.0],
        "original_max_position_embeddings": 32,
    },
}
EXPERTS = dict(
    num_experts=7,
    num_experts_per_tok=3,
    moe_intermediate_size=20,
    norm_topk_prob=False,
)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", dict(head_dim=16)),
    "qwen3-tied": ("Qwen3", dict(head_dim=20, tie_word_embeddings=True)),
    "qwen3-gqa4-bias": ("Qwen3", dict(head_dim=8, num_key_value_heads=1, attention_bias=True)),
    "qwen3-window": (
        "Qwen3",
        dict(head_dim=16, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    ),
    "qwen3-yarn": ("Qwen3", dict(head_dim=16, **YARN)),
    "llama": ("Llama", dict()),
    "llama-mha-bias": ("Llama", dict(num_key_value_heads=4, attention_bias=True, mlp_bias=True)),
    "llama-gqa4-head20": ("Llama", dict(num_key_value_heads=1, head_dim=20)),
    "llama-tied-llama3": ("Llama", dict(tie_word_embeddings=True, **LLAMA3)),
    "llama-linear": ("Llama", rope("linear", factor=4.0)),
    "llama-yarn": ("Llama", dict(**YARN, rms_norm_eps=1e-3)),
    "qwen2": ("Qwen2", dict()),
    "mistral": ("Mistral", dict(sliding_window=None, num_key_value_heads=1)),
    "mistral-window-head10": ("Mistral", dict(sliding_window=5, head_dim=10)),
    "phi3": ("Phi3", dict(pad_token_id=0)),
    "phi3-window": ("Phi3", dict(pad_token_id=0, sliding_window=7, num_key_value_heads=1)),
    "phi3-longrope-partial": ("Phi3", dict(pad_token_id=0, tie_word_embeddings=True, **LONGROPE)),
    "olmo2": ("Olmo2", dict()),
    "olmo2-mha-bias-yarn": ("Olmo2", dict(num_key_value_heads=4, attention_bias=True, **YARN)),
    "gemma3": ("Gemma3", dict(head_dim=16, num_hidden_layers=7, sliding_window=6)),
    "gemma3-untied-scaled": (
        "Gemma3",
        dict(
            head_dim=14,
            num_key_value_heads=1,
            tie_word_embeddings=False,
            query_pre_attn_scalar=33,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 9000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            },
        ),
    ),
    "qwen3-moe": ("Qwen3Moe", dict(head_dim=16, **EXPERTS)),
    "qwen3-moe-window": (
        "Qwen3Moe",
        dict(
            head_dim=16,
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=1,
            **EXPERTS,
        ),
    ),
    "qwen3-moe-mixed": (
        "Qwen3Moe",
        dict(
            head_dim=12,
            num_hidden_layers=5,
            mlp_only_layers=[3],
            decoder_sparse_step=2,
            attention_bias=True,
            **{**EXPERTS, "norm_topk_prob": True, "num_experts_per_tok": 1},
        ),
    ),
}


def save_random_model(family: str, overrides: dict[str, Any], folder: Path) -> Any:
    """A transformers model whose every weight, norms and biases too, matters; also saved."""
    kind = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, kind)(**{**SHAPE, **overrides})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


def paged_logits(
    model: LlamaForCausalLM, prompts: list[Tensor], steps: list[list[int]], block_size: int
) -> list[Tensor]:
    """Feed each prompt in chunks: step s gives prompt i `steps[s][i]` tokens. All its logits."""
    config = model.config
    needed = [-(-len(prompt) // block_size) for prompt in prompts]
    free = random.Random(0).sample(range(1, sum(needed) + 1), sum(needed))
    tables = [[free.pop() for _ in range(n)] for n in needed]
    shape = (2, sum(needed) + 1, block_size, config.num_key_value_heads, config.head_dim)
    caches = [torch.zeros(shape, dtype=model.dtype) for _ in range(config.num_hidden_layers)]
    done, logits = [0] * len(prompts), [[] for _ in prompts]
    for counts in steps:
        order = sorted((i for i, n in enumerate(counts) if n), key=lambda i: counts[i] != 1)
        spans = [(i, done[i], done[i] + counts[i]) for i in order]
        metadata = AttentionMetadata.from_lists(
            [counts[i] for i in order],
            [end for _, _, end in spans],
            [tables[i][: -(-end // block_size)] for i, _, end in spans],
            block_size,
        )
        hidden = model(
            torch.cat([prompts[i][start:end] for i, start, end in spans]),
            torch.cat([torch.arange(start, end) for _, start, end in spans]),
            caches,
            metadata,
        )
        rows = model.compute_logits(hidden).split([counts[i] for i in order])
        for i, part in zip(order, rows, strict=True):
            logits[i].append(part)
            done[i] += counts[i]
    assert done == [len(prompt) for prompt in prompts]
    return [torch.cat(parts) for parts in logits]


def make_prompts(lens: list[int]) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randint(97, (n,)) for n in lens]


# Three prompts of 20, 9 and 13 tokens, three ways to compute them.
SCHEDULES = {
    "whole prompts": [[20, 9, 13]],
    "chunks": [[7, 7, 0], [9, 2, 5], [4, 0, 8]],
    "decodes beside prefills": [[12, 8, 0], [1, 1, 6], [6, 0, 1], [1, 0, 6]],
}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_equal_transformers(name: str, backend: str, tmp_path: Path) -> None:
    expected_model = save_random_model(*MODELS[name], tmp_path)
    model = load_model(tmp_path, backend=get_backend("cpu", backend))
    prompts = make_prompts([20, 9, 13])
    expected = [expected_model(prompt[None]).logits[0] for prompt in prompts]
    for block_size, steps in zip([1, 4, 16], SCHEDULES.values(), strict=True):
        for actual, wanted in zip(
            paged_logits(model, prompts, steps, block_size), expected, strict=True
        ):
            assert actual.dtype == torch.float32
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4 * float(wanted.std()))


@pytest.fixture(params=["converted", "native"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Pretend that the CPU has no half precision arithmetic, or that it has."""
    native = request.param == "native"
    capabilities = {"avx512_bf16": native, "avx512_fp16": native}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    layers.compute_dtype.cache_clear()
    yield request.param
    layers.compute_dtype.cache_clear()


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01)])
@torch.inference_mode()
def test_half_precision_is_near_float32(
    dtype: str, tolerance: float, arithmetic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded weights and cache, and if native activations, move logits by a little."""
    monkeypatch.setattr(layers, "NARROW", 0)
    expected_model = save_random_model("Qwen3", dict(head_dim=16), tmp_path)
    model = load_model(tmp_path, dtype=dtype)
    prompts = make_prompts([20, 9, 13])
    steps = SCHEDULES["decodes beside prefills"]
    hidden_dtype = model.lm_head.weight.dtype
    assert hidden_dtype == (getattr(torch, dtype) if arithmetic == "native" else torch.float32)
    for prompt, actual in zip(prompts, paged_logits(model, prompts, steps, 4), strict=True):
        wanted = expected_model(prompt[None]).logits[0]
        assert actual.dtype == torch.float32
        assert float((actual - wanted).std() / wanted.std()) < tolerance


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [name for name in MODELS if "rope_parameters" in MODELS[name][1]])
def test_half_precision_turns_by_the_angles_of_float32(
    name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frequency that is rounded to eight bits is a whole radian off after a thousand tokens."""
    monkeypatch.setattr(layers, "NARROW", 0)
    save_random_model(*MODELS[name], tmp_path)
    wanted, actual = (load_model(tmp_path, dtype=each).modules() for each in ("float32", dtype))
    rotations = [module for module in actual if isinstance(module, RotaryEmbedding)]
    exact = [module for module in wanted if isinstance(module, RotaryEmbedding)]
    assert rotations
    for rotation, other in zip(rotations, exact, strict=True):
        assert torch.equal(rotation.inv_freq, other.inv_freq)
        assert rotation.scaling == other.scaling


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("rows", [1056, 1050])
@pytest.mark.parametrize("tokens", [1, 16, 100, 600])
@torch.inference_mode()
def test_packed_linear_equals_plain(
    tokens: int, rows: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large weights are packed, for our own products where the rows fit into blocks, or for
    oneDNN's; 600 tokens take the unpacked way."""
    if not native:
        monkeypatch.setattr(layers.native, "can_run", lambda x: False)
    torch.manual_seed(0)
    linear = layers.Linear(1000, [700, rows - 700], bias=True)
    for parameter in linear.parameters():
        parameter.data.normal_()
    x = torch.randn(tokens, 1000)
    expected = torch.nn.functional.linear(x, linear.weight, linear.bias)
    linear.process_weights_after_loading()
    is_ours = native and rows % layers.native.ROWS == 0 and layers.native.can_run(x)
    assert (linear.blocks is not None) == is_ours
    assert is_ours or linear.packed is not None or not layers.can_pack(torch.float32)
    torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("is_narrow", [True, False])
@pytest.mark.parametrize("rows", [96, 90, 1056, 1050])
@pytest.mark.parametrize("tokens", [1, 33, 600])
@torch.inference_mode()
def test_which_library_multiplies_many_tokens(
    tokens: int, rows: int, is_narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch, a small weight in float32; `cpu.cpp` where PyTorch's takes half vectors."""
    monkeypatch.setattr(layers.native, "has_narrow_mkl", lambda: is_narrow)
    ours = mock.Mock(wraps=layers.native.linear)
    monkeypatch.setattr(layers.native, "linear", ours)
    torch.manual_seed(0)
    linear = layers.Linear(1000, rows, bias=True)
    for parameter in linear.parameters():
        parameter.data.normal_()
    x = torch.randn(tokens, 1000)
    expected = torch.nn.functional.linear(x, linear.weight, linear.bias)
    linear.process_weights_after_loading()
    torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-3)
    is_small = linear.weight is not None
    is_ours = linear.blocks is not None and (is_narrow or not is_small or tokens < 33)
    assert ours.called == is_ours


@pytest.mark.parametrize("tokens", [1, 5, 40, 600])
@torch.inference_mode()
def test_a_bfloat16_weight_is_unpacked_on_the_way(tokens: int) -> None:
    """To the bit what its values give in float32, in half the memory."""
    if layers.compute_dtype(torch.bfloat16, "cpu") != torch.float32:
        pytest.skip("this CPU multiplies bfloat16 itself")
    torch.manual_seed(0)
    half, whole = (layers.Linear(1030, [1024], bias=True) for _ in range(2))
    half.weight.data = torch.randn(1024, 1030).bfloat16()
    whole.weight.data = half.weight.data.float()
    half.bias.data = whole.bias.data = torch.randn(1024)
    x = torch.randn(tokens, 1030)
    for linear in (half, whole):
        linear.process_weights_after_loading()
    if layers.native.can_run(x):
        assert half.blocks.dtype == torch.bfloat16 and half.weight is None
    assert torch.equal(half(x), whole(x))


@pytest.mark.parametrize("values", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (1024, 1030), (33, 65)])
@torch.inference_mode()
def test_a_bias_is_added_in_every_dtype(
    shape: tuple[int, int], dtype: torch.dtype, values: torch.dtype | None
) -> None:
    """However the weight is kept: Qwen2 has such biases, and so have towers for images."""
    torch.manual_seed(0)
    rows, columns = shape
    linear = layers.Linear(columns, [rows], bias=True, build=layers.Build(values=values))
    linear.to(dtype)
    linear.weight.data = torch.randn(shape).to(torch.bfloat16).to(dtype)
    linear.bias.data = 100 * torch.randn(rows).to(dtype)
    x = torch.randn(3, columns, dtype=layers.compute_dtype(dtype, "cpu"))
    expected = x.float() @ linear.weight.float().T + linear.bias.float()
    linear.process_weights_after_loading()
    torch.testing.assert_close(linear(x).float(), expected, rtol=0.02, atol=0.5)


@torch.inference_mode()
def test_a_weight_in_blocks_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """While torch.compile traces, our products cannot run, and the weight is unpacked."""
    linear = layers.Linear(1024, [1024], bias=False)
    linear.weight.data.normal_()
    x = torch.randn(3, 1024)
    expected = torch.nn.functional.linear(x, linear.weight)
    linear.process_weights_after_loading()
    monkeypatch.setattr(layers.native, "can_run", lambda x: False)
    torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-3)


def test_bfloat16_values_survive_the_compute_dtype(tmp_path: Path) -> None:
    """The multiplied weight holds exactly the bfloat16 values, in whatever dtype."""
    original = save_random_model("Llama", dict(tie_word_embeddings=True), tmp_path)
    model = load_model(tmp_path, dtype="bfloat16")
    assert model.cache_dtype == torch.bfloat16
    wanted = original.lm_head.weight.bfloat16().float()
    assert torch.equal(model.lm_head.weight.float(), wanted)
    assert torch.equal(model.model.embed_tokens.weight.float(), wanted)
