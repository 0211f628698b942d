"""Folders as they lie on disks: each fault is one sentence with the file, the fault and the fix."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mini_vllm import LLM, bundled, hub
from mini_vllm.config import EngineConfig
from mini_vllm.model.build import load_model
from mini_vllm.model.checkpoint import read_header, weight_files
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import read_config

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled.path("storyteller-draft"), tmp_path / "model"))


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def huge(content: bytes) -> bytes:
    return (2**50).to_bytes(8, "little") + content[8:]


@pytest.mark.parametrize(("damage", "says"), [
    (lambda content: b"", "the file has 0 bytes: it is empty"),
    (lambda content: content[:5], "the file has 5 bytes: its first 8 bytes say"),
    (lambda content: b"<!DOCTYPE html>" * 9, "it begins with b'<!DOCTYP', so it is a web page"),
    (lambda content: b"PK\3\4" + content, "so it is a zip file, as torch.save writes it"),
    (huge, f"its first 8 bytes say that its header has {2**50} bytes"),
    (cut, "by its header it has "),
    (lambda content: content + b"more", "by its header it has "),
])  # fmt: skip
def test_a_damaged_file_is_told_in_plain_words(
    damage: Callable[[bytes], bytes], says: str, folder: Path
) -> None:
    file = folder / WEIGHTS
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError) as error:
        read_header(file)
    assert says in str(error.value) and str(error.value).startswith(f"{file} is cut off or corrupt")
    assert str(error.value).endswith("; download it again")


def split(folder: Path, count: int = 3) -> None:
    """Share out the weights over files that count themselves, without an index."""
    tensors = sorted(load_file(folder / WEIGHTS).items())
    (folder / WEIGHTS).unlink()
    for part in range(count):
        name = f"model-{part + 1:05d}-of-{count:05d}.safetensors"
        save_file(dict(tensors[part::count]), folder / name)


def test_a_missing_part_is_named_without_an_index(folder: Path) -> None:
    split(folder)
    assert len(weight_files(folder)) == 3
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has 2 of 3 weight files; number 2 is not there"):
        weight_files(folder)


def test_what_lies_beside_the_parts_is_not_read(folder: Path) -> None:
    split(folder)
    save_file({"tok_embeddings.weight": torch.zeros(2)}, folder / "consolidated.safetensors")
    save_file({"lora_A.weight": torch.zeros(2)}, folder / "adapter_model.safetensors")
    assert {file.name.split("-")[0] for file in weight_files(folder)} == {"model"}
    for file in folder.glob("model-*"):
        file.unlink()
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"Mistral's own names.*; take the model in the form"):
        weight_files(folder)


@pytest.mark.parametrize(("file", "says"), [
    ("adapter_config.json", "it is an adapter: load its base"),
    ("params.json", "it has params.json, the form of the model's authors"),
    ("inner/config.json", "its folder 'inner' has one; give that"),
    ("snapshots/abc/config.json", "its folder 'snapshots/abc' has one; give that"),
    ("README.md", "give the folder of a Hugging Face checkpoint"),
])  # fmt: skip
def test_a_folder_without_a_config_says_what_it_is(file: str, says: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("{}")
    with pytest.raises(FileNotFoundError, match=f"has no config.json; {says}"):
        read_config(tmp_path)


def test_a_named_format_must_be_the_model_s(folder: Path, tmp_path: Path) -> None:
    for name in ("auto", "hf", "safetensors"):
        assert EngineConfig.from_kwargs(folder, load_format=name).model.load_format == "auto"
    with pytest.raises(ValueError, match=r"load_format is 'gguf', and .* is no .gguf file; give"):
        EngineConfig.from_kwargs(folder, load_format="gguf")
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"load_format is 'safetensors', and .* is a .gguf file"):
        EngineConfig.from_kwargs(file, load_format="safetensors")


@pytest.mark.parametrize(("files", "says"), [
    ({}, "the folder has none of tokenizer.json"),
    ({"tekken.json": {}}, "tekken.json is not read"),
    ({"vocab.json": {"a": 0}}, "it has vocab.json and no merges.txt"),
    (
        {"vocab.txt": {}, "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["a.B", None]}}},
        "auto_map says that the tokenizer is Python code in the folder, which is not run",
    ),
])  # fmt: skip
def test_a_folder_without_a_tokenizer_says_why(
    files: dict[str, object], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*words: object) -> str:
        raise AssertionError("the terminal was asked")

    monkeypatch.setattr("builtins.input", ask)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{says}.*pass tokenizer=FOLDER"):
        load_tokenizer(folder)


HEADS: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a tensor less": ("medusa", lambda t: t.pop("blocks.0.layers.0.bias"), r"first 'blocks\.0"),
    "a head of its own": ("medusa", lambda t: t.update(x=torch.ones(1)), "not have, first 'x'"),
    "integers": (
        "medusa",
        lambda t: t.update({"blocks.0.layers.0.bias": torch.ones(192, dtype=torch.int8)}),
        "has dtype I8; the model holds it as torch.float32",
    ),
    "a wrong shape": (
        "medusa", lambda t: t.update({"blocks.0.layers.0.bias": torch.ones(5)}), r"has shape \[5\]"
    ),
    "as published": (
        "eagle",
        lambda t: t.pop("layers.0.input_layernorm.weight"),
        "EAGLE head cannot be used: .*input_layernorm.*; a head has fc.weight and one whole layer",
    ),
    "bytes": (
        "eagle",
        lambda t: t.update({"fc.weight": torch.ones(192, 384).to(torch.float8_e4m3fn)}),
        "'fc.weight' in .* has dtype F8_E4M3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_draft_are_checked_as_models_are(name: str, tmp_path: Path) -> None:
    method, change, says = HEADS[name]
    folder = Path(shutil.copytree(bundled.path(f"storyteller-{method}"), tmp_path / "head"))
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    drafts = {"method": method, "model": str(folder), "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match=says):
        LLM("storyteller", num_gpu_blocks=8, max_model_len=64, speculative_config=drafts)


@pytest.mark.parametrize(("method", "entries", "says"), [
    ("medusa", {"num_hidden_layers": None}, "num_hidden_layers is None; it must be a whole number"),
    ("medusa", {"hidden_size": "192"}, "read hidden states of '192' numbers"),
    ("eagle", {"num_hidden_layers": 2}, "layer_types has 1 entries"),
])  # fmt: skip
def test_the_entry_of_a_head_that_is_wrong_is_named(
    method: str, entries: dict[str, object], says: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(bundled.path(f"storyteller-{method}"), tmp_path / "head"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))
    drafts = {"method": method, "model": str(folder), "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match=says):
        LLM("storyteller", num_gpu_blocks=8, max_model_len=64, speculative_config=drafts)


@pytest.mark.parametrize(("old", "new"), [("", "module."), ("model.", "")])
def test_names_with_another_beginning_are_shown(old: str, new: str, folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({new + name.removeprefix(old): t for name, t in tensors.items()}, folder / WEIGHTS)
    says = rf"The files have it as '{new}.*embed_tokens.weight'; load them with the class that"
    with pytest.raises(ValueError, match=says):
        load_model(folder)


def test_a_folder_may_be_below_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert hub.folder("~/model") == folder
    with pytest.raises(FileNotFoundError, match="model is ''; give a folder"):
        hub.folder("")
