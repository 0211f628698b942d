"""Every JSON that is read from outside: a damaged one is a sentence, wherever it is read."""

from __future__ import annotations

import argparse
import json
import lzma
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_vllm import bundled
from mini_vllm.config import EngineConfig, MultiModalConfig
from mini_vllm.config.options import json_value
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.entrypoints.bench_files import custom_samples, sharegpt_samples
from mini_vllm.entrypoints.disagg_proxy import make_policy
from mini_vllm.hub import index_files
from mini_vllm.json_files import DEEPEST, parse_json, read_json
from mini_vllm.lora.peft import PEFTHelper
from mini_vllm.model.checkpoint import read_header, weight_files
from mini_vllm.model.checkpoint_files import load_tokenizer, load_vocabulary
from mini_vllm.model.config import load_config
from mini_vllm.multimodal.processing import MultiModalProcessor
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.spec_decode.medusa import MedusaHeads

DAMAGES: dict[str, bytes] = {
    "deep list": b"[" * 20_000,
    "deep object": b'{"a":' * 20_000,
    "deep and closed": b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "a level too deep": b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
    "deep behind an open text": b"[" * 600 + b'"' + b'\\"' * 20_000 + b"\\",
    "nothing": b"",
    "cut": b'{"a": [1, 2',
    "no text": b'{"a": "\xff\xfe\x00"}',
    "twice": b'{"a": 1, "b": {"c": 1, "c": 2}}',
    "many digits": b'{"a": ' + b"1" * 5_000 + b"}",
    "two": b'{"a": 1} {"a": 2}',
    "quotes": b"{'a': 1}",
    "zeros": b"\x00" * 64,
}
OTHERS: dict[str, bytes] = {
    "a list": b"[]",
    "null": b"null", "a number": b"NaN",
    "a text": b'"a"',
    "a list with BOM": b"\xef\xbb\xbf[]",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_text_is_a_value_error(damage: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        parse_json(DAMAGES[damage])
    assert len(str(caught.value)) < 200
    file = tmp_path / "a.json"
    file.write_bytes(DAMAGES[damage])
    with pytest.raises(ValueError, match=r"a\.json is not valid JSON: ") as caught:
        read_json(file)
    assert len(str(caught.value)) < 300 + len(str(file))


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_object_is_named(other: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(OTHERS[other])
    with pytest.raises(ValueError, match=r"a\.json holds .*; it must be a JSON object"):
        read_json(file)


def test_what_is_good_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": [{"b": 1}, {"b": 1}], "c": 1e400}')
    assert read_json(file) == {"a": [{"b": 1}, {"b": 1}], "c": float("inf")}
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert parse_json(deep) == json.loads(deep)
    brackets = json.dumps(["[" * 2_000, '"[' * 2_000, "\\[" * 2_000, {"{" * 2_000: "\\"}])
    assert parse_json(brackets) == json.loads(brackets)
    with pytest.raises(OSError):
        read_json(tmp_path)


# ------------------------------------------------------------------ where it is read


def _checkpoint(read: Callable[[Path], Any], name: str, model: str = "storyteller-draft") -> Any:
    def damaged(folder: Path, content: bytes) -> None:
        shutil.copytree(bundled.path(model), folder, dirs_exist_ok=True)
        (folder / name).write_bytes(content)
        read(folder)

    return damaged


def _vision(folder: Path) -> None:
    vision = load_config(folder).vision
    assert vision is not None
    _ = MultiModalProcessor(folder, vision, MultiModalConfig(), 512).image_processor


def _medusa(folder: Path) -> None:
    MedusaHeads.load(folder, torch.float32, torch.device("cpu"))


def _header(folder: Path, content: bytes) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(len(content).to_bytes(8, "little") + content)
    read_header(file)


def _adapter(folder: Path, content: bytes) -> None:
    PEFTHelper.from_json(content)


def _samples(read: Any) -> Any:
    def damaged(folder: Path, content: bytes) -> None:
        file = folder / "data.json"
        file.write_bytes(content or b"[")
        options = dict(dataset_name="custom", dataset_path=file, custom_output_len=1)
        options |= dict(output_len=None, disable_shuffle=True, no_oversample=True, num_prompts=1)
        read(argparse.Namespace(**options), random.Random(0))

    return damaged


def _prices(folder: Path, content: bytes) -> None:
    (folder / "prices.json").write_bytes(content)
    make_policy("least-loaded", folder / "prices.json")


def _index(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors.index.json").write_bytes(content)
    index_files(folder)


PLACES: dict[str, Callable[[Path, bytes], Any]] = {
    "config.json": _checkpoint(make_engine_config, "config.json"),
    "config.json, quantized": _checkpoint(get_quantization_config, "config.json"),
    "config.json of medusa": _checkpoint(_medusa, "config.json", "storyteller-medusa"),
    "generation_config.json": _checkpoint(make_engine_config, "generation_config.json"),
    "tokenizer.json": _checkpoint(load_tokenizer, "tokenizer.json"),
    "tokenizer.json, vocabulary": _checkpoint(load_vocabulary, "tokenizer.json"),
    "tokenizer_config.json": _checkpoint(load_tokenizer, "tokenizer_config.json"),
    "chat_template.json": _checkpoint(load_tokenizer, "chat_template.json"),
    "processor_config.json": _checkpoint(load_tokenizer, "processor_config.json"),
    "preprocessor_config.json": _checkpoint(
        _vision, "preprocessor_config.json", "storyteller-vision"
    ),
    "index": _checkpoint(weight_files, "model.safetensors.index.json"),
    "index of a hub": _index,
    "header": _header,
    "adapter_config.json": _adapter,
    "dataset, lines": _samples(custom_samples),
    "dataset, ShareGPT": _samples(sharegpt_samples),
    "prices": _prices,
}


@pytest.mark.parametrize("damage", ["deep list", "deep object", "no text", "twice", "many digits"])
@pytest.mark.parametrize("place", PLACES)
def test_wherever_it_is_read(place: str, damage: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        PLACES[place](tmp_path, DAMAGES[damage])
    assert type(caught.value) is ValueError, "not the library's, but with the file's name"
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("damage", ["deep list", "deep object", "many digits", "twice"])
def test_on_the_command_line_and_in_arguments(damage: str) -> None:
    text = DAMAGES[damage].decode()
    with pytest.raises(argparse.ArgumentTypeError, match="is not JSON") as caught:
        json_value(text)
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match=r"speculative_config is .* that is not JSON"):
        EngineConfig.from_kwargs("storyteller-draft", speculative_config=text)  # type: ignore[arg-type]


def test_files_of_the_course(tmp_path: Path) -> None:
    from labkit.arena import cost, leaderboard
    from labkit.arena.fleet import contest
    from labkit.inspector.recording import RecordingError
    from labkit.inspector.sources import _open
    from labkit.trace.diff import load_lines
    from labkit.trace.format import TraceError, load_trace

    readers: list[tuple[Any, type[Exception]]] = [
        (load_trace, TraceError),
        (load_lines, TraceError),
        (cost.load_model, ValueError),
        (leaderboard.read, ValueError),
        (contest.load_link, ValueError),
        (lambda file: _open(file, None, None), RecordingError),
    ]
    for name in ("deep list", "deep object", "many digits", "twice"):
        file = tmp_path / "a.json"
        file.write_bytes(DAMAGES[name])
        for read, kind in readers:
            with pytest.raises(kind, match=r"a\.json"):
                read(file)
        golden = tmp_path / "a.jsonl.xz"
        golden.write_bytes(lzma.compress(DAMAGES[name]))
        with pytest.raises(RecordingError, match="no file of golden traces"):
            _open(golden, None, None)
