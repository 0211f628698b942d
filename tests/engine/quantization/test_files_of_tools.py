"""Checkpoints as the usual tools write them: names, spare tensors, left-over entries."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.families.record import read
from benchmarks.families.tiny import draw
from mini_vllm import LLM, SamplingParams
from mini_vllm.quantization import config as configs
from mini_vllm.quantization.oneshot import oneshot
from tests.engine.quantization.formats import (
    Packed,
    awq,
    compressed_tensors,
    ct_config,
    gptq,
    write,
)

PROMPTS = [[5, 70, 31, 9, 120, 44], [99, 3, 77]]
FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "gptq": (dict(quant_method="gptq", bits=4, group_size=8, sym=True, desc_act=False), gptq),
    "awq": (dict(quant_method="awq", bits=4, group_size=8, zero_point=True), awq),
    "compressed-tensors": (ct_config(4, 8, True), compressed_tensors),
}
NOT_LINEAR = re.compile(r"embed|lm_head|router|gate\.weight|conv1d|norm")


def tokens(folder: Path, **options: Any) -> list[list[int]]:
    llm = LLM(folder, skip_tokenizer_init=True, max_model_len=32, num_gpu_blocks=40, **options)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    return [list(each.outputs[0].token_ids) for each in llm.generate(asked, params)]


def write_family(folder: Path, family: str, form: str, left_out: str) -> None:
    """A quantised checkpoint of a tiny family, except what `left_out` matches, and in
    `folder/plain` the floats that it means."""
    quantization, make = FORMS[form]
    quantization = {**quantization, "ignore": ["lm_head", "re:.*gate$", f"re:.*{left_out}.*"]}
    known, held, meant = read()[family], {}, {}
    for seed, (name, shape) in enumerate(known["shapes"].items()):
        base = name.removesuffix(".weight")
        if base == name or len(shape) != 2 or NOT_LINEAR.search(name) or re.search(left_out, name):
            held[name] = meant[name] = draw(name, shape)
            continue
        packed = Packed(*shape, 4, 8, form != "awq", None, seed)
        meant[name] = packed.weight
        held |= {f"{base}.{suffix}": tensor for suffix, tensor in make(packed).items()}
    for place, tensors, more in (
        (folder / "plain", meant, {}),
        (folder, held, {"quantization_config": quantization}),
    ):
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps({**known["config"], **more}))
        save_file(tensors, place / "model.safetensors")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("family", "left_out"), [
    ("phi", "dense"),
    ("starcoder2", "c_fc"),
    ("mixtral", "experts"),
    ("glm4_moe", "shared_experts"),
    ("granitemoehybrid", "shared_mlp"),
    ("llama4_text", "feed_forward"),
])  # fmt: skip
def test_what_stays_whole_is_named_as_in_the_files(
    family: str, left_out: str, form: str, tmp_path: Path
) -> None:
    write_family(tmp_path, family, form, left_out)
    assert tokens(tmp_path) == tokens(tmp_path / "plain")


def change(folder: Path, **changes: Any) -> None:
    """Change entries of the folder's `quantization_config`."""
    whole = json.loads((folder / "config.json").read_text())
    whole["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(whole))


def add(folder: Path, more: dict[str, Tensor]) -> None:
    save_file(load_file(folder / "model.safetensors") | more, folder / "model.safetensors")


def test_a_substring_of_a_config_does_not_outweigh_the_file(tmp_path: Path) -> None:
    """AutoAWQ lists "gate" for the routers of experts; it is in every gate_proj, too."""
    write_family(tmp_path, "qwen3_moe", "awq", "nothing")
    change(tmp_path, modules_to_not_convert=["gate"])
    assert tokens(tmp_path) == tokens(tmp_path / "plain")


LLAMA = dict(architectures=["LlamaForCausalLM"], vocab_size=128)


def write_llama(folder: Path, form: str = "gptq", **entries: Any) -> Path:
    quantization, make = FORMS[form]

    def pack(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        packed = Packed(rows, columns, 4, 8, form != "awq", None, seed)
        return make(packed), packed.weight

    return write(folder, {**quantization, **entries}, pack, changes=LLAMA)


def test_biases_of_zeros_are_dropped_and_others_refused(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    name = "model.layers.1.mlp.down_proj.bias"
    add(folder, {name: torch.zeros(64), "model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})
    assert tokens(folder) == tokens(folder / "plain")
    add(folder, {name: torch.ones(64)})
    with pytest.raises(ValueError, match=r"first 'model.layers.1.mlp.down_proj.bias'.*biases"):
        tokens(folder)


def test_the_format_may_stand_under_its_newer_name(tmp_path: Path) -> None:
    quantization = {**FORMS["gptq"][0], "sym": False, "format": "gptq_v2"}

    def pack(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        packed = Packed(rows, columns, 4, 8, False, None, seed)
        return gptq(packed, offset=0), packed.weight

    folder = write(tmp_path, quantization, pack, changes=LLAMA)
    assert tokens(folder) == tokens(folder / "plain")


def test_an_order_of_columns_counts_though_the_config_is_silent(tmp_path: Path) -> None:
    def pack(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        order = np.random.default_rng(columns).permutation(np.arange(columns) // 8)
        packed = Packed(rows, columns, 4, 8, True, order, seed)
        return gptq(packed), packed.weight

    folder = write(tmp_path, FORMS["gptq"][0], pack, changes=LLAMA)
    assert tokens(folder) == tokens(folder / "plain")
    with pytest.raises(ValueError, match=r"a share of them has no whole groups"):
        tokens(folder, tensor_parallel_size=2)


def test_zero_points_that_differ_are_not_symmetric(tmp_path: Path) -> None:
    def pack(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        packed = Packed(rows, columns, 4, 8, False, None, seed)
        return gptq(packed), packed.weight

    folder = write(tmp_path, FORMS["gptq"][0], pack, changes=LLAMA)
    with pytest.raises(ValueError, match=r"zero points from \d+ to \d+, and .* set sym to false"):
        tokens(folder)
    change(folder, sym=False)
    assert tokens(folder) == tokens(folder / "plain")


@pytest.mark.parametrize("form", ["gptq", "awq"])
def test_a_left_over_entry_is_said_once(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_llama(tmp_path, form)
    expected = tokens(folder / "plain")
    (folder / "plain/model.safetensors").replace(folder / "model.safetensors")
    with caplog.at_level(logging.WARNING, logger=configs.__name__):
        assert tokens(folder) == expected
    assert len(re.findall("all weights are in full precision", caplog.text)) == 1


def test_rules_and_files_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, "compressed-tensors")
    group = ct_config(4, 8, True)["config_groups"]["group_0"]
    change(folder, config_groups={"group_0": {**group, "targets": ["re:.*mlp.*"]}})
    with pytest.raises(ValueError, match=r"files have .*q_proj' quantised, and no target"):
        tokens(folder)
    change(folder, config_groups={"group_0": group})
    (folder / "plain/model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"config.json: .*q_proj' is quantised, and the files"):
        tokens(folder)


@pytest.mark.parametrize(("entries", "says"), [
    ({"quant_method": "torchao"}, "quant_method is 'torchao'"),
    ({"load_in_4bit": True}, "quant_method is 'bitsandbytes'"),
    ({"bits": 4, "group_size": 64, "mode": "affine"}, "quant_method is 'mlx'"),
])  # fmt: skip
def test_another_format_is_refused_with_a_way_out(
    entries: dict[str, Any], says: str, tmp_path: Path
) -> None:
    whole = write_llama(tmp_path) / "config.json"
    config = json.loads(whole.read_text()) | {"quantization_config": entries}
    whole.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=says + r".*quantization='int8'"):
        tokens(tmp_path)


def test_oneshot_and_the_loader_name_layers_alike(tmp_path: Path) -> None:
    write_family(tmp_path, "phi", "gptq", "nothing")
    folder = oneshot(
        tmp_path / "plain", tmp_path / "out", group_size=8, ignore=["lm_head", "re:.*dense"]
    )
    names = load_file(folder / "model.safetensors").keys()
    assert "model.layers.0.self_attn.dense.weight" in names
    assert "model.layers.0.mlp.fc1.weight_packed" in names
    assert len(tokens(folder)) == len(PROMPTS)


@pytest.mark.parametrize("form", ["gptq", "awq"])
def test_autoround_packs_as_others_do(form: str, tmp_path: Path) -> None:
    entries = dict(quant_method="auto-round", packing_format=f"auto_round:auto_{form}", sym=True)
    entries |= {"bits": 4, "group_size": 8, "data_type": "int", "autoround_version": "0.5"}

    def pack(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        packed = Packed(rows, columns, 4, 8, True, None, seed)
        if "layers.0.self_attn.o_proj" in name:
            return {"weight": packed.weight}, packed.weight
        return FORMS[form][1](packed), packed.weight

    whole = {"model.layers.0.self_attn.o_proj": {"bits": 16}}
    folder = write(tmp_path, {**entries, "extra_config": whole}, pack, changes=LLAMA)
    assert tokens(folder) == tokens(folder / "plain")
    change(folder, extra_config={"model.layers.1.mlp.up_proj": {"bits": 8}})
    with pytest.raises(ValueError, match=r"up_proj'\] has bits 8, and the other layers 4"):
        tokens(folder)
    change(folder, packing_format="auto_round:exllamav2")
    with pytest.raises(ValueError, match="packing_format is 'auto_round:exllamav2'; supported"):
        tokens(folder)


def e4m3(block: tuple[int, int] | None, shape: Any, spare: dict[str, float]) -> Any:
    """A maker of tensors with a scale for each block of rows and columns (None: for all), in a
    `shape` of its own, and scales of activations; in float64 the weight that they mean."""

    def pack(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        draw = np.random.default_rng(seed)
        size = block or (rows, columns)
        numbers = torch.from_numpy(draw.normal(size=(rows, columns))).to(torch.float8_e4m3fn)
        counts = -(-rows // size[0]), -(-columns // size[1])
        scale = draw.uniform(0.05, 0.5, counts).astype(np.float32)
        full = np.kron(scale.astype(np.float64), np.ones(size))[:rows, :columns]
        stored = torch.from_numpy(scale.reshape(shape(*counts)))
        more = {suffix: torch.tensor(value) for suffix, value in spare.items()}
        weight = torch.from_numpy(numbers.double().numpy() * full).float()
        return {"weight": numbers, "weight_scale": stored, **more}, weight

    return pack


OTHERS: dict[str, tuple[dict[str, Any], Any]] = {
    "fbgemm_fp8": (
        dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=[]),
        e4m3((1, 1000), lambda rows, columns: (rows, 1), {}),
    ),
    "FP8": (
        dict(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head"]),
        e4m3(None, lambda rows, columns: (), {"input_scale": 0.3}),
    ),
    "FP8_PER_CHANNEL_PER_TOKEN": (
        dict(quant_method="modelopt", quant_algo="FP8_PER_CHANNEL_PER_TOKEN"),
        e4m3((1, 1000), lambda rows, columns: (rows,), {}),
    ),
    "fp8_pb_wo": (
        dict(quant_method="modelopt", quant_algo="fp8_pb_wo"),
        e4m3((128, 128), lambda rows, columns: (rows, 1, columns, 1), {}),
    ),
}
WIDE = dict(LLAMA, hidden_size=192, intermediate_size=272, head_dim=48)


@pytest.mark.parametrize("form", OTHERS)
def test_fp8_of_meta_and_of_modelopt(form: str, tmp_path: Path) -> None:
    folder = write(tmp_path, *OTHERS[form], changes=WIDE)
    expected = tokens(folder / "plain")
    assert tokens(folder) == expected
    assert tokens(folder, quantization=OTHERS[form][0]["quant_method"]) == expected
    if form != "fp8_pb_wo":  # whose 96 rows of two heads have no whole blocks
        assert tokens(folder, tensor_parallel_size=2) == expected


@pytest.mark.parametrize("is_old", [True, False])
def test_modelopt_leaves_layers_out_and_rounds_the_cache(is_old: bool, tmp_path: Path) -> None:
    """The router's pattern is in the name of every gate_proj, too: the files decide."""
    entries, make = OTHERS["FP8"]

    def pack(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        tensors, weight = make(name, rows, columns, seed)
        if "layers.0.self_attn" in name:
            tensors = {"weight": weight}
        if name.endswith(("k_proj", "v_proj")):
            tensors |= {f"{name[-6]}_scale": torch.tensor(0.02)}
        return tensors, weight

    left_out = ["lm_head", "model.layers.0.self_attn*", "*.gate*"]
    scheme = {"type": "float", "num_bits": 8, "dynamic": False}
    newer = {**entries, "ignore": left_out, "kv_cache_scheme": scheme, "config_groups": {}}
    folder = write(tmp_path, newer, pack, changes=LLAMA)
    in_full = tokens(folder / "plain")
    held = load_file(folder / "model.safetensors").items()
    add(folder / "plain", {name: t for name, t in held if name.endswith(("k_scale", "v_scale"))})
    whole = json.loads((folder / "plain/config.json").read_text())
    only_cache = {"quant_method": "compressed-tensors", "config_groups": {}}
    only_cache["kv_cache_scheme"] = {**scheme, "strategy": "tensor"}
    (folder / "plain/config.json").write_text(
        json.dumps(whole | {"quantization_config": only_cache})
    )
    if is_old:
        whole = json.loads((folder / "config.json").read_text())
        del whole["quantization_config"]
        (folder / "config.json").write_text(json.dumps(whole))
        older = dict(quant_algo="FP8", kv_cache_quant_algo="FP8", exclude_modules=left_out)
        told = {"producer": {"name": "modelopt", "version": "0.19"}, "quantization": older}
        (folder / "hf_quant_config.json").write_text(json.dumps(told))
    assert tokens(folder) == tokens(folder / "plain")
    assert tokens(folder, kv_cache_dtype="float32") == in_full


@pytest.mark.parametrize(("entries", "says"), [
    ({"quantization": {"quant_algo": "NVFP4"}}, "quant_algo is 'NVFP4'; supported: 'FP8', 'FP8_P"),
    ({"quantization": {}}, "quant_algo is None; supported"),
    ({"quantization": ["FP8"]}, "quantization is .'FP8'.; it must be an object"),
    ({"quant_algo": "FP8", "ignore": "lm_head"}, "ignore is 'lm_head'; it must be a list"),
    (
        {"quantization": {"quant_algo": "FP8", "exclude_modules": [5]}},
        "exclude_modules is 5; it must be a list",
    ),
    (
        {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}},
        "kv_cache_quant_algo is 'NVFP4'; supported",
    ),
    (
        {"quant_algo": "FP8", "kv_cache_scheme": {"type": "float", "num_bits": 4}},
        r"kv_cache_scheme has type, bits and dynamic \('float', 4, None\)",
    ),
])  # fmt: skip
def test_another_algorithm_of_modelopt_is_named(
    entries: dict[str, Any], says: str, tmp_path: Path
) -> None:
    whole = write_llama(tmp_path) / "config.json"
    config = json.loads(whole.read_text())
    del config["quantization_config"]
    whole.write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=r"hf_quant_config.json: quantization_config: " + says):
        tokens(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e8m0fnu])
@pytest.mark.parametrize("block", [None, [16, 16]])
def test_scales_of_fp8_as_transformers_writes_them(
    block: list[int] | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    """One name for scales of blocks and of whole matrices, and scales that are powers of two."""

    def pack(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
        shape = [-(-rows // 16), -(-columns // 16)] if block else []
        scale = 2.0 ** torch.randint(-4, -1, shape, generator=generator)
        full = torch.from_numpy(np.kron(scale.numpy(), np.ones((16, 16)))) if block else scale
        wide = (weight.float() * full[:rows, :columns] if block else weight.float() * full).float()
        return {"weight": weight, "weight_scale_inv": scale.to(dtype)}, wide

    quantization = dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=block)
    folder = write(tmp_path, {**quantization, "kv_cache_scheme": "static"}, pack, changes=LLAMA)
    add(folder, {"model.layers.0.self_attn.q_scale": torch.tensor([0.5])})
    assert tokens(folder) == tokens(folder / "plain")


def vectors(folder: Path) -> Tensor:
    llm = LLM(
        folder, skip_tokenizer_init=True, max_model_len=32, num_gpu_blocks=40, convert="embed"
    )
    asked = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    return torch.tensor([each.outputs.embedding for each in llm.embed(asked)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_decoder_that_embeds_may_be_quantised(prefix: str, form: str, tmp_path: Path) -> None:
    """Its architecture has no language model's head, and its tensors often no `model.`."""
    left_out = "layers.0.mlp" if form == "compressed-tensors" else "layers.0.self_attn.o_proj"
    write_family(tmp_path, "qwen3", form, left_out)
    expected = vectors(tmp_path / "plain")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    whole = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["Qwen3Model"]}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    torch.testing.assert_close(vectors(tmp_path), expected, rtol=1e-4, atol=1e-4)
