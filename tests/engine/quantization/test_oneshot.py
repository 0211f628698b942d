"""Quantising offline: what is written is what transformers reads, and better algorithms help."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.entrypoints import info
from mini_vllm.json_files import read_json
from mini_vllm.kernels import native
from mini_vllm.model.build import load_model
from mini_vllm.quantization import get_quantization_config, oneshot
from mini_vllm.quantization.fp8 import dequantize_block
from mini_vllm.quantization.metrics import kl_divergence, perplexity, top1_agreement
from mini_vllm.quantization.oneshot import writer
from mini_vllm.quantization.oneshot.awq import search_scale
from mini_vllm.quantization.oneshot.calibrate import run_prompt
from mini_vllm.quantization.oneshot.gptq import gptq_quantize
from mini_vllm.quantization.oneshot.smoothquant import fold_into_norm, smooth_scales
from mini_vllm.quantization.packing import choose_qparams, dequantize, quantize
from tests.engine.multimodal import seeing
from tests.engine.whole.test_families import save_random

TEXTS = ["Once upon a time there was a lion named Nina. She lived in a house by the sea. " * 3]
PROMPT = list(range(300, 380))


def logits(folder: Path) -> Tensor:
    model = load_model(folder, dtype="float32", quant=get_quantization_config(folder))
    return run_prompt(model, PROMPT)


@pytest.fixture(scope="module")
def original() -> Tensor:
    return run_prompt(load_model(bundled.path("storyteller"), dtype="float32"), PROMPT)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("W4A16", dict(group_size=32)),
        ("W4A16", dict(group_size=-1)),
        ("W8A16", {}),
        ("FP8_DYNAMIC", {}),
        ("W4A16", dict(group_size=32, algorithm="gptq", dataset=TEXTS)),
        ("W4A16", dict(group_size=32, algorithm="awq", dataset=TEXTS)),
    ],
)
def test_transformers_reads_the_same_weights(
    scheme: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = oneshot("storyteller", tmp_path / "out", scheme, **options)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if scheme == "FP8_DYNAMIC":  # they round activations, too; a CPU engine does not
        for module in theirs.modules():
            getattr(module, "quantization_scheme", module).input_activations = None
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    difference = (logits(folder) - expected).abs().max()
    assert difference < (0.5 if scheme == "FP8_DYNAMIC" else 1e-4)


def test_the_formats_own_library_unpacks_the_same_weights(tmp_path: Path) -> None:
    """Asymmetric zero points, too, which transformers cannot load with this version of it."""
    folder = oneshot("storyteller", tmp_path / "out", "W4A16_ASYM", group_size=64)
    weights = QuantizationArgs(num_bits=4, symmetric=False, strategy="group", group_size=64)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    tensors = load_file(folder / "model.safetensors")
    model = load_model(folder, dtype="float32", quant=get_quantization_config(folder))
    linear = model.model.layers[0].mlp.down_proj
    prefix = "model.layers.0.mlp.down_proj."
    mine = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    theirs = PackedQuantizationCompressor.decompress(mine, scheme)["weight"]
    torch.testing.assert_close(
        linear.quant_method.weight(linear), theirs.float(), rtol=8e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("scheme", "options", "limit"),
    [
        ("W8A8", {}, 0.01),
        ("W8A8", dict(algorithm="smoothquant", dataset=TEXTS), 0.01),
        ("W8A16", {}, 0.001),
        ("FP8_DYNAMIC", {}, 0.02),
        ("FP8_BLOCK", {}, 0.02),
        ("W4A16", dict(group_size=32), 0.2),
    ],
)
def test_the_model_stays_what_it_was(
    scheme: str, options: dict[str, Any], limit: float, original: Tensor, tmp_path: Path
) -> None:
    other = logits(oneshot("storyteller", tmp_path / "out", scheme, **options))
    assert 0 < kl_divergence(original, other).mean() < limit


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_beats_rounding_on_its_inputs(act_order: bool) -> None:
    torch.manual_seed(0)
    mixing = torch.randn(64, 64) * torch.logspace(0, 1.5, 64)
    x, weight = torch.randn(400, 64) @ mixing, torch.randn(20, 64)
    stored, scale, zero, group = gptq_quantize(weight, x.T @ x, 4, 16, True, act_order)
    columns = group.long()
    q = (stored - zero[:, columns]) * scale[:, columns]
    nearest = choose_qparams(weight, 4, 16, True)
    plain = dequantize(quantize(weight, *nearest, 4), *nearest)
    limit = 0.7 if act_order else 0.95  # the loud columns, done first, are the better for it
    assert (x @ (q - weight).T).norm() < limit * (x @ (plain - weight).T).norm()


def test_gptq_with_unrelated_inputs_is_rounding() -> None:
    weight = torch.randn(6, 32)
    stored, scale, zero, _ = gptq_quantize(weight, torch.eye(32), 4, 8, False)
    expected = choose_qparams(weight, 4, 8, False)
    assert torch.equal(scale, expected[0]) and torch.equal(zero, expected[1])
    assert torch.equal(stored, quantize(weight, *expected, 4))


def test_gptq_with_dead_inputs() -> None:
    x = torch.randn(50, 16)
    x[:, 5] = 0
    stored, _, zero, _ = gptq_quantize(torch.randn(4, 16), x.T @ x, 4, 16, True)
    assert (stored[:, 5] == zero[:, 0]).all()


def test_folding_keeps_the_product() -> None:
    torch.manual_seed(0)
    x, norm, weight = torch.randn(5, 8), torch.rand(8), torch.randn(3, 8)
    expected = (x * norm) @ weight.T
    scales = smooth_scales((x * norm).abs().amax(0), weight.abs().amax(0))
    fold_into_norm(norm, weight, scales)
    torch.testing.assert_close((x * norm) @ weight.T, expected)
    torch.testing.assert_close((x * norm).abs().amax(0), weight.abs().amax(0))  # alpha = 0.5


def test_awq_protects_what_is_large() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(100, 32), torch.randn(16, 32)
    x[:, 3] *= 40

    def round_trip(w: Tensor) -> Tensor:
        scale, zero = choose_qparams(w, 4, 16, True)
        return dequantize(quantize(w, scale, zero, 4), scale, zero)

    scales, cost = search_scale(x, weight, round_trip)
    plain = (x @ round_trip(weight).T - x @ weight.T).square().mean()
    assert scales.argmax() == 3 and cost < 0.5 * plain


def test_metrics() -> None:
    p = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
    q = torch.tensor([[0.0, 1.0, 3.0], [0.0, 2.0, 1.0]])
    divergence = kl_divergence(p, q)
    expected = torch.nn.functional.kl_div(
        q.double().log_softmax(-1), p.double().log_softmax(-1), log_target=True, reduction="none"
    )
    torch.testing.assert_close(divergence, expected.sum(-1))
    assert kl_divergence(p, p).abs().max() == 0
    masked = torch.tensor([[0.0, -torch.inf]])
    assert kl_divergence(masked, masked).item() == 0
    assert top1_agreement(p, q) == 0.5
    assert perplexity(torch.zeros(4, 8), torch.tensor([1, 2, 3, 4])) == pytest.approx(8)


def test_a_group_that_was_not_asked_for_divides_all_rows(tmp_path: Path) -> None:
    """Of 128, the scheme's, 64 divides the 192, 256 and 576 columns of the bundled model."""
    folder = oneshot("storyteller", tmp_path / "out")
    config = read_json(folder / "config.json")["quantization_config"]
    assert config["config_groups"]["group_0"]["weights"]["group_size"] == 64
    assert logits(folder).isfinite().all()


@pytest.mark.parametrize("scheme", ["W4A16", "W8A8"])
def test_layers_ignored_by_a_pattern_stay_as_they_are(scheme: str, tmp_path: Path) -> None:
    """What is written in full precision is what the folder's own `ignore` says."""
    ignore = ["lm_head", "re:.*mlp.*", "model.layers.0.self_attn.o_proj"]
    options = dict(group_size=32) if scheme == "W4A16" else {}
    folder = oneshot("storyteller", tmp_path / "out", scheme, ignore=ignore, **options)  # type: ignore[arg-type]
    written = load_file(folder / "model.safetensors")
    before = load_file(bundled.path("storyteller") / "model.safetensors")
    kept = {name for name in before if name in written and written[name].is_floating_point()}
    layers = {name for name in before if "_proj.weight" in name}
    assert kept & layers == {n for n in layers if ".mlp." in n or "layers.0.self_attn.o_proj" in n}
    assert all(torch.equal(written[name], before[name]) for name in kept)
    assert logits(folder).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(scheme="W3A16"), "scheme is 'W3A16'; choose one of W4A16"),
        (dict(algorithm="hqq"), "algorithm is 'hqq'; choose one of rtn"),
        (dict(algorithm="gptq"), "algorithm 'gptq' needs a dataset"),
        (dict(algorithm="awq", scheme="W8A8", dataset=TEXTS), "'awq' is for W4A16 and W8A16"),
        (dict(algorithm="smoothquant", dataset=TEXTS), "'smoothquant' is for W8A8"),
        (dict(group_size=50), "group_size 50 does not divide the 192 columns"),
        (dict(scheme="W8A8", group_size=32), "scheme W8A8 has no groups"),
        (dict(group_size=0), "group_size is 0; it must be a whole number of at least 1, or -1"),
        (dict(group_size="32"), "group_size is '32'; it must be a whole number"),
        (dict(ignore=["re:("]), r"ignore has 're:\(', which is no pattern"),
    ],
)
def test_a_wrong_wish_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        oneshot("storyteller", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dataset="One day"), "dataset is the text 'One day'; it must be a list"),
        (dict(ignore="lm_head"), "ignore is the text 'lm_head'; it must be a list"),
        (dict(dataset=[[1, 2], []]), r"dataset\[1\] is \[\]; each must have tokens"),
        (dict(dataset=[[10**6]]), r"dataset\[0\] is \[1000000\]; .* ids of 0 to"),
    ],
)
def test_calibration_texts_must_be_a_list_of_some(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    wish = dict(dataset=TEXTS, algorithm="gptq", group_size=32) | options
    with pytest.raises(ValueError, match=message):
        oneshot("storyteller", tmp_path / "out", **wish)
    assert not (tmp_path / "out").exists()


FAMILIES = ["Phi3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM", "Olmo2ForCausalLM"]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_families_whose_layers_differ(architecture: str, tmp_path: Path) -> None:
    """Projections that the file has stacked, experts and what chooses them, norms elsewhere."""
    source, prompt = tmp_path / "source", [3, 1, 4, 1, 5, 9]
    save_random(architecture, source)
    options = dict(group_size=8, algorithm="gptq", dataset=[list(range(5, 60))])
    folder = oneshot(source, tmp_path / "out", "W4A16", **options)  # type: ignore[arg-type]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompt])).logits[0]
    model = load_model(folder, dtype="float32", quant=get_quantization_config(folder))
    torch.testing.assert_close(run_prompt(model, prompt), expected, rtol=1e-3, atol=1e-3)
    if architecture != "Phi3ForCausalLM":
        with pytest.raises(ValueError, match=f"{architecture} has elsewhere or not at all"):
            oneshot(source, tmp_path / "awq", algorithm="awq", group_size=8, dataset=[[1, 2]])


def test_blocks_of_what_the_file_has_stacked(tmp_path: Path) -> None:
    """Phi-3's q, k and v are one tensor; its blocks end where no projection does."""
    source, prompt = tmp_path / "source", [3, 1, 4, 1, 5, 9]
    save_random("Phi3ForCausalLM", source)
    folder = oneshot(source, tmp_path / "out", "FP8_BLOCK")
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("weight_scale")]:
        scale, weight = tensors.pop(name), name.removesuffix("_scale")
        tensors[weight] = dequantize_block(tensors[weight], scale, (128, 128))
    shutil.copytree(source, tmp_path / "meant")
    save_file(tensors, tmp_path / "meant" / "model.safetensors")
    expected = run_prompt(load_model(tmp_path / "meant", dtype="float32"), prompt)
    model = load_model(folder, dtype="float32", quant=get_quantization_config(folder))
    torch.testing.assert_close(run_prompt(model, prompt), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scheme", ["W4A16", "W8A8", "FP8_DYNAMIC", "int8", "fp8"])
def test_information_counts_numbers_and_not_words(scheme: str, tmp_path: Path) -> None:
    plain = info.describe("storyteller", max_model_len=64)
    if scheme in writer.PRESETS:
        found = info.describe(str(oneshot("storyteller", tmp_path / "out", scheme)))
    else:
        found = info.describe("storyteller", quantization=scheme)
    assert found["parameters"] == plain["parameters"]
    each = 2 if native.multiplies_bf16() else 4  # bytes: a CPU widens so narrow a model's
    if scheme.lower().startswith("fp8"):  # a CPU has no product for it, and widens it
        assert found["weight_bytes"] >= plain["weight_bytes"] / 2
    else:  # a preset leaves the head as it is, and the embedding in 2 bytes
        kept = 2048 * 192 * (each + 2) if scheme in writer.PRESETS else 0
        share = (found["weight_bytes"] - kept) / (plain["weight_bytes"] - kept)
        assert share * each < 1.5
    assert found["fits"]


def test_what_looks_at_pictures_stays_as_it_is(tmp_path: Path) -> None:
    """A model's layers are called as the file calls them, also in `ignore`."""
    source, ids = seeing.save(tmp_path / "model"), list(range(5, 40))
    first = "model.language_model.layers.0."
    ignore = ["lm_head", rf"re:{first}.*"]
    folder = oneshot(source, tmp_path / "out", "W8A16", ignore=ignore)
    tensors = load_file(folder / "model.safetensors")
    assert f"{first}mlp.down_proj.weight" in tensors
    assert first.replace("0", "1") + "mlp.down_proj.weight_packed" in tensors
    expected = run_prompt(load_model(source, dtype="float32"), ids)
    quantised = load_model(folder, dtype="float32", quant=get_quantization_config(folder))
    assert kl_divergence(expected, run_prompt(quantised, ids)).mean() < 0.01


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: Any) -> None:
    def write_half(tensors: Any, file: Path, **options: Any) -> None:
        file.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(writer, "save_file", write_half)
    with pytest.raises(OSError, match=r"out' cannot be written: .*No space left on device"):
        oneshot("storyteller", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_neither_a_second_time_nor_over_another(tmp_path: Path) -> None:
    folder = oneshot("storyteller", tmp_path / "a", "W8A8")
    with pytest.raises(ValueError, match="is quantised already; give the original"):
        oneshot(folder, tmp_path / "b", "W8A8")
    with pytest.raises(FileExistsError, match="exists; choose another output_dir"):
        oneshot("storyteller", tmp_path / "a", "W8A8")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [None, "W4A16", "W8A16", "W8A8", "FP8_DYNAMIC", "int8", "fp8"])
def test_a_compiled_model_says_what_the_plain_one_says(scheme: str | None, tmp_path: Path) -> None:
    """With prompts of several lengths: what was traced for one has to serve the others, too."""
    model: str | Path = "storyteller"
    online = scheme if scheme in ("int8", "fp8") else None
    if scheme and not online:
        model = oneshot(model, tmp_path / "new", scheme)
    usual = dict(dtype="float32", max_model_len=64, num_gpu_blocks=32, quantization=online)
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    prompts = [[300], PROMPT[:9], PROMPT[:33]]
    found = []
    for compiled in (False, True):
        llm = LLM(model, compile_model=compiled, **usual)  # type: ignore[arg-type]
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        assert [output.error for output in outputs] == [None] * 3
        found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]
