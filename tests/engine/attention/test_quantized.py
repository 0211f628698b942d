"""The quantised KV cache: what its bytes mean, and that the engine is the same around it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.attention import AttentionMetadata, get_backend
from mini_vllm.attention.quantized import (
    FORMATS,
    QuantizedKV,
    dequantize_kv,
    quantize_kv,
    renumber_pages,
)
from mini_vllm.model.build import load_model
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.metrics import kl_divergence
from mini_vllm.quantization.oneshot.calibrate import run_prompt
from mini_vllm.worker.kv_cache import bytes_per_block

PROMPT = list(range(40, 90))


def test_int8_rounds_and_keeps_its_scale_behind_the_head() -> None:
    """The fraction is rounded, not cut off; and four bytes of the head are its scale."""
    x = torch.tensor([[[127.0, 0.5, 1.5, -1.6, 2.49, 0.0, 0.0, -127.0]]])
    data = quantize_kv(x, FORMATS["int8_per_token_head"])
    assert data[0, 0, :8].tolist() == [127, 0, 2, -2, 2, 0, 0, -127]
    assert data[0, 0, 8:].view(torch.float32).item() == 1.0


@pytest.mark.parametrize(("name", "step"), [("int8_per_token_head", 1 / 254), ("fp8", 1 / 16)])
def test_numbers_come_back(name: str, step: float) -> None:
    torch.manual_seed(0)
    x, form = torch.randn(9, 2, 16), FORMATS[name]
    back = dequantize_kv(quantize_kv(x, form, 0.5), form, torch.float32, 0.5)
    assert ((back - x).abs() <= step * x.abs().amax(-1, keepdim=True) * 1.001).all()


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_stored_is_infinite(name: str) -> None:
    """Beyond the range, NaN, zeros: what a broken request leaves spoils no other."""
    x = torch.zeros(4, 1, 8)
    x[0, 0, :3] = torch.tensor([1e6, -1e6, 465.0])
    x[1, 0, 0], x[2, 0, 1] = float("nan"), float("inf")
    back = dequantize_kv(quantize_kv(x, FORMATS[name]), FORMATS[name], torch.float32)
    assert back.isfinite().all() and (back[3] == 0).all()
    if not FORMATS[name].per_token_head:
        assert back[0, 0, :3].tolist() == [448.0, -448.0, 448.0]


def test_pages_are_renumbered_once_each() -> None:
    metadata = AttentionMetadata.from_lists([1, 1], [5, 9], [[7, 3], [7, 9, 2]], 4)
    pages, inner = renumber_pages(metadata)
    assert pages.tolist() == [0, 2, 3, 7, 9]
    assert pages[inner.block_table.long()].tolist() == metadata.block_table.tolist()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_attention_reads_what_the_bytes_mean(backend: str) -> None:
    torch.manual_seed(0)
    form = FORMATS["int8_per_token_head"]
    quantised, plain = QuantizedKV(get_backend("cpu", backend), form), get_backend("cpu", backend)
    cache = torch.zeros(2, 6, 4, 2, 20, dtype=torch.int8)
    meant = torch.zeros(2, 6, 4, 2, 16)
    metadata = AttentionMetadata.from_lists([1, 6], [5, 6], [[4, 1], [5, 2]], 4)
    key, value = torch.randn(2, 7, 2, 16)
    quantised.store(key, value, cache, metadata.slot_mapping)
    k, v = (dequantize_kv(quantize_kv(x, form), form, torch.float32) for x in (key, value))
    plain.store(k, v, meant, metadata.slot_mapping)
    query = torch.randn(7, 4, 16)
    actual = quantised.forward(query, cache, metadata, 0.25)
    metadata.plan = None
    torch.testing.assert_close(actual, plain.forward(query, meant, metadata, 0.25))


def spec_bytes(name: str) -> int:
    model = load_model(bundled.path("storyteller"), dtype="bfloat16", kv_cache_dtype=name)
    return bytes_per_block(model.kv_cache_spec(), 16)


def test_the_pool_grows() -> None:
    """Bytes of a block: half of bfloat16, and 4 of 64 + 4 for the scale."""
    plain = spec_bytes("auto")
    assert spec_bytes("fp8") * 2 == plain
    assert spec_bytes("int8_per_token_head") * 2 * 64 == plain * 68


KL = {"fp8": 0.5, "int8_per_token_head": 0.02, "fp8_per_token_head": 0.1}


@pytest.mark.parametrize("name", KL)
def test_logits_move_a_little(name: str) -> None:
    """They do move: the cache is really read."""
    folder = bundled.path("storyteller")
    plain = run_prompt(load_model(folder, dtype="float32"), PROMPT)
    other = run_prompt(load_model(folder, dtype="float32", kv_cache_dtype=name), PROMPT)
    assert 0 < kl_divergence(plain, other).mean() < KL[name]


@pytest.mark.parametrize("name", ["fp8", "int8_per_token_head"])
def test_chunks_hits_and_preemptions_change_nothing(name: str) -> None:
    """The same tokens whole, in chunks, from the prefix cache, and with too few blocks."""
    prompts = ["Once upon a time there was a fox named Pip. " * n for n in (1, 2, 3)]
    params = SamplingParams(temperature=0.0, max_tokens=12)

    def tokens(**options: Any) -> list[list[int]]:
        llm = LLM("storyteller", dtype="float32", kv_cache_dtype=name, max_model_len=256, **options)
        for _ in range(2):
            outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    whole = tokens(enable_prefix_caching=False)
    assert tokens() == whole
    assert tokens(max_num_batched_tokens=16) == whole
    assert tokens(num_gpu_blocks=18) == whole


def with_scales(folder: Path, **scales: Tensor) -> Path:
    """storyteller as a compressed-tensors checkpoint that quantises only its cache."""
    shutil.copytree(bundled.path("storyteller"), folder)
    config = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "config_groups": {},
        "kv_cache_scheme": scheme,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    for name, scale in scales.items():
        for layer in range(4):
            tensors[f"model.layers.{layer}.self_attn.{name.replace('__', '.')}"] = scale.clone()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("scales", "meant"),
    [
        (dict(k_scale=torch.tensor(0.5), v_scale=torch.tensor([0.25])), (0.5, 0.25)),
        (dict(k_proj__k_scale=torch.tensor(0.5)), (0.5, 0.5)),
        (dict(kv_scale=torch.tensor(0.5)), (0.5, 0.5)),
        (
            dict(k_proj__output_scale=torch.tensor(2.0), v_proj__output_scale=torch.tensor(3.0)),
            (2.0, 3.0),
        ),
        ({}, (1.0, 1.0)),
    ],
)
def test_scales_come_from_the_checkpoint(
    scales: dict[str, Tensor], meant: tuple[float, float], tmp_path: Path
) -> None:
    folder = with_scales(tmp_path / "m", **scales)
    quant = get_quantization_config(folder)
    assert quant is not None and quant.kv_cache_dtype == "fp8"
    model = load_model(folder, quant=quant, kv_cache_dtype="fp8")
    assert {layer.self_attn.backend.scales for layer in model.model.layers} == {meant}
    load_model(folder, quant=quant, kv_cache_dtype="auto")  # and are not needed otherwise


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor(-1.0), "k_scale is -1.0"),
        (torch.tensor(0.0), "k_scale is 0.0; it must be a finite number above 0"),
        (torch.ones(2), r"has shape \[2\].* asks for \[\]"),
    ],
)
def test_a_wrong_scale_is_refused(scale: Tensor, message: str, tmp_path: Path) -> None:
    folder = with_scales(tmp_path / "m", k_scale=scale)
    with pytest.raises(ValueError, match=message):
        load_model(folder, quant=get_quantization_config(folder), kv_cache_dtype="fp8")


def test_an_unused_scale_is_refused(tmp_path: Path) -> None:
    """Left out in silence, the cache would run at scale 1 (vLLM's issue 25047)."""
    folder = with_scales(tmp_path / "m", attention__k_scale=torch.tensor(0.5))
    quant = get_quantization_config(folder)
    with pytest.raises(ValueError, match=r"does not have, first .*self_attn\.attention\.k_scale"):
        load_model(folder, quant=quant, kv_cache_dtype="fp8")
    load_model(folder, quant=quant)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_dtype is 'int4'.*int8_per_token_head"):
        LLM("storyteller", kv_cache_dtype="int4")
