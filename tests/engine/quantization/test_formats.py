"""Every format gives, in float32, the logits of the weights that it means."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mini_vllm.config import EngineConfig, ModelConfig
from mini_vllm.engine.checked_config import check_shape
from mini_vllm.model.build import load_model
from mini_vllm.model.config import load_config
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.fp8 import quantize_block
from mini_vllm.quantization.int8 import W8A8LinearMethod, quantize_per_token
from mini_vllm.quantization.oneshot.calibrate import run_prompt
from tests.engine.quantization.formats import (
    Packed,
    awq,
    compressed_tensors,
    ct_config,
    gptq,
    write,
)

Make = Callable[[str, int, int, int], tuple[dict[str, Tensor], Tensor]]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def packed(
    form: Callable[[Packed], dict[str, Tensor]],
    bits: int,
    group: int,
    symmetric: bool,
    act_order: bool = False,
) -> Make:
    def make(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        size = columns if group == -1 else group
        order = None
        if act_order:  # the same for all that read the same input
            order = np.random.default_rng(columns).permutation(np.arange(columns) // size)
        p = Packed(rows, columns, bits, size, symmetric, order, seed)
        return form(p), p.weight

    return make


GPTQ = dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=True)
AWQ = dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm")
FORMATS: dict[str, tuple[dict[str, Any], Make]] = {
    "ct sym": (ct_config(4, 32, True), packed(compressed_tensors, 4, 32, True)),
    "ct asym": (ct_config(4, 16, False), packed(compressed_tensors, 4, 16, False)),
    "ct channel": (ct_config(4, -1, True), packed(compressed_tensors, 4, -1, True)),
    "ct order": (
        ct_config(4, 32, True, actorder="group"),
        packed(compressed_tensors, 4, 32, True, act_order=True),
    ),
    "ct dynamic order": (  # another word for "group"
        ct_config(4, 32, True, actorder="dynamic"),
        packed(compressed_tensors, 4, 32, True, act_order=True),
    ),
    "ct static order": (  # of rounding only
        ct_config(4, 32, True, actorder="static"),
        packed(compressed_tensors, 4, 32, True),
    ),
    "ct 8 bits": (ct_config(8, 32, True), packed(compressed_tensors, 8, 32, True)),
    "ct 8 asym": (ct_config(8, -1, False), packed(compressed_tensors, 8, -1, False)),
    "gptq": (GPTQ, packed(gptq, 4, 32, True)),
    "gptq asym": ({**GPTQ, "sym": False}, packed(gptq, 4, 32, False)),
    "gptq v2": (
        {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"},
        packed(lambda p: gptq(p, offset=0), 4, 32, False),
    ),
    "gptq order": ({**GPTQ, "desc_act": True}, packed(gptq, 4, 32, True, act_order=True)),
    "gptq row": ({**GPTQ, "group_size": -1, "desc_act": True}, packed(gptq, 4, -1, True)),
    "gptq 8 bits": ({**GPTQ, "bits": 8}, packed(gptq, 8, 32, True)),
    "gptq marlin": ({**GPTQ, "quant_method": "GPTQ_Marlin"}, packed(gptq, 4, 32, True)),
    "awq": (AWQ, packed(awq, 4, 32, False)),
}


def fp8(block: tuple[int, int] | None, scale_name: str, per_tensor: bool = False) -> Make:
    def make(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.1
        if "gate" in name or "k_proj" in name:
            weight *= 10  # a projection that its neighbour's scale would not fit
        used = block or ((rows, columns) if per_tensor else (1, columns))
        numbers, scale = quantize_block(weight, used)
        full = scale.repeat_interleave(used[0], 0)[:rows]
        full = full.repeat_interleave(used[1], 1)[:, :columns]
        meant = numbers.float() * full
        stored = scale.reshape([]) if per_tensor else scale
        return {"weight": numbers, scale_name: stored}, meant

    return make


FLOAT = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
DYNAMIC = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
CT_FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": FLOAT, "input_activations": DYNAMIC}
    },
    "ignore": ["lm_head"],
}
FP8_FORMATS: dict[str, tuple[dict[str, Any], Make]] = {
    "fp8 dynamic": (CT_FP8, fp8(None, "weight_scale")),
    "fp8 block": (
        dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[32, 48]),
        fp8((32, 48), "weight_scale_inv"),
    ),
    "fp8 odd block": (
        dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[40, 40]),
        fp8((40, 40), "weight_scale_inv"),
    ),
    "fp8 tensor": (
        dict(quant_method="fp8", activation_scheme="dynamic"),
        fp8(None, "weight_scale", per_tensor=True),
    ),
}


def logits(folder: Path, **options: Any) -> Tensor:
    quant = get_quantization_config(folder)
    return run_prompt(load_model(folder, quant=quant, **options), PROMPT)


@pytest.mark.parametrize("name", [*FORMATS, *FP8_FORMATS])
def test_float32_is_exact(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, *(FORMATS | FP8_FORMATS)[name])
    expected = logits(folder / "plain")
    torch.testing.assert_close(logits(folder), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ct asym", "gptq order", "awq"])
def test_bfloat16_is_near(name: str, tmp_path: Path) -> None:
    """64 rows and groups of 32: torch's int4 product takes part where it fits."""
    folder = write(tmp_path, *FORMATS[name])
    expected, actual = logits(folder / "plain"), logits(folder, dtype="bfloat16")
    assert (actual - expected).std() / expected.std() < 0.03


@pytest.mark.parametrize("name", ["ct sym", "gptq", "awq", "ct 8 bits"])
def test_the_weights_take_their_packed_bytes(name: str, tmp_path: Path) -> None:
    """And nothing else: no second copy, neither packed nor unpacked."""
    folder = write(tmp_path, *FORMATS[name])
    bits = 8 if "8" in name else 4
    for dtype in ("float32", "bfloat16"):
        model = load_model(folder, dtype=dtype, quant=get_quantization_config(folder))
        for layer in model.model.layers:
            linear = layer.mlp.gate_up_proj
            tensors = [v for v in vars(linear).values() if isinstance(v, Tensor)]
            held = sum(t.nbytes for t in [*tensors, *linear.parameters()])
            numbers = 2 * 96 * 64
            assert held <= numbers * bits / 8 + numbers / 32 * 5


def test_int8_rounds_activations_token_by_token(tmp_path: Path) -> None:
    def make(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.1
        numbers, scale = quantize_per_token(weight)
        return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    inputs = {**DYNAMIC, "type": "int"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    config = dict(
        quant_method="compressed-tensors",
        format="int-quantized",
        config_groups={"group_0": group},
        ignore=["lm_head"],
    )
    folder = write(tmp_path, config, make)
    plain = load_model(folder / "plain")
    for module in plain.modules():  # what the format promises, by hooks
        if type(module).__name__ == "Linear" and module.prefix != "lm_head":
            module.register_forward_pre_hook(lambda _, args: (fake_int8(args[0]),))
    quantised = load_model(folder, quant=get_quantization_config(folder))
    assert isinstance(quantised.model.layers[0].mlp.down_proj.quant_method, W8A8LinearMethod)
    actual, expected = run_prompt(quantised, PROMPT), run_prompt(plain, PROMPT)
    assert (actual - expected).std() / expected.std() < 0.01


STATIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}


def static_int8(scale: float) -> tuple[dict[str, Any], Make]:
    """A scale for all weights of a projection, and one for its inputs; v_proj's is `scale`."""

    def make(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randint(-127, 128, (rows, columns), generator=generator).to(torch.int8)
        inputs = torch.tensor(scale if "v_proj" in name else 0.02)
        tensors = {
            "weight": numbers,
            "weight_scale": torch.tensor([0.002]),
            "input_scale": inputs,
        }
        return tensors, numbers.float() * 0.002

    group = {"targets": ["Linear"], "weights": STATIC, "input_activations": STATIC}
    config = dict(
        quant_method="compressed-tensors",
        format="int-quantized",
        config_groups={"group_0": group},
        ignore=["lm_head"],
    )
    return config, make


def test_int8_rounds_activations_with_the_scale_of_the_file(tmp_path: Path) -> None:
    """Projections that read the same input share the largest of their scales."""
    folder = write(tmp_path, *static_int8(0.03))
    plain = load_model(folder / "plain")

    def round_input(module: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        scale = 0.03 if module.prefix.endswith("qkv_proj") else 0.02
        return ((args[0] / scale).round().clamp(-128, 127) * scale,)

    for module in plain.modules():
        if type(module).__name__ == "Linear" and module.prefix != "lm_head":
            module.register_forward_pre_hook(round_input)
    torch.testing.assert_close(logits(folder), run_prompt(plain, PROMPT), rtol=1e-3, atol=1e-3)


def fake_int8(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def change(folder: Path, name: str, tensor: Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


K = "model.layers.1.self_attn.k_proj."


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("scales", None, rf"1 tensor\(s\) missing from .*{K}scales"),
        ("scales", torch.ones(4, 32), r"has shape \[4, 32\]; config.json asks for \[2, 32\]"),
        ("input_scale", torch.ones(1), rf"does not have, first '{K}input_scale'"),
        ("qweight", torch.ones(8, 32), "has dtype F32; the model holds it as torch.int32"),
        ("scales", torch.full((2, 32), float("nan")), "qkv_proj' has a scale that is not finite"),
    ],
)
def test_a_wrong_tensor_is_named(
    name: str, tensor: Tensor | None, message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, *FORMATS["gptq"])
    change(folder, K + name, tensor)
    with pytest.raises(ValueError, match=message):
        logits(folder)


def test_a_wrong_weight_shape_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, *FORMATS["ct sym"])
    change(folder, K + "weight_shape", torch.tensor([32, 72]))
    with pytest.raises(
        ValueError, match=r"qkv_proj' has a weight_shape of \[32, 72\]; .*\[32, 64\]"
    ):
        logits(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, r"config.json: quantization_config: bits is 3; supported: 4, 8"),
        ({"group_size": ...}, r"config.json: quantization_config has none of group_size; add what"),
        ({"bits": 4.0}, "bits is 4.0; supported: 4, 8"),
        ({"group_size": 48}, "qkv_proj': group_size 48 does not divide the 64 columns"),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; supported are"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    ],
)
def test_a_wrong_config_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config, make = FORMATS["gptq"]
    both = {**config, **changes}
    folder = write(tmp_path, {k: v for k, v in both.items() if v is not ...}, make)
    with pytest.raises(ValueError, match=message):
        logits(folder)


def test_the_argument_and_the_checkpoint_must_agree(tmp_path: Path) -> None:
    folder = write(tmp_path, *FORMATS["awq"])
    for same in ("awq", "awq_marlin", "AWQ_Marlin"):
        assert get_quantization_config(folder, same) is not None
    with pytest.raises(ValueError, match=r"quantization is 'gptq', but config.json says 'awq'"):
        get_quantization_config(folder, "gptq")
    with pytest.raises(ValueError, match="quantization is 'awq', but the checkpoint is not quant"):
        get_quantization_config(folder / "plain", "awq")
    for wrong in (5, True, ["int8"]):
        with pytest.raises(ValueError, match="it must be a name, such as 'int8', or left out"):
            ModelConfig("storyteller", quantization=wrong)  # type: ignore[arg-type]


def test_the_old_name_of_the_entry_is_read(tmp_path: Path) -> None:
    """compressed-tensors wrote "compression_config" once."""
    folder = write(tmp_path, *FORMATS["ct sym"])
    config = json.loads((folder / "config.json").read_text())
    config["compression_config"] = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    torch.testing.assert_close(logits(folder), logits(folder / "plain"), rtol=1e-4, atol=1e-4)


def test_a_remark_on_sparsity_is_taken_and_a_sparse_format_refused(tmp_path: Path) -> None:
    """llm-compressor wrote down how many zeros it found, also where it kept all numbers."""
    entry = {"format": "dense", "global_sparsity": 0.14, "ignore": ["model.layers.0.mlp.up_proj"]}
    config, make = FORMATS["ct sym"]
    folder = write(tmp_path, {**config, "sparsity_config": entry}, make)
    torch.testing.assert_close(logits(folder), logits(folder / "plain"), rtol=1e-4, atol=1e-4)
    changed = json.loads((folder / "config.json").read_text())
    changed["quantization_config"]["sparsity_config"]["format"] = "sparse-24-bitmask"
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="sparsity_config is not supported"):
        logits(folder)


@pytest.mark.parametrize("name", ["gptq", "gptq order", "awq"])
@pytest.mark.parametrize("file", ["quantize_config.json", "quant_config.json"])
def test_an_entry_in_a_file_of_its_own_is_read(name: str, file: str, tmp_path: Path) -> None:
    """AutoGPTQ and AutoAWQ wrote it so before `config.json` had an entry for it."""
    folder = write(tmp_path, *FORMATS[name])
    config = json.loads((folder / "config.json").read_text())
    entry = config.pop("quantization_config")
    method = entry.pop("quant_method")
    if method == "awq":
        spelled = {"bits": "w_bit", "group_size": "q_group_size"}
        entry = {spelled.get(key, key): value for key, value in entry.items()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / file).write_text(json.dumps(entry))
    (folder / file).write_text(json.dumps(entry | {"bits": 3, "w_bit": 3}))
    with pytest.raises(ValueError, match=f"{file}: quantization_config: bits is 3"):
        get_quantization_config(folder)
    (folder / file).write_text(json.dumps(entry))
    (folder / "plain" / file).write_text(json.dumps(entry))  # left behind beside plain weights
    torch.testing.assert_close(logits(folder), logits(folder / "plain"), rtol=1e-4, atol=1e-4)
    assert get_quantization_config(folder, method) is not None


def test_the_check_at_the_start_knows_overrides(tmp_path: Path) -> None:
    folder = write(tmp_path, *FORMATS["gptq"])
    config = json.loads((folder / "config.json").read_text())
    overrides = {"quantization_config": config.pop("quantization_config")}
    (folder / "config.json").write_text(json.dumps(config))
    wanted = EngineConfig.from_kwargs(
        str(folder), quantization="gptq", hf_overrides=overrides, max_model_len=64
    )
    check_shape(wanted, load_config(folder, overrides))


@pytest.mark.parametrize("scale", [0.0, -0.5, float("nan")])
def test_a_wrong_scale_of_activations_is_named(scale: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"qkv_proj' has an input_scale of {scale}; it must be"):
        logits(write(tmp_path, *static_int8(scale)))


def test_what_the_file_leaves_in_full_precision_stays(tmp_path: Path) -> None:
    """AWQ and GPTQ files need not say what they leave out: the tensors' dtypes do."""
    config, make = FORMATS["awq"]

    def some(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        if "layers.0.mlp" not in name:
            return make(name, rows, columns, seed)
        weight = torch.randn(rows, columns)
        return {"weight": weight}, weight

    folder = write(tmp_path, config, some)
    torch.testing.assert_close(logits(folder), logits(folder / "plain"), rtol=1e-4, atol=1e-4)


def test_rules_of_gptqmodel_say_how_layers_differ(tmp_path: Path) -> None:
    """As of Qwen's own checkpoints, which leave the attention out, and of mixed bits."""
    config, make = FORMATS["gptq"]
    _, eight = FORMATS["gptq 8 bits"]

    def some(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        if "self_attn" in name:
            weight = torch.randn(rows, columns)
            return {"weight": weight}, weight
        return (eight if "down_proj" in name else make)(name, rows, columns, seed)

    more = {key: FORMATS["gptq 8 bits"][0][key] for key in ("bits", "group_size", "sym")}
    rules = {"lm_head": {}, "-:.*attn.*": {}, r"+:.*\.down_proj": more, ".*mlp.*": {}}
    folder = write(tmp_path, config | {"dynamic": rules}, some)
    torch.testing.assert_close(logits(folder), logits(folder / "plain"), rtol=1e-4, atol=1e-4)
    for wrong, says in (
        ({"-:(": {}}, "dynamic has 're:\\(', which is no pattern"),
        ({".*": {"bits": 3}}, "bits is 3; supported: 4, 8"),
        ({".*": 8}, "must be an object"),
        ({".*up_proj": more}, "gate_up_proj' is one matrix here, and 'dynamic'"),
    ):
        whole = json.loads((folder / "config.json").read_text())
        whole["quantization_config"]["dynamic"] = wrong
        (folder / "config.json").write_text(json.dumps(whole))
        with pytest.raises(ValueError, match=says):
            logits(folder)


@pytest.mark.parametrize("fmt", ["e4m3", "float8_e4m3fn"])
def test_fp8_is_spelled_in_two_ways(fmt: str, tmp_path: Path) -> None:
    config, make = FP8_FORMATS["fp8 block"]
    folder = write(tmp_path, config | {"fmt": fmt}, make)
    torch.testing.assert_close(logits(folder), logits(folder / "plain"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", [*FORMATS, *FP8_FORMATS])
def test_dummy_weights_need_no_files(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, *(FORMATS | FP8_FORMATS)[name])
    (folder / "model.safetensors").unlink()
    assert logits(folder, load_format="dummy").isfinite().all()


def test_a_quantised_file_needs_its_config(tmp_path: Path) -> None:
    folder = write(tmp_path, *FORMATS["gptq"])
    with pytest.raises(ValueError, match=r"has dtype I32.*quantization_config"):
        load_model(folder)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("fp8", "quantization_config is 'fp8'"),
        ({"quant_method": "awq", "modules_to_not_convert": 3}, "modules_to_not_convert is 3"),
        ({"quant_method": "fp8", "ignored_layers": [3]}, "ignored_layers is 3"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size is 128"),
        ({"quant_method": "fp8", "weight_block_size": ["a", 1]}, "weight_block_size is 'a'"),
        ({"quant_method": "compressed-tensors", "ignore": ["re:("]}, "no pattern"),
        ({"quant_method": "compressed-tensors", "ignore": "lm_head"}, "ignore is 'lm_head'"),
        ({"quant_method": "compressed-tensors", "config_groups": []}, "config_groups is"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": None}}, "config_groups.g"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": "Linear"}}},
            "config_groups.g.targets is 'Linear'",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 4}}},
            "config_groups.g.weights is 4",
        ),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": "fp8"}, "kv_cache_scheme is"),
    ],
)
def test_a_value_of_another_kind_is_named(tmp_path: Path, wrong: Any, named: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": wrong}))
    with pytest.raises(ValueError, match=re.escape(named)):
        get_quantization_config(tmp_path)
