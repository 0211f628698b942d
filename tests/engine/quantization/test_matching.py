"""Rules about layers name the modules of a checkpoint, as compressed-tensors reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mini_vllm.model.build import load_model
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.matching import find_group, find_matched_target, is_layer_skipped
from mini_vllm.quantization.oneshot.calibrate import run_prompt
from tests.engine.quantization.formats import Packed, awq, compressed_tensors, ct_config, write

STACKED = LlamaForCausalLM.stacked
WHOLE = resolve_model_class(["Phi3ForCausalLM"]).stacked
ATTENTION, MLP = "model.layers.0.self_attn.", "model.layers.0.mlp."
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TARGETS = [
    "Linear",
    "re:.*q_proj",
    "re:.*[qkv]_proj",
    "re:.*mlp.*",
    "re:.*self_attn.*",
    f"{ATTENTION}o_proj",
    f"{ATTENTION}k_proj",
    "re:.*v_proj$",
    "down_proj",
    "re:model.layers.1.*",
]


@pytest.mark.parametrize("seed", range(30))
def test_a_module_belongs_to_the_target_that_the_library_finds(seed: int) -> None:
    from compressed_tensors.utils.match import match_targets

    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(TARGETS), generator=generator).tolist()
    targets = [TARGETS[index] for index in order[: 1 + seed % len(TARGETS)]]
    linear = torch.nn.Linear(2, 2)
    for part in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        name = (MLP if part in ("gate_proj", "up_proj", "down_proj") else ATTENTION) + part
        told = match_targets(name, linear, targets)
        assert find_matched_target(name, targets) == next(iter(told), None), (name, targets)


@pytest.mark.parametrize(("rules", "expected"), [
    (["re:.*v_proj"], ValueError),
    (["re:.*up_proj"], None),
    (["re:.*[qkv]_proj"], True),
    (["re:.*qkv_proj"], False),
    ([f"{ATTENTION}qkv_proj"], True),
    ([f"{ATTENTION}q_proj", f"{ATTENTION}k_proj", "re:.*v_proj$"], True),
    ([f"{ATTENTION}q_proj"], ValueError),
    (["re:.*self_attn.*"], True),
    ([], False),
])  # fmt: skip
def test_a_stacked_layer_is_listed_by_its_parts(rules: list[str], expected: Any) -> None:
    if expected is ValueError:
        with pytest.raises(ValueError, match="quantise all of it or nothing"):
            is_layer_skipped(f"{ATTENTION}qkv_proj", rules, STACKED)
        return
    assert is_layer_skipped(f"{ATTENTION}qkv_proj", rules, STACKED) is bool(expected)


def test_a_name_that_ends_as_a_part_does_is_not_that_part() -> None:
    with pytest.raises(ValueError, match="gate_up_proj"):
        is_layer_skipped(f"{MLP}gate_up_proj", ["re:.*up_proj"], STACKED)
    with pytest.raises(ValueError, match="qkv_proj"):
        is_layer_skipped(f"{ATTENTION}qkv_proj", ["v_proj"], STACKED, by_substring=True)
    assert is_layer_skipped(f"{ATTENTION}qkv_proj", ["self_attn"], STACKED, by_substring=True)
    assert not is_layer_skipped(f"{MLP}down_proj", ["re:.*up_proj"], STACKED)


def test_a_checkpoint_that_stacks_itself_is_asked_by_its_own_names() -> None:
    assert is_layer_skipped(f"{ATTENTION}qkv_proj", ["re:.*qkv_proj"], WHOLE)
    assert is_layer_skipped(f"{ATTENTION}qkv_proj", ["qkv_proj"], WHOLE, by_substring=True)
    assert find_group(f"{MLP}gate_up_proj", {"re:.*gate_up_proj": {"a": 1}}, WHOLE) == {"a": 1}


def test_parts_of_different_groups_are_refused_with_their_names() -> None:
    groups = {"re:.*q_proj": {"bits": 8}, "Linear": {"bits": 4}}
    with pytest.raises(ValueError, match=r"q_proj by 're:\.\*q_proj', .*k_proj by 'Linear'"):
        find_group(f"{ATTENTION}qkv_proj", groups, STACKED)
    with pytest.raises(ValueError, match=r"k_proj by None"):
        find_group(f"{ATTENTION}qkv_proj", {"re:.*q_proj": {"bits": 8}}, STACKED)
    same = {"re:.*q_proj": {"bits": 4}, "Linear": {"bits": 4}}
    assert find_group(f"{ATTENTION}qkv_proj", same, STACKED) == {"bits": 4}


# ------------------------------------------------------------------ whole checkpoints


def make_mixed(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """8 bits for what reads a layer's input, 4 for the rest."""
    part = name.rpartition(".")[2]
    bits = 8 if part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj") else 4
    p = Packed(rows, columns, bits, 16, True, None, seed)
    return compressed_tensors(p), p.weight


@pytest.mark.parametrize("first", ["patterns", "Linear"])
def test_groups_by_pattern_and_linear_for_the_rest(first: str, tmp_path: Path) -> None:
    four, eight = (ct_config(bits, 16, True)["config_groups"]["group_0"] for bits in (4, 8))
    eight["targets"] = ["re:.*q_proj", "re:.*k_proj", "re:.*v_proj$", "re:.*(gate|up)_proj"]
    groups = [("patterns", eight), ("Linear", four)]
    groups = groups if first == "patterns" else groups[::-1]
    config = ct_config(4, 16, True) | {"config_groups": dict(groups)}
    folder = write(tmp_path, config, make_mixed)
    model = load_model(folder, quant=get_quantization_config(folder), dtype="float32")
    expected = run_prompt(load_model(folder / "plain", dtype="float32"), PROMPT)
    torch.testing.assert_close(run_prompt(model, PROMPT), expected, rtol=1e-4, atol=1e-4)


def unpack(folder: Path, fits: str) -> None:
    """Hold the layers whose name contains `fits` as they are in `folder/plain`."""
    tensors, plain = (load_file(each / "model.safetensors") for each in (folder, folder / "plain"))
    for name in plain:
        base = name.removesuffix(".weight")
        if name.endswith("_proj.weight") and fits in base:
            packed = [key for key in tensors if key.startswith(f"{base}.") and key not in plain]
            for key in packed:
                del tensors[key]
            tensors[name] = plain[name]
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(("fits", "rule"), [
    ("self_attn", "re:.*self_attn.*"),
    ("layers.0.mlp", "re:.*layers.0.*(gate|up|down)_proj"),
    ("o_proj", "re:.*o_proj$"),
])  # fmt: skip
@pytest.mark.parametrize("form", ["compressed-tensors", "awq"])
def test_what_is_left_out_by_a_pattern_stays_whole(
    form: str, fits: str, rule: str, tmp_path: Path
) -> None:
    def make(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        p = Packed(rows, columns, 4, 16, form != "awq", None, seed)
        return (awq if form == "awq" else compressed_tensors)(p), p.weight

    config = ct_config(4, 16, True) | {"ignore": ["lm_head", rule]}
    if form == "awq":
        config = dict(quant_method="awq", bits=4, group_size=16, zero_point=True)
        config["modules_to_not_convert"] = [rule]
    folder = write(tmp_path, config, make)
    unpack(folder, fits)
    model = load_model(folder, quant=get_quantization_config(folder), dtype="float32")
    expected = run_prompt(load_model(folder / "plain", dtype="float32"), PROMPT)
    torch.testing.assert_close(run_prompt(model, PROMPT), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("where", ["top", "text_config"])
@pytest.mark.parametrize("name", ["quantization_config", "compression_config"])
def test_every_home_of_the_config_is_read(name: str, where: str, tmp_path: Path) -> None:
    config = ct_config(4, 16, True)
    entries: dict[str, Any] = {name: config}
    if where == "text_config":
        entries = {"text_config": entries}
    entries["architectures"] = ["Qwen3VLForConditionalGeneration"]
    (tmp_path / "config.json").write_text(json.dumps(entries))
    found = get_quantization_config(tmp_path)
    assert found is not None and found.name == "compressed-tensors"
