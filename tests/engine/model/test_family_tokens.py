"""Every family's greedy tokens in float32 are those that transformers gave for the same weights.

The weights are drawn from seeds, and the answers were recorded once: `benchmarks/families`. Here
each family runs in one engine, with prompts in chunks beside decodes and a hit in the prefix cache;
`make families` shows all ways. Families with states have a test of their own, `mixers/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.families.record import read
from benchmarks.families.tiny import FAMILIES, prompts, write
from benchmarks.families.ways import BASE
from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model.build import load_model
from mini_vllm.model.families import TABLES
from mini_vllm.model.registry import resolve_model_class
from tests.engine.lora.adapters import write_adapter

ANSWERS = read()
ONE = GroupCoordinator([0], 0)
TOKENS, POSITIONS = torch.tensor([0, 100, 64, 63, 97, 5, 5, 9, 11, 2, 8]), torch.arange(11)


TABLED = [name for name in FAMILIES if set(ANSWERS[name]["config"]["architectures"]) & set(TABLES)]
"""Families that are tables. Those that are classes are asked in `whole/test_families.py`."""


def supports(name: str) -> frozenset[str]:
    return resolve_model_class(ANSWERS[name]["config"]["architectures"]).supports


def who_can(what: str, quick: Sequence[str]) -> list[Any]:
    """The families whose class says that it goes together with `what`; all but `quick` are slow.
    Those with states go through the whole engine, in `mixers/test_engine.py`."""
    found = []
    for name in TABLED:
        if what in supports(name) and "states" not in supports(name):
            marks = [] if name in quick else [pytest.mark.slow]
            found.append(pytest.param(name, marks=marks))
    return found


def hidden(model: Any, **extra: Any) -> Any:
    """What a model, or a stage, gives for a prompt of 11 tokens."""
    spec = model.kv_cache_spec()
    shape = (2, 4, 4, spec.num_kv_heads, spec.head_dim)
    caches = [torch.zeros(shape) for _ in range(spec.num_layers)]
    metadata = AttentionMetadata.from_lists([11], [11], [[1, 2, 3]], 4, torch.device("cpu"))
    return model(TOKENS, POSITIONS, caches, metadata, **extra)


@pytest.mark.parametrize("name", [name for name in TABLED if "states" not in supports(name)])
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    answer = ANSWERS[name]
    write(tmp_path, answer["config"], answer["shapes"])
    llm = LLM(tmp_path, **(BASE | dict(max_num_batched_tokens=23, num_gpu_blocks=200)))
    params = SamplingParams(temperature=0, max_tokens=len(answer["tokens"][0]), ignore_eos=True)
    *others, last = prompts()
    outputs = llm.generate(others, params, use_tqdm=False)
    outputs += llm.generate([last], params, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == answer["tokens"]
    assert outputs[-1].num_cached_tokens == 32


def test_every_table_has_recorded_answers() -> None:
    names = {name for answer in ANSWERS.values() for name in answer["config"]["architectures"]}
    assert set(TABLES) <= names
    assert set(FAMILIES) == set(ANSWERS)
    assert min(answer["gap"] for answer in ANSWERS.values()) > 1e-4, "a near-tie proves nothing"


@pytest.mark.parametrize(
    "name", who_can("tp", ["granite", "starcoder2", "exaone4", "glm4_moe", "qwen2_moe"])
)
@torch.inference_mode()
def test_two_ranks_are_the_model(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write(tmp_path, ANSWERS[name]["config"], ANSWERS[name]["shapes"])
    whole = load_model(tmp_path)
    expected = whole.compute_logits(hidden(whole))

    def work(group: SimulatedGroup) -> Tensor:
        model = load_model(tmp_path, parallel=ModelParallel(group, ONE))
        return model.compute_logits(hidden(model))

    for logits in run_ranks(2, work):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", who_can("pp", ["phi", "gemma2", "deepseek_v3", "gpt_oss"]))
@torch.inference_mode()
def test_two_stages_are_the_model(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write(tmp_path, ANSWERS[name]["config"], ANSWERS[name]["shapes"])
    whole = load_model(tmp_path)
    expected = whole.compute_logits(hidden(whole))
    extra: dict[str, Any] = {}
    for rank in range(2):
        stage = load_model(tmp_path, parallel=ModelParallel(ONE, GroupCoordinator(range(2), rank)))
        result = hidden(stage, **extra)
        extra = {"intermediate": result}
    torch.testing.assert_close(stage.compute_logits(result), expected)


@pytest.mark.parametrize("name", who_can("lora", ["granite", "glm4_moe"]))
def test_an_adapter_is_what_merging_it_gives(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    answer = ANSWERS[name]
    write(tmp_path / "base", answer["config"], answer["shapes"])
    tensors, adapter = load_file(tmp_path / "base" / "model.safetensors"), {}
    for module in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj"):
        weight = tensors[f"model.layers.1.{module}.weight"]
        generator = torch.Generator().manual_seed(len(module))
        a, b = (
            torch.randn(*shape, generator=generator) / 3
            for shape in ((2, weight.shape[1]), (len(weight), 2))
        )
        adapter[f"base_model.model.model.layers.1.{module}.lora_A.weight"] = a
        adapter[f"base_model.model.model.layers.1.{module}.lora_B.weight"] = b
        weight += b @ a
    path = write_adapter(
        tmp_path / "adapter",
        adapter,
        r=2,
        lora_alpha=2,
        target_modules=["q_proj", "v_proj", "o_proj"],
    )
    write(tmp_path / "merged", answer["config"], {})
    save_file(tensors, tmp_path / "merged" / "model.safetensors")
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    base = LLM(tmp_path / "base", **BASE, enable_lora=True, max_lora_rank=8)
    merged = LLM(tmp_path / "merged", **BASE)
    request = LoRARequest("a", 1, path)
    with_adapter = base.generate(prompts()[:3], params, use_tqdm=False, lora_request=request)
    wanted = merged.generate(prompts()[:3], params, use_tqdm=False)
    found, expected = (
        [list(o.outputs[0].token_ids) for o in outs] for outs in (with_adapter, wanted)
    )
    assert found == expected
    assert found != [tokens[:8] for tokens in answer["tokens"][:3]]


def test_layers_that_draft_are_left_out_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DeepSeek V3 has one behind its last layer, which transformers ignores, too."""
    answer = ANSWERS["deepseek_v3"]
    more = {"model.layers.4.eh_proj.weight": [32, 64], "model.layers.4.enorm.weight": [32]}
    write(tmp_path, answer["config"] | {"num_nextn_predict_layers": 1}, answer["shapes"] | more)
    with caplog.at_level("INFO", logger="mini_vllm"):
        load_model(tmp_path)
    said = [record.getMessage() for record in caplog.records if "MTP" in record.getMessage()]
    assert len(said) == 1 and "2 tensors" in said[0] and "model.layers.4.eh_proj.weight" in said[0]
    write(tmp_path, answer["config"], answer["shapes"] | {"model.layers.5.enorm.weight": [32]})
    with pytest.raises(ValueError, match=r"first 'model\.layers\.5\.enorm"):
        load_model(tmp_path)
