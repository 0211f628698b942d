"""Every family of models, through the whole engine: greedy tokens in float32 are those of HF.

This is the test that a new family must pass; `docs/models.md` says how to add one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mini_vllm import LLM, SamplingParams
from mini_vllm.entrypoints import info
from mini_vllm.model.build import load_model
from mini_vllm.model.checkpoint import read_header
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.families import FAMILIES, unsupported
from mini_vllm.model.registry import MODELS, resolve_model_class
from tests.engine.whole.test_greedy_parity import Case, _ask_hf, _num_excused

SHAPE: dict[str, Any] = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
OWN: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": dict(
        head_dim=20, layer_types=["sliding_attention", "full_attention"], sliding_window=9
    ),
    "MistralForCausalLM": dict(sliding_window=11),
    "Phi3ForCausalLM": dict(pad_token_id=0),
    "Qwen3MoeForCausalLM": dict(
        head_dim=10, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24
    ),
}
"""What differs from `SHAPE`, by architecture."""
NAMES = sorted(name for name in MODELS if name.endswith("ForCausalLM"))
"""A model that sees has tests of its own: tests/engine/multimodal."""


def save_random(architecture: str, folder: Path) -> Any:
    """A small HF model whose logits are far apart, also saved."""
    family = architecture.removesuffix("ForCausalLM")
    kind = getattr(transformers, f"{'Gemma3Text' if family == 'Gemma3' else family}Config")
    torch.manual_seed(0)
    config = kind(**(SHAPE | OWN.get(architecture, {})))
    model = getattr(transformers, architecture)(config).float().eval()
    for weight in model.parameters():
        weight.data.normal_(1.0 if weight.dim() == 1 else 0.0, 0.35)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    return _ask_hf(save_random(request.param, folder), folder)


def generate(case: Case, **options: Any) -> list[list[int]]:
    options = {"num_gpu_blocks": 40} | options
    llm = LLM(case.folder, skip_tokenizer_init=True, max_model_len=64, **options)
    params = [
        SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        for count in case.max_tokens
    ]
    outputs = llm.generate(case.prompts, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def test_greedy_tokens_equal_hf(case: Case) -> None:
    """With prompts in chunks beside decodes, and with a hit in the prefix cache."""
    options = dict(dtype="float32", block_size=4, num_gpu_blocks=200)
    for budget in (7, 2048):
        outputs = generate(case, max_num_batched_tokens=budget, **options)
        assert _num_excused(case, outputs) <= 1


@pytest.mark.parametrize(
    "options",
    [dict(dtype="bfloat16"), dict(quantization="int8"), dict(kv_cache_dtype="fp8")],
    ids=["bfloat16", "int8", "fp8-cache"],
)
def test_what_composes_with_every_family(case: Case, options: dict[str, Any]) -> None:
    """Rounded numbers change tokens; that they come, in their number, is what is asked here."""
    outputs = generate(case, **options)
    assert [len(tokens) for tokens in outputs] == case.max_tokens


def test_information_is_that_of_the_loaded_model(case: Case) -> None:
    """`info` builds no weights, and yet knows how large they are."""
    figures = info.describe(case.folder, max_model_len=64)
    model = load_model(case.folder)
    header = read_header(Path(case.folder, "model.safetensors"))
    assert figures["parameters"] == sum(math.prod(tensor.shape) for tensor in header.values())
    spec = model.kv_cache_spec()
    per_layer = 2 * spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize
    assert figures["kv_bytes_per_token"] == spec.num_layers * per_layer
    assert figures["fits"]


def test_both_tables_name_the_same_families() -> None:
    assert set(MODELS) <= set(FAMILIES)
    assert set(OWN) <= set(MODELS)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Gemma2ForCausalLM", "Gemma3ForCausalLM"),
        ("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
        ("Olmo3ForCausalLM", "Olmo2ForCausalLM"),
        ("MixtralForCausalLM", "MistralForCausalLM"),
        ("Phi3SmallForCausalLM", "Phi3ForCausalLM"),
        ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"),
    ],
)
def test_an_unsupported_family_hears_of_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"the nearest is {nearest}"):
        resolve_model_class([name])
    with pytest.raises(ValueError, match=f"the nearest is {nearest}"):
        ModelArgs.from_dict({"architectures": [name]})  # before anything it lacks
    assert unsupported([]).endswith("]")
