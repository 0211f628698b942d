"""Task 05.8: load a checkpoint, or say what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.model.loader import check_names, copy_weight, load_weights

QKV = "model.layers.0.self_attn.{}_proj.weight"
FOLDER = Path("models", "tiny")


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    """The message of the ValueError that a call must raise."""
    with pytest.raises(ValueError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def expect_words(message: str, words: list[str], at: str) -> None:
    """Where a word is a number, the message must hold it as one: 11 is not in 110."""
    numbers = re.findall(r"\d+", message)
    held = [word for word in words if word in (numbers if word.isdigit() else message)]
    expect(held, words, at=f"{at}: what the message says of it", message=message)


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("tied", [False, True])
def test_05_8_a_complete_checkpoint_is_welcome(files: Any, tied: bool) -> None:
    """Exactly the names that the model needs: no error."""
    names = files.shapes(tied)
    expect(check_names(names, list(names), FOLDER, tied), None, at=f"all names, tied={tied}")


def test_05_8_what_is_missing_is_named(files: Any) -> None:
    """How many, in which folder, and the first in order."""
    names = files.shapes()
    found = [name for name in names if ".layers.1." not in name]
    message = refusal(check_names, names, found, FOLDER, False)
    first = "model.layers.1.input_layernorm.weight"
    expect_words(message, ["11", str(FOLDER), first], "layer 1 is missing")


def test_05_8_what_is_too_much_is_named(files: Any) -> None:
    """A tensor that the model does not have means: these weights belong to another config."""
    names = files.shapes()
    extra = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in (9, 5, 7)]
    message = refusal(check_names, names, [*names, *extra], FOLDER, False)
    words = ["3", str(FOLDER), "model.layers.5.mlp.up_proj.weight"]
    expect_words(message, words, "three tensors too many")


def test_05_8_two_kinds_may_be_there_without_need(files: Any) -> None:
    """Rotary frequencies follow from the config; a tied head is the embedding once more."""
    rotary = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tied = files.shapes(tied=True)
    got = check_names(tied, [*tied, rotary, "lm_head.weight"], FOLDER, True)
    expect(got, None, at="tied, with lm_head and rotary frequencies in the file")
    message = refusal(check_names, tied, [*tied, "lm_head.weight"], FOLDER, False)
    expect_words(message, ["lm_head.weight"], "a head in the file, none in the model, not tied")


# ------------------------------------------------------------------ one tensor


def test_05_8_a_tensor_takes_the_targets_type() -> None:
    """The checkpoint's bfloat16 becomes the model's float32, in place."""
    target = torch.zeros(2, 3)
    copy_weight(target, torch.full((2, 3), 1.5, dtype=torch.bfloat16), "w", Path("a.safetensors"))
    expect(target.tolist(), [[1.5] * 3] * 2, at="a bfloat16 tensor into a float32 target")
    expect(str(target.dtype), "torch.float32", at="dtype of the target")


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 2), (2, 4)])
def test_05_8_a_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    """Also one that torch would spread over the target without a word."""
    target = torch.zeros(2, 3)
    message = refusal(copy_weight, target, torch.ones(shape), "some.weight", Path("a.safetensors"))
    words = ["some.weight", "a.safetensors", str(list(shape)), "[2, 3]"]
    expect_words(message, words, f"a tensor of shape {list(shape)} for a target of [2, 3]")
    expect(float(target.sum()), 0.0, at="sum of the target after the refusal")


# ------------------------------------------------------------------ a folder


@pytest.mark.parametrize("number", [1, 3])
def test_05_8_every_parameter_is_filled(files: Any, tmp_path: Path, number: int) -> None:
    """From one file or from several, to the last value."""
    tensors = files.tensors()
    files.write(tmp_path, tensors, number)
    model = files.model()
    load_weights(model, tmp_path)
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[1].mlp
    up = [tensors[f"model.layers.1.mlp.{part}_proj.weight"] for part in ("gate", "up")]
    pairs = {
        "qkv_proj of layer 0": (
            attention.qkv_proj.weight,
            torch.cat([tensors[QKV.format(part)] for part in "qkv"]),
        ),
        "gate_up_proj of layer 1": (mlp.gate_up_proj.weight, torch.cat(up)),
        "the embedding": (model.model.embed_tokens.weight, tensors["model.embed_tokens.weight"]),
        "the head": (model.lm_head.weight, tensors["lm_head.weight"]),
        "the last norm": (model.model.norm.weight, tensors["model.norm.weight"]),
    }
    wrong = [name for name, (got, right) in pairs.items() if not torch.equal(got, right)]
    expect(wrong, [], at=f"a checkpoint of {number} file(s): parameters with wrong values")


def test_05_8_what_is_not_needed_is_not_loaded(files: Any, tmp_path: Path) -> None:
    """A copy of a tied head does not disturb the embedding."""
    tensors = files.tensors(tied=True)
    files.write(tmp_path, tensors | {"lm_head.weight": torch.zeros(40, 16)})
    model = files.model(tie_word_embeddings=True)
    load_weights(model, tmp_path)
    same = torch.equal(model.lm_head.weight, tensors["model.embed_tokens.weight"])
    expect(same, True, at="tied, with a copy of the head in the file: lm_head is the embedding")


def test_05_8_names_are_checked_before_anything_is_written(files: Any, tmp_path: Path) -> None:
    """A folder that is refused leaves the model as it was."""
    tensors = files.tensors()
    del tensors[QKV.format("k")]
    files.write(tmp_path, tensors)
    model = files.model()
    message = refusal(load_weights, model, tmp_path)
    expect_words(message, [QKV.format("k")], "k_proj of layer 0 is missing")
    touched = [name for name, p in model.named_parameters() if not bool((p == -1.0).all())]
    expect(touched, [], at="the folder was refused: parameters that were written all the same")


def test_05_8_a_wrong_shape_names_the_file(files: Any, tmp_path: Path) -> None:
    """Weights of another model: which tensor, which file, both shapes."""
    tensors = files.tensors()
    tensors[QKV.format("v")] = torch.ones(15, 16)
    files.write(tmp_path, tensors)
    message = refusal(load_weights, files.model(), tmp_path)
    words = [QKV.format("v"), "model.safetensors", "[15, 16]", "[16, 16]"]
    expect_words(message, words, "v_proj of layer 0 has 15 rows")
