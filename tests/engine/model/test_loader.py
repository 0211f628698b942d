"""Loading checkpoints: what is read, and what each broken folder is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from mini_vllm.model.build import load_model, resolve_dtype
from mini_vllm.model.config import ModelArgs, load_config
from mini_vllm.model.families import known
from mini_vllm.model.layers import weights_dtype
from mini_vllm.model.loader import checkpoint_names, weight_targets

CONFIG: dict[str, Any] = dict(
    architectures=["Qwen3ForCausalLM"],
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    dtype="float32",
    eos_token_id=3,
)
QKV = "model.layers.0.self_attn.{}_proj.weight"


def write_config(folder: Path, **changes: Any) -> None:
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def random_tensors(folder: Path) -> dict[str, Tensor]:
    """What a checkpoint for the folder's config holds, under the checkpoint's names."""
    model = load_model(folder, load_format="dummy")
    torch.manual_seed(0)
    return {name: torch.randn(view.shape) for name, view in weight_targets(model).items()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_config(tmp_path)
    save_file(random_tensors(tmp_path), tmp_path / "model.safetensors")
    return tmp_path


def change_tensors(folder: Path, changes: dict[str, Tensor | None]) -> None:
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def shard(folder: Path) -> dict[str, str]:
    """Split `model.safetensors` into two files with an index; returns its weight map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in sorted(set(weight_map.values())):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == file}, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weight_map


def error_of(folder: Path, **options: Any) -> str:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_model(folder, **options)
    return str(caught.value)


def test_checkpoint_names() -> None:
    assert checkpoint_names("a.mlp.gate_up_proj.weight") == [
        "a.mlp.gate_proj.weight",
        "a.mlp.up_proj.weight",
    ]
    assert checkpoint_names("a.self_attn.qkv_proj.bias") == [
        f"a.self_attn.{part}_proj.bias" for part in "qkv"
    ]
    assert checkpoint_names("model.norm.weight") == ["model.norm.weight"]


def test_projections_are_stacked_in_order(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    attention = load_model(checkpoint).model.layers[0].self_attn
    expected = torch.cat([tensors[QKV.format(part)] for part in "qkv"])
    assert attention.qkv_proj.output_sizes == [32, 16, 16]
    assert torch.equal(attention.qkv_proj.weight, expected)


def test_sharded_checkpoint_loads_the_same(checkpoint: Path) -> None:
    whole = load_model(checkpoint).state_dict()
    shard(checkpoint)
    sharded = load_model(checkpoint).state_dict()
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_tied_head_uses_the_embedding(checkpoint: Path) -> None:
    """With or without a copy of it in the file, and under either name."""
    write_config(checkpoint, tie_word_embeddings=True)
    hidden = torch.randn(3, 16)
    embedding = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    copy, alone = {"lm_head.weight": embedding.clone()}, {"model.embed_tokens.weight": None}
    for changes in (copy, alone, {"lm_head.weight": None, "model.embed_tokens.weight": embedding}):
        change_tensors(checkpoint, changes)
        model = load_model(checkpoint)
        assert torch.equal(model.model.embed_tokens.weight, embedding)
        torch.testing.assert_close(model.compute_logits(hidden), hidden @ embedding.T)


def test_a_head_that_is_not_the_embedding_is_used(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in transformers, whose training may untie the two and leave the entry as it was."""
    untied = load_model(checkpoint)
    write_config(checkpoint, tie_word_embeddings=True)
    model = load_model(checkpoint)
    hidden = torch.randn(3, 16)
    torch.testing.assert_close(model.compute_logits(hidden), untied.compute_logits(hidden))
    assert "lm_head.weight differs from the embedding" in caplog.text
    config = json.loads((checkpoint / "config.json").read_text()) | {"model_type": "qwen3"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint).lm_head.weight
    assert torch.equal(model.lm_head.weight, theirs)


@pytest.mark.parametrize("name", ["inv_freq", "cos_cached", "sin_cached"])
def test_what_old_files_have_of_the_rotation_is_ignored(name: str, checkpoint: Path) -> None:
    change_tensors(checkpoint, {f"model.layers.0.self_attn.rotary_emb.{name}": torch.ones(4)})
    load_model(checkpoint)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_dtype(name: str, checkpoint: Path) -> None:
    write_config(checkpoint, dtype=name)
    model, wanted = load_model(checkpoint), getattr(torch, name)  # auto
    assert model.cache_dtype == wanted
    assert model.dtype == weights_dtype(wanted, model.config.hidden_size, "cpu")
    assert load_model(checkpoint, dtype="float32").dtype == torch.float32
    assert torch.get_default_dtype() == torch.float32


def test_dummy_weights_follow_the_seed(tmp_path: Path) -> None:
    write_config(tmp_path)
    states = [load_model(tmp_path, load_format="dummy", seed=s).state_dict() for s in (1, 1, 2)]
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(states[0][name], states[1][name])
    assert not torch.equal(states[0][name], states[2][name])
    assert all(torch.isfinite(tensor).all() for tensor in states[0].values())


def test_both_spellings_of_rope(tmp_path: Path) -> None:
    scaling = {"factor": 2.0, "original_max_position_embeddings": 32}
    new = {**CONFIG, "rope_parameters": {"rope_type": "yarn", "rope_theta": 77.0, **scaling}}
    old = {**CONFIG, "rope_theta": 77.0, "rope_scaling": {"type": "yarn", **scaling}}
    assert ModelArgs.from_dict(new) == ModelArgs.from_dict(old)


def test_eos_ids_of_both_files_are_joined(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 3]}))
    args = load_config(tmp_path)
    assert args.eos_token_ids == (3, 5) and args.eos_token_id == 3


def test_an_end_beyond_the_vocabulary_is_none(tmp_path: Path) -> None:
    """A small copy of a model may keep the large one's; masks of the vocabulary have no bit for
    it."""
    write_config(tmp_path, eos_token_id=[10**6, 3])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2**20, 5]}))
    assert load_config(tmp_path).eos_token_ids == (3, 5)
    write_config(tmp_path, eos_token_id=10**6)
    (tmp_path / "generation_config.json").unlink()
    assert load_config(tmp_path).eos_token_id is None


def test_missing_folder_and_files(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert error_of(nowhere) == f"model folder {str(nowhere)!r} does not exist"
    assert error_of(tmp_path) == (
        f"{str(tmp_path)!r} has no config.json; give the folder of a Hugging Face checkpoint"
    )
    write_config(tmp_path)
    assert error_of(tmp_path) == (
        f"{str(tmp_path)!r} has no .safetensors file; download the weights in that format"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(architectures=["GPT2LMHeadModel"]),
            "architecture ['GPT2LMHeadModel'] is not supported; supported are "
            f"{sorted(known())}; the nearest is ",
        ),
        (dict(architectures=[]), "architecture [] is not supported"),
        (dict(hidden_size=None), "config.json: hidden_size is None; it must be an integer"),
        (dict(vocab_size=0), "config.json: vocab_size is 0; it must be an integer of at least 1"),
        (dict(hidden_act="gelu"), "config.json: hidden_act is 'gelu'; choose from 'silu', "),
        (
            dict(num_key_value_heads=3),
            "num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        (
            dict(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
            "rope_type 'dynamic' is not supported; use default, linear, llama3, yarn or longrope",
        ),
        (dict(rope_scaling={"rope_type": "linear"}), "rope_type 'linear' needs 'factor'"),
        (dict(dtype="int8"), "dtype 'int8' is not supported; choose 'auto' or one of"),
    ],
)
def test_bad_config(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_config(tmp_path, **changes)
    assert message in error_of(tmp_path, load_format="dummy")


def test_config_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert re.search(r"config\.json is not valid JSON: .*line 1", error_of(tmp_path))


def test_index_without_a_map(checkpoint: Path) -> None:
    index = checkpoint / "model.safetensors.index.json"
    index.write_text("{}")
    assert error_of(checkpoint) == f"{index} has no 'weight_map'; download it again"
    index.write_text("nonsense")
    assert f"{index} is not valid JSON" in error_of(checkpoint)


def test_bad_options(checkpoint: Path) -> None:
    assert "choose 'auto' or 'dummy'" in error_of(checkpoint, load_format="gguf")
    with pytest.raises(ValueError, match="dtype 'float8' is not supported"):
        resolve_dtype("float8", load_config(checkpoint))


def test_missing_tensor(checkpoint: Path) -> None:
    name = QKV.format("k")
    change_tensors(checkpoint, {name: None})
    assert f"1 tensor(s) missing from {str(checkpoint)!r}, first {name!r}" in error_of(checkpoint)


def test_unexpected_tensor(checkpoint: Path) -> None:
    change_tensors(checkpoint, {"model.layers.9.mlp.up_proj.weight": torch.ones(1)})
    message = error_of(checkpoint)
    assert "that this model does not have, first 'model.layers.9.mlp.up_proj.weight'" in message


def test_wrong_shape(checkpoint: Path) -> None:
    name = QKV.format("v")
    change_tensors(checkpoint, {name: torch.ones(15, 16)})
    message = error_of(checkpoint)
    assert message == (
        f"{name!r} in {checkpoint / 'model.safetensors'} has shape [15, 16]; "
        "config.json asks for [16, 16]"
    )


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_file(keep: int, checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    message = error_of(checkpoint)
    assert str(file) in message and f"the file has {len(content[:keep])}" in message
    if keep == -1:
        assert f"by its header it has {len(content)} bytes" in message


def test_corrupt_header(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8] = ord("!")
    file.write_bytes(content)
    message = error_of(checkpoint)
    assert str(file) in message and "invalid JSON in header" in message


def test_of_an_index_and_the_whole_model_the_index_goes(checkpoint: Path) -> None:
    """A model whose parts were joined may have kept their index."""
    (checkpoint / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part"}}')
    said = error_of(checkpoint)
    assert said.endswith("download it, or remove the index if model.safetensors is the whole model")


def test_pickles_are_named_with_what_makes_safetensors_of_them(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model-00001-of-00002.bin")
    (checkpoint / "pytorch_model-00002-of-00002.bin").touch()
    said = error_of(checkpoint)
    assert "it has pytorch_model-00001-of-00002.bin and 1 more, a format that is not read" in said
    assert "save_pretrained(FOLDER)" in said


def test_index_that_names_an_absent_file(checkpoint: Path) -> None:
    shard(checkpoint)
    (checkpoint / "part-1.safetensors").unlink()
    assert error_of(checkpoint) == (
        f"{checkpoint / 'model.safetensors.index.json'} names 'part-1.safetensors', "
        "which is not in the folder; download it"
    )
