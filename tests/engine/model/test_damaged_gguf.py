"""Damaged and foreign GGUF files: one sentence that names the file, the key and what is allowed."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.gguf import read_gguf
from mini_vllm.model.build import load_model
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import load_config
from tests.engine.model import gguf_files


@pytest.fixture(scope="module")
def model() -> Any:
    return gguf_files.make_model("llama", num_hidden_layers=1)


@pytest.fixture(scope="module")
def whole(model: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    gguf_files.write_model(path, "llama", model, "Q8_0")
    return path.read_bytes()


def read_all(path: Path) -> None:
    load_config(path)
    load_tokenizer(path)
    load_model(path)


def header(version: int = 3, tensors: int = 0, entries: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


FILES = {
    "empty": (b"", r"has 0 bytes; a GGUF file has at least 24"),
    "magic": (b"GGML" + bytes(40), r"begins with b'GGML'; a GGUF file begins with b'GGUF'"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", r"or a pointer of Git LFS\?"),
    "version": (header(1), r"is GGUF version 1; versions 2 and 3, little-endian, can be read"),
    "endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"it is big-endian"),
    "entries": (header(entries=2**60), r"cut off or corrupt: the key of entry 0 of 1152921504606"),
    "tensors": (header(tensors=2**60), r"cut off or corrupt: the name of tensor 0 of 115292150460"),
    "text": (header(entries=1) + struct.pack("<Q", 2**62), r"takes 4611686018427387904 bytes at"),
    "utf8": (header(entries=1) + struct.pack("<Q", 2) + b"\xff\xfe", r"is not UTF-8"),
    "kind": (header(entries=1) + text("a") + struct.pack("<I", 77), r"'a' has a value of type 77"),
    "array": (
        header(entries=1) + text("a") + struct.pack("<IIQ", 9, 4, 2**61),
        r"the list 'a' takes 9223372036854775808 bytes",
    ),
    "texts": (
        header(entries=1) + text("a") + struct.pack("<IIQ", 9, 8, 2**61),
        r"text 0 of the 2305843009213693952 of 'a' ends behind byte",
    ),
    "nested": (
        header(entries=1) + text("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(20),
        r"'a' is a list of type 9; lists hold numbers or texts",
    ),
    "dimensions": (
        header(tensors=1) + text("t") + struct.pack("<I", 2**31),
        r"tensor 't' has 2147483648 dimensions; 1 to 4 are possible",
    ),
    "type": (
        header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 32, 99, 0),
        r"tensor 't' has type 99; types that can be read are F32, F16, Q4_0,",
    ),
    "rows": (
        header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 33, 2, 0),
        r"tensor 't' has shape \[33\]; rows of Q4_0 have a multiple of 32 numbers",
    ),
    "huge": (
        header(tensors=1) + text("t") + struct.pack("<IQQIQ", 2, 2**60, 2**60, 0, 0),
        r"is cut off: tensor 't' ends at byte \d+, and the file has",
    ),
    "offset": (
        header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 1, 0, 2**63),
        r"is cut off: tensor 't' ends at byte",
    ),
    "twice": (
        header(tensors=2) + (text("t") + struct.pack("<IQIQ", 1, 1, 0, 0)) * 2 + bytes(64),
        r"has two tensors 't'",
    ),
    "alignment": (
        header(entries=1) + text("general.alignment") + struct.pack("<II", 4, 0),
        r"general\.alignment is 0; it must be a multiple of 8",
    ),
    "split": (
        header(entries=1) + text("split.count") + struct.pack("<IH", 2, 3),
        r"split\.count is 3; a model in several files .* `llama-gguf-split --merge",
    ),
    "nothing": (header(), r"general\.architecture is missing; choose from 'llama', 'qwen2',"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    data, says = FILES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=says) as caught:
        load_config(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_cut_anywhere_is_refused(whole: bytes, tmp_path: Path) -> None:
    path, draw = tmp_path / "cut.gguf", random.Random(0)
    for end in [1, 23, 24, 25, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(40))]:
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"cut\.gguf"):
            read_gguf(path)


def test_flipped_bytes_never_raise_anything_else(whole: bytes, tmp_path: Path) -> None:
    """In the header: a file with one wrong byte is refused, or it means something else."""
    path, draw = tmp_path / "flip.gguf", random.Random(1)
    size = whole.index(b"token_embd.weight") + 400
    for _ in range(60):
        data = bytearray(whole)
        data[draw.randrange(size)] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            load_config(path)
            load_tokenizer(path)
        except ValueError as error:
            assert "flip.gguf" in str(error)


KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "sizes": ({"llama.embedding_length": 0}, r"llama\.embedding_length is 0; it must be an intege"),
    "layers": ({"llama.block_count": "two"}, r"llama\.block_count is 'two'; it must be an integer"),
    "heads": ({"llama.attention.head_count": 5}, r"num_attention_heads 5 is not a multiple|head"),
    "eps": ({"llama.attention.layer_norm_rms_epsilon": -1.0}, r"rms_epsilon is -1\.0; it must be"),
    "rope": ({"llama.rope.scaling.type": "dynamic"}, r"llama\.rope\.scaling\.type is 'dynamic'"),
    "experts": ({"llama.expert_count": 8}, r"llama\.expert_count is 8; experts are supported in"),
    "values": (
        {"llama.attention.key_length": 64, "llama.attention.value_length": 32},
        r"llama\.attention\.value_length is 32; it must be that of .*key_length, 64",
    ),
    "eos": ({"tokenizer.ggml.eos_token_id": "x"}, r"tokenizer\.ggml\.eos_token_id is 'x'; it must"),
    "hidden": ({"llama.embedding_length": 512}, r"has shape \[2048, 256\]"),
    "more": ({"llama.block_count": 2}, r"9 tensor\(s\) missing from '.*model\.gguf', first 'model"),
    "kind": ({"tokenizer.ggml.model": "bert"}, r"ggml\.model is 'bert'; it must be 'gpt2' or 'lla"),
    "pre": (
        {"tokenizer.ggml.pre": "unknown"},
        r"tokenizer\.ggml\.pre is 'unknown'; it must be one o",
    ),
    "tokens": ({"tokenizer.ggml.tokens": 7}, r"tokenizer\.ggml\.tokens is 7; it must be a list of"),
    "ids": ({"tokenizer.ggml.tokens": [1, 2]}, r"tokens holds other values; it must be a list of"),
    "types": (
        {"tokenizer.ggml.token_type": [1]},
        r"token_type has 1 entries; it must have one for",
    ),
    "merges": ({"tokenizer.ggml.merges": ["ab"]}, r"merges has 'ab'; it must be two tokens with a"),
    "bos": (
        {"tokenizer.ggml.bos_token_id": 5000},
        r"tokenizer\.ggml\.bos_token_id is 5000; it must be below 2048, the number of tokens",
    ),
    "flag": (
        {"tokenizer.ggml.add_bos_token": "yes"},
        r"add_bos_token is 'yes'; it must be true or",
    ),
    "kind of file": ({"general.type": "adapter"}, r"type is 'adapter'; it must be 'model'"),
    "scale": ({"llama.logit_scale": 0.5}, r"llama\.logit_scale is 0\.5; llama is computed here as"),
    "attention": (
        {"llama.attention.scale": 0.5},
        r"llama\.attention\.scale is 0\.5; llama is computed here as for 0\.\d+, and would answer",
    ),
    "looks ahead": ({"llama.attention.causal": False}, r"attention\.causal is False; llama is com"),
    "template": (
        {"tokenizer.chat_template": 3},
        r"tokenizer\.chat_template is 3; it must be a text",
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_wrong_entry_is_named(name: str, model: Any, tmp_path: Path) -> None:
    metadata, says = KEYS[name]
    path = tmp_path / "model.gguf"
    gguf_files.write_model(path, "llama", model, metadata=metadata)
    with pytest.raises(ValueError, match=says) as caught:
        read_all(path)
    assert "model.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("llama.embedding_length", r"llama\.embedding_length is None; it must be an integer"),
        ("llama.block_count", r"llama\.block_count is None; it must be an integer"),
        ("llama.attention.layer_norm_rms_epsilon", r"rms_epsilon is missing; convert the model"),
        ("tokenizer.ggml.model", r"tokenizer\.ggml\.model is missing; it must be 'gpt2' or"),
        (
            "tokenizer.ggml.tokens",
            r"tokenizer\.ggml\.tokens is missing; it must be a list of texts",
        ),
        (
            "tokenizer.ggml.merges",
            r"tokenizer\.ggml\.merges is missing; it must be a list of texts",
        ),
    ],
)
def test_a_missing_entry_is_named(key: str, says: str, model: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    gguf_files.write_model(path, "llama", model, leave_out=(key,))
    with pytest.raises(ValueError, match=says):
        read_all(path)


def test_other_architectures_and_tensors_are_named(model: Any, tmp_path: Path) -> None:
    metadata = {"general.architecture": "mamba"}
    gguf_files.write_model(tmp_path / "a.gguf", "llama", model, metadata=metadata)
    with pytest.raises(ValueError, match=r"architecture is 'mamba'; choose from 'llama', 'qwen2',"):
        load_config(tmp_path / "a.gguf")
    extra = {"blk.0.ssm_a.weight": gguf_files.np.zeros(4, "<f4")}
    gguf_files.write_model(tmp_path / "b.gguf", "llama", model, extra=extra)
    with pytest.raises(
        ValueError, match=r"tensor 'blk\.0\.ssm_a\.weight' of shape \[4\] is not known for"
    ):
        load_model(tmp_path / "b.gguf")
