"""Damaged checkpoints, made by rule: every entry with wrong values, every file with wrong contents.

Each is a ValueError that names the file, the entry and the value. None loads quietly, and none
shows an exception of a library.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mini_vllm import LLM, bundled
from mini_vllm.errors import show
from mini_vllm.model.build import load_model
from mini_vllm.model.checkpoint import TensorInfo, read_header
from mini_vllm.model.checkpoint_files import check_weight_map, load_tokenizer
from mini_vllm.model.config import ModelArgs, load_config
from mini_vllm.model.config_schema import CONFIG, ROPE
from mini_vllm.model.loader import weight_targets

NAN, HUGE = float("nan"), 10**30

WRONG: dict[str, list[Any]] = {
    "size": [None, "8", -2, 0, 2.0, True, [1], HUGE],
    "optional size": ["8", -2, 0, 2.0, True, [1], HUGE],
    "bool": [None, "true", 0, 1, [True]],
    "optional bool": ["true", 0, 1, [True], {}],
    "positive": [None, "0.5", 0, -1, NAN, HUGE * HUGE, True, [1.0]],
    "optional positive": ["0.5", -1, NAN, HUGE * HUGE, True, [1.0]],
    "factor": [None, "2", 0, 0.5, -4.0, NAN, [2.0]],
    "share": [None, "0", -0.1, NAN, [0.0]],
    "string": [None, 1, True, ["float32"], {}],
    "optional string": [1, True, 2.5, ["float32"], {}],
    "object": ["yarn", 1, True, [], [["rope_type", "linear"]]],
    "token ids": ["2", -2, 2.0, True, [None], ["2"], {"2": 2}],
    "activation": [None, "gelu", 1, ["silu"], {}],
    "ratio": [None, "1", 0, -1.0, NAN, 1.5, [1.0]],
    "activation or none": ["gelu", 1, ["silu"], {}, True],
    "nothing": ["30", 30.0, 0, False, [30.0]],
    "off": [True, 1, "no", [1], {"a": 1}],
    "layer numbers": ["3", 3, ["3"], [-1], [2.0], {}],
    "factors": [None, "1", 1.0, ["1.0"], {}, [1.0, 0.0], [-1.0], [NAN]],
    "positions before": ["8", -2, 0, 1, 2.0, True, [1], HUGE],
    "count": [None, "8", -2, 2.0, True, [1], HUGE],
    "layer types": ["full_attention", ["full_attention"], ["chunked_attention"] * 2, [1, 2], {}],
    "classes": [None, "Qwen3ForCausalLM", 1, [1], {"Qwen3ForCausalLM": 1}],
}

CONFIG_KINDS = {
    "architectures": "classes",
    "vocab_size": "size",
    "hidden_size": "size",
    "intermediate_size": "size",
    "num_hidden_layers": "size",
    "num_attention_heads": "size",
    "num_key_value_heads": "optional size",
    "head_dim": "optional size",
    "max_position_embeddings": "size",
    "original_max_position_embeddings": "positions before",
    "hidden_act": "activation",
    "hidden_activation": "activation or none",
    "rope_local_base_freq": "positive",
    "partial_rotary_factor": "ratio",
    "query_pre_attn_scalar": "positive",
    "sliding_window_pattern": "optional size",
    "attn_logit_softcapping": "nothing",
    "final_logit_softcapping": "nothing",
    "use_bidirectional_attention": "off",
    "num_experts": "count",
    "num_experts_per_tok": "size",
    "moe_intermediate_size": "size",
    "decoder_sparse_step": "size",
    "mlp_only_layers": "layer numbers",
    "norm_topk_prob": "bool",
    "rms_norm_eps": "positive",
    "rope_theta": "positive",
    "rope_parameters": "object",
    "rope_scaling": "object",
    "tie_word_embeddings": "bool",
    "attention_bias": "bool",
    "mlp_bias": "bool",
    "use_sliding_window": "optional bool",
    "sliding_window": "optional size",
    "max_window_layers": "optional size",
    "layer_types": "layer types",
    "eos_token_id": "token ids",
    "dtype": "optional string",
    "torch_dtype": "optional string",
    "quantization_config": "object",
    "model_type": "string",
    "bos_token_id": "token ids",
    "pad_token_id": "token ids",
    "attention_dropout": "share",
    "initializer_range": "share",
    "transformers_version": "optional string",
    "use_cache": "bool",
}
LEGAL_ZERO = {"max_window_layers", "attention_dropout", "initializer_range"}

ROPE_KINDS = {
    "rope_type": "string",
    "type": "string",
    "rope_theta": "positive",
    "factor": "factor",
    "low_freq_factor": "positive",
    "high_freq_factor": "positive",
    "original_max_position_embeddings": "positions before",
    "beta_fast": "optional positive",
    "beta_slow": "optional positive",
    "attention_factor": "optional positive",
    "mscale": "optional positive",
    "mscale_all_dim": "optional positive",
    "truncate": "bool",
    "partial_rotary_factor": "ratio",
    "short_factor": "factors",
    "long_factor": "factors",
    "max_position_embeddings": "optional size",
}


def cases(kinds: dict[str, str]) -> list[tuple[str, Any]]:
    return [
        (key, value)
        for key, kind in kinds.items()
        for value in WRONG[kind]
        if not (value == 0 and not isinstance(value, bool) and key in LEGAL_ZERO)
    ]


def write(folder: Path, content: Any, name: str = "config.json") -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture
def config() -> dict[str, Any]:
    return json.loads((bundled.path("storyteller-draft") / "config.json").read_text())


def refused(folder: Path) -> str:
    with pytest.raises(ValueError) as error:
        load_config(folder)
    return str(error.value)


def test_every_entry_has_a_kind(config: dict[str, Any]) -> None:
    """A new entry of the schema needs its wrong values here."""
    assert CONFIG_KINDS.keys() == CONFIG.keys() and ROPE_KINDS.keys() == ROPE.keys()
    assert config.keys() <= CONFIG.keys(), "the bundled model has an entry that nothing checks"
    assert all(len(values) >= 5 for values in WRONG.values())


@pytest.mark.parametrize(("key", "value"), cases(CONFIG_KINDS), ids=show)
def test_wrong_entry(key: str, value: Any, config: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path, {**config, key: value})
    message = refused(tmp_path)
    assert message.startswith(f"{path}: {key} ")
    assert f"{key} is {show(value)}; " in message or "layer_types has 1 entries" in message


@pytest.mark.parametrize(("key", "value"), cases(ROPE_KINDS), ids=show)
@pytest.mark.parametrize("where", ["rope_parameters", "rope_scaling"])
def test_wrong_rope_entry(
    key: str, value: Any, where: str, config: dict[str, Any], tmp_path: Path
) -> None:
    del config["rope_parameters"]
    path = write(tmp_path, {**config, where: {"rope_type": "yarn", "factor": 2.0, key: value}})
    assert refused(tmp_path).startswith(f"{path}: {where}.{key} is {show(value)}; ")


@pytest.mark.parametrize("key", [key for key, rule in CONFIG.items() if rule.required])
def test_missing_entry(key: str, config: dict[str, Any], tmp_path: Path) -> None:
    del config[key]
    path = write(tmp_path, config)
    assert refused(tmp_path).startswith(f"{path}: {key} is None; it must be an integer")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 7}, "head_dim is 7; it must be even"),
        ({"num_key_value_heads": 3}, "num_attention_heads 2 is not a multiple of"),
        (
            {"head_dim": None, "hidden_size": 130, "architectures": ["LlamaForCausalLM"]},
            "hidden_size is 130; without a head_dim it must be a multiple of",
        ),
        ({"layer_types": ["full_attention"] * 3}, "layer_types has 3 entries; it must have one"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters lacks 'factor'"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral' is not supported; use"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}},
            "rope_parameters.full_attention is {'rope_theta': 5.0}; rope parameters by layer",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4.0,
                              "high_freq_factor": 1.0}, "rope_parameters": None},
            "rope_scaling.high_freq_factor is 1.0; it must be above low_freq_factor, which is 4.0",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "beta_fast": 1, "beta_slow": 32}},
            "rope_parameters.beta_fast is 1; it must be at least beta_slow, which is 32",
        ),
    ],
)  # fmt: skip
def test_entries_that_contradict_each_other(
    changes: dict[str, Any], words: str, config: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path, {**config, **changes})
    message = refused(tmp_path)
    assert str(path) in message and words in message


QUANTIZATION_CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True},
    "fp8": {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
        "ignored_layers": [],
    },
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                            "group_size": 32},
                "input_activations": None,
            }
        },
    },
}  # fmt: skip


def places_of(entries: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    below = [
        place
        for key, value in entries.items()
        if isinstance(value, dict)
        for place in places_of(value, (*path, key))
    ]
    return [(*path, key) for key in entries] + below


@pytest.mark.parametrize("name", QUANTIZATION_CONFIGS)
def test_wrong_quantization_entry(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    """Every entry, however deep, with six values: a ValueError, or the value is legal."""
    for file in bundled.path("storyteller-draft").iterdir():
        shutil.copy(file, tmp_path)
    for place in places_of(QUANTIZATION_CONFIGS[name]):
        for value in ("x", -1, [1], {"a": 1}, True, 0):
            broken = json.loads(json.dumps(QUANTIZATION_CONFIGS[name]))
            entries = broken
            for key in place[:-1]:
                entries = entries[key]
            entries[place[-1]] = value
            write(tmp_path, {**config, "quantization_config": broken})
            try:
                LLM(tmp_path, skip_tokenizer_init=True, num_gpu_blocks=8, max_model_len=32)
            except ValueError as error:
                assert len(str(error)) < 600
            else:
                is_flag = place[-1] in ("sym", "desc_act", "zero_point") and value is True
                assert is_flag or (place[-1] == "group_size" and value == -1), (place, value)


@pytest.mark.parametrize("value", WRONG["token ids"], ids=show)
def test_wrong_generation_config(value: Any, config: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, config)
    path = write(tmp_path, {"eos_token_id": value}, "generation_config.json")
    assert refused(tmp_path).startswith(f"{path}: eos_token_id is {show(value)}; ")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    "text", ["", "{", "null", "[1]", "[]", "3", '"text"', "[" * 100_000, '{"a": \udcff}']
)
def test_file_that_holds_no_object(
    text: str, name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, config)
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    assert str(tmp_path / name) in refused(tmp_path)


def test_unknown_entries_are_let_through(config: dict[str, Any]) -> None:
    assert ModelArgs.from_dict({**config, "new_idea": [1]}) == ModelArgs.from_dict(config)


# ---- the other files ------------------------------------------------------------------------

TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def header_file(folder: Path, header: Any) -> Path:
    """A file with this header and the 48 bytes of two tensors."""
    file, text = folder / "model.safetensors", json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(48))
    return file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "invalid type: null"),
        ({}, "invalid JSON in header"),
        ({"dtype": "F31"}, "unknown variant `F31`, expected one of"),
        ({"dtype": ["F32"]}, "invalid JSON in header"),
        ({"shape": "2,3"}, "expected a sequence"),
        ({"shape": [2, -3]}, "invalid value: integer `-3`"),
        ({"data_offsets": [24]}, "invalid length 1, expected a tuple of size 2"),
        ({"data_offsets": [48, 24]}, "invalid offset for tensor `w`"),
        ({"data_offsets": [24, 47]}, "invalid shape, data type, or offset"),
        ({"data_offsets": [0, 24]}, "invalid offset for tensor"),
        ({"data_offsets": [20, 44]}, "invalid offset for tensor `w`"),
    ],
)
def test_wrong_safetensors_header(change: Any, words: str, tmp_path: Path) -> None:
    wrong = {**TENSOR, "data_offsets": [24, 48], **change} if change else change
    file = header_file(tmp_path, {"v": TENSOR, "w": wrong})
    with pytest.raises(ValueError) as error:
        read_header(file)
    assert str(file) in str(error.value) and words in str(error.value)


def test_right_safetensors_header(tmp_path: Path) -> None:
    after = {**TENSOR, "data_offsets": [24, 48]}
    file = header_file(tmp_path, {"__metadata__": {"format": "pt"}, "w": after, "v": TENSOR})
    assert read_header(file) == {name: TensorInfo("F32", [2, 3]) for name in ("v", "w")}
    assert list(read_header(file)) == ["v", "w"]  # as their data lie


@pytest.mark.parametrize(
    "weight_map",
    [None, [], "model.safetensors", 1, {"w": None}, {"w": 1}, {"w": "../x"}, {"w": ""}],
)
def test_wrong_weight_map(weight_map: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weight_map.* it must be "):
        check_weight_map(weight_map, tmp_path)


@pytest.fixture
def checkpoint(tmp_path: Path, config: dict[str, Any]) -> Path:
    """A small model that loads."""
    sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=24, head_dim=8)
    write(tmp_path, {**config, **sizes, "dtype": "float32"})
    model = load_model(tmp_path, load_format="dummy")
    tensors = {name: view.clone() for name, view in weight_targets(model).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path)
    return tmp_path


def rewrite_header(file: Path, header: Any) -> None:
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


WRONG_ENTRIES = {
    "dtype": [None, "F31", 4, ["F32"], "I8"],
    "shape": [None, "16", [16.0], [-16], [10**30]],
    "data_offsets": [None, "0", [0], [8, 0], [0.0, 8.0], [0, 10**30]],
}


def test_wrong_headers_made_by_rule(checkpoint: Path) -> None:
    """Every header of the wrong shape, and every entry of a tensor with five wrong values."""
    file = checkpoint / "model.safetensors"
    content = file.read_bytes()
    good = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    name = next(name for name in good if name != "__metadata__")
    headers: list[Any] = [None, [1], [], "x", 3, {}, {**good, name: None}, {**good, name: [1]}]
    for key, values in WRONG_ENTRIES.items():
        headers += [{**good, name: {**good[name], key: value}} for value in values]
        headers.append({**good, name: {k: v for k, v in good[name].items() if k != key}})
    for header in headers:
        file.write_bytes(content)
        rewrite_header(file, header)
        with pytest.raises(ValueError) as error:
            load_model(checkpoint)
        assert str(checkpoint) in str(error.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.bool])
def test_integers_are_no_weights(dtype: torch.dtype, checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    name = "model.norm.weight"
    save_file({**tensors, name: tensors[name].to(dtype)}, file)
    with pytest.raises(ValueError, match=f"'{name}' in .*model.safetensors has dtype"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    "weight_map", [None, [], 1, "x", {"w": 1}, {"w": "../model.safetensors"}, {"w": "absent"}]
)
def test_wrong_index(weight_map: Any, checkpoint: Path) -> None:
    index = write(checkpoint, {"weight_map": weight_map}, "model.safetensors.index.json")
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        load_model(checkpoint)
    assert str(index) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture ['GPT2LMHeadModel'] is not"),
        ({"dtype": "int8"}, "config.json: dtype 'int8' is not supported"),
        ({"vocab_size": 2**24, "hidden_size": 2**24}, "asks for a model that does not fit"),
        ({"num_hidden_layers": 3, "layer_types": None}, "tensor(s) missing"),
        ({"head_dim": 16}, "config.json asks for"),
    ],
)
def test_config_of_another_checkpoint(changes: Any, words: str, checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    write(checkpoint, {**config, **changes})
    with pytest.raises(ValueError) as error:
        load_model(checkpoint)
    assert words in str(error.value)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with the bundled tokenizer."""
    for file in bundled.path("storyteller-draft").iterdir():
        if file.name.startswith(("token", "config")):
            shutil.copy(file, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{", "is not valid JSON"),
        ("tokenizer.json", "null", "holds None; it must be a JSON object"),
        ("tokenizer.json", {}, "model is None; it must be an object with"),
        ("tokenizer.json", {"model": []}, "model is []; it must be an object with"),
        ("tokenizer.json", {"model": {}}, "model.vocab is None; it must be an object with"),
        ("tokenizer.json", {"model": {"vocab": {}}}, "model.vocab is {}; it must be"),
        ("tokenizer.json", {"model": {"vocab": {"a": 0}}, "added_tokens": 1}, "added_tokens is 1;"),
        ("tokenizer_config.json", "[1]", "holds [1]; it must be a JSON object"),
    ],
)
def test_wrong_tokenizer_file(name: str, content: Any, words: str, tokenizer: Path) -> None:
    path = write(tokenizer, content, name)
    with pytest.raises(ValueError) as error:
        load_tokenizer(tokenizer)
    assert str(path) in str(error.value) and words in str(error.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_wrong_entry_of_a_tokenizer(name: str, tokenizer: Path) -> None:
    """What the library lets through may work; the rest is a ValueError that names the folder."""
    good = json.loads((tokenizer / name).read_text())
    paths: list[tuple[str, ...]] = [(key,) for key in good]
    paths += [(key, inner) for key in good if isinstance(good[key], dict) for inner in good[key]]
    num_refused = 0
    for *outer, key in paths:
        for value in (None, "x", -1, [1], {"a": 1}):
            broken = json.loads(json.dumps(good))
            entries = broken[outer[0]] if outer else broken
            entries[key] = value
            write(tokenizer, broken, name)
            try:
                load_tokenizer(tokenizer).encode("a story")
            except ValueError as error:
                num_refused += 1
                assert str(tokenizer) in str(error) and len(str(error)) < 1000
    assert num_refused > 5


# ------------------------------------------------------------------ which files count


def load_error(folder: Path) -> str:
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        load_model(folder)
    return str(error.value)


@pytest.mark.parametrize("name", ["aa.safetensors", "consolidated.safetensors", "zz.safetensors"])
def test_what_lies_beside_the_whole_model_is_not_its_weights(name: str, checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    save_file({key: torch.zeros_like(value) for key, value in tensors.items()}, checkpoint / name)
    model = load_model(checkpoint)
    assert all(torch.equal(view, tensors[key]) for key, view in weight_targets(model).items())


@pytest.mark.parametrize("indexed", [False, True])
def test_a_tensor_in_two_files(indexed: bool, checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    first, second, *_ = sorted(tensors)
    rest = {key: value for key, value in tensors.items() if key != first}
    save_file({first: tensors[first], second: tensors[second] * 0}, checkpoint / "a.safetensors")
    save_file(rest, checkpoint / "b.safetensors")
    if indexed:
        weight_map = dict.fromkeys(rest, "b.safetensors") | {first: "a.safetensors"}
        write(checkpoint, {"weight_map": weight_map}, "model.safetensors.index.json")
    said = load_error(checkpoint)
    assert f"'{second}' is in" in said and "a.safetensors and in" in said
    assert "b.safetensors; a tensor must be in one file only; remove" in said


def test_weights_that_are_no_file(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    file.unlink()
    assert "has no .safetensors file; download" in load_error(checkpoint)
    file.symlink_to(checkpoint / "nowhere")
    assert f"{file} is a folder, or a link to nothing; download it again" in load_error(checkpoint)
    file.unlink()
    file.mkdir()
    assert f"{file} is a folder, or a link to nothing; download it again" in load_error(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_what_git_leaves_of_a_large_file(name: str, checkpoint: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123456\n"
    (checkpoint / name).write_text(pointer)
    assert f"{name} is a pointer of Git LFS, and not the file itself" in load_error(checkpoint)


def test_a_file_is_no_folder(checkpoint: Path) -> None:
    assert "config.json' is a file; give its folder" in load_error(checkpoint / "config.json")


# ------------------------------------------------------------------ two homes of one entry


def rope_of(folder: Path, **overrides: Any) -> tuple[Any, ...]:
    rope = load_config(folder, overrides).rope_parameters
    return rope["rope_type"], rope["rope_theta"], rope.get("factor")


@pytest.mark.parametrize("theta", [None, 7e5])
@pytest.mark.parametrize("scaling", [None, "rope_type", "type"])
@pytest.mark.parametrize("inside", [None, "default", "linear"])
def test_of_two_entries_about_positions_the_one_counts_that_counts_in_transformers(
    inside: str | None, scaling: str | None, theta: float | None, checkpoint: Path
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    given = {"rope_theta": theta} if theta else {}
    if inside:
        factor = {"factor": 2.0} if inside == "linear" else {}
        given["rope_parameters"] = {"rope_type": inside, "rope_theta": 3e4, **factor}
    if scaling:
        given["rope_scaling"] = {scaling: "linear", "factor": 4.0}
    plain = {key: config[key] for key in config if not key.startswith("rope_")}
    write(checkpoint, {**plain, "model_type": "qwen3", **given})
    theirs = transformers.AutoConfig.from_pretrained(checkpoint).rope_parameters
    expected = theirs["rope_type"], theirs["rope_theta"], theirs.get("factor")
    assert rope_of(checkpoint) == expected


def test_an_override_counts_in_both_homes(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    write(checkpoint, {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 3e4}})
    scaled = {"rope_type": "linear", "factor": 4.0}
    assert rope_of(checkpoint, rope_theta=7e5) == ("default", 7e5, None)
    assert rope_of(checkpoint, rope_scaling=scaled) == ("linear", 3e4, 4.0)
    assert rope_of(checkpoint, rope_scaling=scaled, rope_theta=7e5) == ("linear", 7e5, 4.0)
    old = {key: value for key, value in config.items() if not key.startswith("rope_")}
    write(checkpoint, {**old, "rope_theta": 3e4, "rope_scaling": scaled})
    new = {"rope_type": "default", "rope_theta": 5e5}
    assert rope_of(checkpoint, rope_parameters=new) == ("default", 5e5, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["FooForCausalLM"]}, "architecture ['FooForCausalLM'] is not supported"),
        ({"dtype": "float8"}, "dtype is 'float8'; it must be one of float32, bfloat16, float16"),
        ({"quantization_config": {"quant_method": "foo"}}, "quant_method is 'foo'; supported are"),
    ],
    ids=["architecture", "dtype", "quantization"],
)
def test_the_file_is_named_before_anything_else_reads_it(
    changes: dict[str, Any], said: str, tokenizer: Path
) -> None:
    config = json.loads((tokenizer / "config.json").read_text())
    write(tokenizer, {**config, **changes})
    with pytest.raises(ValueError) as error:
        LLM(tokenizer)
    assert f"{tokenizer / 'config.json'}: {said}" in str(error.value)
