"""Every family of models, through the whole engine: greedy tokens in float32 are those of HF.

This is the test that a new family must pass; `docs/models.md` says how to add one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks.families.tiny import FAMILIES as TINY
from mini_vllm import LLM, SamplingParams
from mini_vllm.entrypoints import info
from mini_vllm.model.build import load_model
from mini_vllm.model.checkpoint import read_header
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.config_schema import CONFIG
from mini_vllm.model.families import FAMILIES, known, table, unsupported
from mini_vllm.model.families.tripwire import EFFECTS
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
TABLES_TOO = ("Gemma3ForCausalLM", "MistralForCausalLM", "Olmo2ForCausalLM", "Phi3ForCausalLM")
NAMES = sorted(name for name in (*MODELS, *TABLES_TOO) if name.endswith("ForCausalLM"))
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


KINDS = {"Gemma3ForCausalLM": "gemma3_text", "LlamaForCausalLM": "llama"}
"""transformers' `model_type` where several have the same class."""
HARMLESS = {
    *("pretraining_tp", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
    *("embd_pdrop", "resid_pdrop", "residual_dropout", "embedding_dropout", "hidden_dropout"),
    *("qk_head_dim", "eod_token_id", "_sliding_window_pattern"),
    *("chunk_size", "mamba_chunk_size", "expand", "residual_in_fp32", "rescale_prenorm_residual"),
    *("time_step_floor", "time_step_min", "time_step_max", "time_step_rank"),
}
"""Entries of config classes that change no result here: of training, or that follow from others."""
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
ODD_DEFAULTS = {"Glm4MoeForCausalLM", "GraniteMoeHybridForCausalLM"}
"""Whose class has defaults that no checkpoint has: heads of 42 features, experts beside states."""

COUNTS = {"num_experts_per_tok": 6, "n_routed_experts": 64}
"""Of experts, for the config classes that leave them at None: each checkpoint's file gives them."""


def config_class(architecture: str) -> Any:
    """An instance of transformers' config class, with all its defaults."""
    kinds = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    tiny = {kinds[kind]: kind for kind, _ in TINY.values()}
    named = {name: kind for kind, name in kinds.items() if name not in tiny} | tiny | KINDS
    kind = named[architecture]
    return transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]()


@pytest.mark.parametrize("name", [n for n in known() if n.endswith("ForCausalLM")])
def test_what_a_config_file_may_leave_out_is_known(name: str) -> None:
    """Every entry of the family's config class is read, refused or harmless; and a file that has
    none but the sizes means the same as one that has all."""
    config = config_class(name).to_dict()
    own = table(name)
    read = {*CONFIG, *own.rules, *own.defaults, *own.spelled, *FAMILIES.get(name, ()), *EFFECTS}
    assert not set(config) - read - HARMLESS - set(transformers.PretrainedConfig().to_dict())
    if name in ODD_DEFAULTS or name == "Mamba2ForCausalLM":
        return
    whole = config | {"architectures": [name]}
    absent = {key: n for key, n in COUNTS.items() if key in whole and whole[key] is None}
    whole |= absent
    kept = (*SIZES, "num_attention_heads", "architectures", *absent)
    short = ModelArgs.from_dict({key: whole[key] for key in kept if key in whole})
    full = ModelArgs.from_dict(whole)
    same = {"eos_token_ids": ()}
    if short.local_rope_parameters in (None, short.rope_parameters):  # the same, said twice
        same["local_rope_parameters"] = None
    assert replace(short, **same) == replace(full, **same)


def test_both_tables_name_the_same_families() -> None:
    assert set(MODELS) <= set(FAMILIES)
    assert set(OWN) <= set(known())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
        ("Mistral4ForCausalLM", "MistralForCausalLM"),
        ("Phi3SmallForCausalLM", "Phi3ForCausalLM"),
    ],
)
def test_an_unsupported_family_hears_of_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"the nearest is {nearest}"):
        resolve_model_class([name])
    with pytest.raises(ValueError, match=f"the nearest is {nearest}"):
        ModelArgs.from_dict({"architectures": [name]})  # before anything it lacks
    assert unsupported([]).endswith("]")
